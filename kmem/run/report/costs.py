"""What the language models of a run cost: by role, and for each kernel of theirs that won."""

from collections.abc import Sequence

from kmem.explore.models.author import LlmAuthor
from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.explore.models.roles import GENERATOR, OPTIMISER, REPAIRER
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, Move, Status

#: The role that writes the kernels of a move.
_WRITES = {
    Move.SEED: GENERATOR.name,
    Move.FIX: OPTIMISER.name,
    Move.REPAIR: REPAIRER.name,
}


def count_wins(attempts: Sequence[Attempt]) -> dict[str, int]:
    """By role, its kernels that passed and were faster than what they started from.

    A first kernel starts from nothing, so that passing is its win.
    """
    wins = dict.fromkeys(_WRITES.values(), 0)
    for attempt in attempts:
        role = _WRITES.get(attempt.candidate.task.move)
        if attempt.candidate.author != LlmAuthor.name or role is None:
            continue
        gained = attempt.speedup is None or attempt.speedup >= MIN_IMPROVEMENT
        wins[role] += attempt.measurement.status is Status.PASSED and gained
    return wins


def usd_per_win(usd: float | None, wins: int) -> float | None:
    """Dollars for each win; None without a win or a known price."""
    return None if usd is None or not wins else usd / wins


def describe_costs(usage: Sequence[Usage], attempts: Sequence[Attempt]) -> list[str]:
    """A line for each role and model, and one for all: calls, tokens, dollars, wins."""
    wins = count_wins(attempts)
    lines = [
        f"{row.role} ({row.model}): {_line(row)}" + _wins(row.usd, wins.get(row.role))
        for row in usage
    ]
    if usage:
        total = total_usage(usage)
        lines.append(f"in all: {_line(total)}{_wins(total.usd, sum(wins.values()))}")
    return lines


def _line(row: Usage) -> str:
    cached = f" ({row.cached_tokens} cached)" if row.cached_tokens else ""
    usd = f"{row.usd:.4f} USD" if row.usd is not None else "price unknown"
    return (
        f"{row.calls} calls, {row.input_tokens} tokens read{cached}, {row.output_tokens} written, "
        f"{usd}"
    )


def _wins(usd: float | None, wins: int | None) -> str:
    if wins is None:
        return ""
    each = usd_per_win(usd, wins)
    return f"; {wins} wins" + (f" at {each:.4f} USD each" if each is not None else "")
