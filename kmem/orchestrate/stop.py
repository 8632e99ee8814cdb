"""When a run has done enough: at the bound, without hope of a gain that counts, or converged."""

from collections.abc import Collection, Mapping, Sequence

from kmem.records import (
    Attempt,
    Bottleneck,
    Budget,
    Diagnosis,
    Move,
    Outcome,
    Prescription,
    Recalled,
)
from kmem.skills import Skill

#: An improvement counts when it exceeds this and its interval excludes 1: less is within what a
#: rerun moves. It is also what a round must be able to bring to be worth its measurements.
MIN_IMPROVEMENT = 1.005
ROUNDS_WITHOUT_GAIN = 2
#: A remembered winner counts as holding here if it is at most this much slower than recorded.
_AS_REMEMBERED = 1.05


def reason_to_stop(
    diagnosis: Diagnosis | None,
    prescriptions: Sequence[Prescription],
    skills: Mapping[str, Skill],
    stale_rounds: int,
    budget: Budget,
) -> str:
    """Why no further round is worth it, given the diagnosis of the best kernel; may be empty."""
    if (
        diagnosis is not None
        and diagnosis.speed_of_light is not None
        and diagnosis.speed_of_light >= budget.target_speed_of_light
    ):
        return f"the best kernel runs at {diagnosis.speed_of_light:.0%} of the speed of light"
    if diagnosis is not None and prescriptions:
        gain = max(
            expected_gain(diagnosis, skills[entry.skill].bottlenecks)
            for entry in prescriptions
            if entry.skill in skills
        )
        if gain < MIN_IMPROVEMENT:
            return (
                f"no prescription's ceiling ({gain - 1:.2%}) beats what a round must bring to "
                f"count ({MIN_IMPROVEMENT - 1:.1%})"
            )
    if stale_rounds >= ROUNDS_WITHOUT_GAIN:
        return f"{stale_rounds} rounds brought no gain above {MIN_IMPROVEMENT - 1:.1%}"
    return ""


def expected_gain(diagnosis: Diagnosis, bottlenecks: Collection[Bottleneck]) -> float:
    """The speedup that a skill could bring at most: down to the bound.

    It is unlimited if the skill changes the work itself or no bound is known. Time over bound is 1
    / speed of light.
    """
    if diagnosis.speed_of_light is None or Bottleneck.ALGORITHMIC in bottlenecks:
        return float("inf")
    return 1.0 / diagnosis.speed_of_light


def minutes_used_up(budget: Budget) -> str:
    """Why a run stopped whose minutes are over."""
    return f"the {budget.minutes:g} minutes are used up"


def has_gained(before_ms: float | None, after_ms: float | None) -> bool:
    """Whether a round moved the best time by at least what counts."""
    return before_ms is None or (after_ms is not None and after_ms * MIN_IMPROVEMENT < before_ms)


def is_improvement(ratio: float, ratio_low: float | None) -> bool:
    """Whether a speedup over the best baseline makes a winner.

    Args:
        ratio_low: of its 95% interval; None if not timed in pairs.
    """
    return ratio >= MIN_IMPROVEMENT and (ratio_low is None or ratio_low > 1.0)


def has_won(outcome: Outcome) -> bool:
    """Whether the judge verified the kernel in full and a run would call it a winner.

    Only a kernel verified in full has a ratio; others are seeds.
    """
    return outcome.ratio is not None and is_improvement(outcome.ratio, outcome.ratio_low)


def is_as_remembered(best: Attempt | None, recalled: Sequence[Recalled]) -> bool:
    """Whether the best kernel is the remembered winner for this graph, as fast as recorded.

    It may be slower by the factor _AS_REMEMBERED.
    """
    if best is None or best.candidate.task.move is not Move.RECALL:
        return False
    remembered_ms = next(
        (
            outcome.latency_ms
            for outcome in _winners(recalled)
            if outcome.choices == best.candidate.kernel.choices
        ),
        None,
    )
    return (
        remembered_ms is not None and best.measurement.latency_ms <= _AS_REMEMBERED * remembered_ms
    )


def is_as_fast_as_remembered(best_ms: float | None, recalled: Sequence[Recalled]) -> bool:
    """Whether a time is that of the fastest winner remembered for this graph, whoever wrote it.

    It may be slower by the factor _AS_REMEMBERED. False without such a winner.
    """
    times = [outcome.latency_ms for outcome in _winners(recalled) if outcome.latency_ms]
    return bool(times) and best_ms is not None and best_ms <= _AS_REMEMBERED * min(times)


def _winners(recalled: Sequence[Recalled]) -> list[Outcome]:
    return [hit.outcome for hit in recalled if hit.exact and has_won(hit.outcome)]
