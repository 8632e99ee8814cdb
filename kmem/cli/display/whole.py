"""Where the time of a whole model goes, and what a run on it would do, as text."""

from collections.abc import Sequence
from typing import Any

from kmem.records import Device
from kmem.whole.accounting.account import Account, Line, PieceLine
from kmem.whole.cutting.pieces import Cost
from kmem.whole.graphs.capture import Captured

#: Lines of a table on a terminal; --json has all.
_MOST_LINES = 12


def describe_account(account: Account) -> str:
    """The tables, largest lines first."""
    kind = "estimated" if account.estimated else "measured"
    size = f"{account.parameters:,} parameters, {account.parameter_bytes / 2**20:,.0f} MiB"
    lines = [
        f"{account.model} on {account.device}: {_ms(account.total_ms)} a forward by its operators "
        f"({kind}); {size}"
    ]
    if account.wall_ms is not None:
        gaps = f", {_ms(account.gaps_ms)} of it between launches" if account.gaps_ms else ""
        lines.append(f"One forward takes {_ms(account.wall_ms)} on the clock{gaps}.")
    if account.launch_ms:
        share = account.launch_ms / account.total_ms if account.total_ms else 0.0
        lines.append(f"Launching takes {_ms(account.launch_ms)} of it, {share:.0%}.")
    lines += ["", *_table("Operator", account.operators)]
    lines += ["", *_table("Submodule", account.modules)]
    lines += ["", *_table("Launch", account.launches)]
    lines += ["", *_pieces(account.pieces)]
    lines += [f"note: {note}" for note in account.notes]
    lines += [
        f"left as it is written: {path or 'the model as a whole'} ({reason})"
        for path, reason in account.left
    ]
    return "\n".join(lines)


def _table(title: str, lines: Sequence[Line]) -> list[str]:
    shown = [f"{title:<44} {'calls':>6} {'time':>10} {'share':>6}"]
    shown += [
        f"{_cut(line.name, 44):<44} {line.calls:>6} {_ms(line.ms):>10} {line.share:>6.1%}"
        for line in lines[:_MOST_LINES]
    ]
    rest = lines[_MOST_LINES:]
    if rest:
        ms, share = sum(line.ms for line in rest), sum(line.share for line in rest)
        shown.append(f"{f'{len(rest)} more':<44} {'':>6} {_ms(ms):>10} {share:>6.1%}")
    return shown


def _pieces(pieces: Sequence[PieceLine]) -> list[str]:
    head = f"{'Piece':<36} {'calls':>6} {'time':>10} {'share':>6} {'attainable':>10}"
    shown = [f"{head} {'remembered':>10} {'gain':>6} {'most':>6}"]
    for piece in pieces[:_MOST_LINES]:
        known = _ms(piece.remembered_ms) if piece.remembered_ms is not None else "-"
        shown.append(
            f"{_cut(piece.name, 36):<36} {piece.calls:>6} {_ms(piece.ms):>10} {piece.share:>6.1%} "
            f"{_ms(piece.attainable_ms):>10} {known:>10} {_gain(piece.model_gain):>6} "
            f"{_gain(piece.most_gain):>6}"
        )
    if len(pieces) > _MOST_LINES:
        shown.append(f"{len(pieces) - _MOST_LINES} more pieces")
    shown.append(
        "gain: of the whole model if the piece alone gets to what is attainable; most: to 0"
    )
    return shown


def describe_plan(
    captured: Captured,
    cost: Cost,
    rows: Sequence[dict[str, Any]],
    stretches: Sequence[dict[str, Any]],
    device: Device,
    piece_minutes: float,
) -> str:
    """What is tried as one problem, and the pieces in the order in which a run would take them."""
    total, kind = cost.total_ms(captured), "estimated" if cost.estimated else "measured"
    # what values decide is in no graph, and so in no time either
    kind += ", without what is left as it is written" if captured.left else ""
    lines = [
        f"{captured.name} on {device.name}: {_ms(total)} a forward ({kind}), {len(rows)} pieces",
        *(
            f"As one problem first: {len(row['operators'])} operators, {_ms(row['eager_ms'])}, "
            f"saves about {_ms(row['saved_ms'])}"
            for row in stretches
        ),
        f"{'Piece':<36} {'calls':>6} {'time':>10} {'share':>6} {'saves about':>12} {'minutes':>8}",
    ]
    ranked = sorted(rows, key=lambda row: -row["saved_ms"])
    for row in ranked:
        told = "  known" if row["remembered_ms"] is not None else ""
        lines.append(
            f"{_cut(row['name'], 36):<36} {row['calls']:>6} {_ms(row['eager_ms']):>10} "
            f"{row['share']:>6.1%} {_ms(row['saved_ms']):>12} {piece_minutes:>8g}{told}"
        )
    covered = sum(row["share"] for row in rows)
    saved = sum(row["saved_ms"] for row in rows)
    gain = total / (total - saved) if total > saved else float("inf")
    lines += [
        f"The pieces hold {covered:.0%} of that time; all of them together would save about "
        f"{_ms(saved)} of it ({_gain(gain)}) in {piece_minutes * len(rows):g} minutes.",
    ]
    lines += [
        f"left as it is written: {path or 'the model as a whole'} ({reason})"
        for path, reason in captured.left
    ]
    return "\n".join(lines)


def _ms(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 0.1 else f"{ms * 1e3:.3g} µs"


def _gain(gain: float) -> str:
    return f"{gain:.2f}x" if gain < 100 else ">100x"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
