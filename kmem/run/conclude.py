"""Where the winner is verified: the end of a run.

`conclude` has the judge check the fastest attempt with everything it has, in a fresh process, and
the next fastest where that one is refused. Then it keeps the winner and the next best and says what
came of the run.
"""

from collections.abc import Sequence
from functools import partial

from kmem.orchestrate.lineage import kind
from kmem.orchestrate.stop import is_improvement
from kmem.records import (
    Attempt,
    Baseline,
    Kernel,
    Move,
    RunResult,
    Status,
    Timing,
    fastest_baseline,
)
from kmem.run.history import History
from kmem.run.parts import Parts

_VERIFY_AT_MOST = 3
#: Kernels kept beside the winner, the winner included.
_TOP = 3


def conclude(parts: Parts, reason: str, seconds: float) -> RunResult:
    """Verify until one attempt holds; only a kernel that beats the best baseline is a winner.

    Args:
        reason: why the rounds ended.
        seconds: what the run took so far.
    """
    session, history = parts.session, parts.history
    bound = session.traced.bound
    baselines = parts.baselines.wait()
    winner, refused = _verify_fastest(parts, baselines)
    speedup = _speedup(winner.measurement.timing, baselines) if winner else None
    if winner is None and history.attempts:
        reason += f"; {refused}"
    elif speedup is not None and not is_improvement(speedup, winner.measurement.timing.ratio_low):
        parts.announce(
            "measure",
            f"the fastest kernel is {speedup:.3f}x the best baseline, which is no improvement",
        )
        reason += "; nothing beat the best baseline"
        winner = speedup = None
    parts.recorder.record_best(winner)
    parts.recorder.record_top(_top_kernels(history, winner))
    recalled = winner is not None and winner.candidate.task.move is Move.RECALL
    return RunResult(
        run=parts.run.id,
        problem=session.traced.problem.name,
        target=session.traced.device.name,
        estimated=not session.present,
        best=winner,
        baselines=baselines,
        bound=bound,
        speedup=speedup,
        speed_of_light=bound.time_ms / winner.measurement.latency_ms if bound and winner else None,
        recalled=recalled,
        measurements=history.measurements,
        seconds=seconds,
        reason=reason,
        flags=_flags(winner, recalled=recalled),
        looks_in_time=parts.clock.looks_in_time,
    )


def _verify_fastest(parts: Parts, baselines: Sequence[Baseline]) -> tuple[Attempt | None, str]:
    """The fastest attempt that the judge upholds, or why none."""
    refused = "every candidate failed"
    waiting = parts.history.ranking()
    for _ in range(min(_VERIFY_AT_MOST, len(waiting))):
        attempt = waiting.pop(0)
        verified = parts.measurer.verify(attempt, baselines)
        if verified.measurement.status is Status.PASSED:
            return verified, ""
        refused = (
            f"the judge refused the fastest ({verified.measurement.status.value}): "
            f"{verified.measurement.log.strip()[:200]}"
        )
        # Kernels that differ from a refused one only in sizes share its arithmetic: those of
        # another kind go first (the sort is stable).
        waiting = sorted(waiting, key=partial(_is_same_kind, attempt))
    return None, refused


def _is_same_kind(one: Attempt, other: Attempt) -> bool:
    return kind(one) == kind(other)


def _speedup(timing: Timing, baselines: Sequence[Baseline]) -> float | None:
    """Timed in pairs against the best baseline, or else from the two times; None without one."""
    if timing.ratio is not None:
        return timing.ratio
    reference = fastest_baseline(baselines)
    return reference.timing.latency_ms / timing.latency_ms if reference else None


def _top_kernels(history: History, winner: Attempt | None) -> list[Kernel]:
    """The verified winner, if there is one, then the fastest screened kernels."""
    first = [winner.candidate.kernel] if winner else []
    others = [
        attempt.candidate.kernel
        for attempt in history.ranking()
        if not first or attempt.candidate.kernel.hash != first[0].hash
    ]
    return [*first, *others][:_TOP]


def _flags(winner: Attempt | None, *, recalled: bool) -> tuple[str, ...]:
    if winner is None:
        return ()
    flags = {*winner.measurement.flags, *winner.candidate.kernel.flags}
    return tuple(sorted(flags | ({"recalled"} if recalled else set())))
