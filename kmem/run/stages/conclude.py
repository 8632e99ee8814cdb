"""Where a run ends: its winner kept, with the next best, and what came of it said.

Which kernels the judge upholds is found in verifying.py.
"""

from kmem.orchestrate.stop import is_improvement
from kmem.records import Attempt, Kernel, Move, RunResult
from kmem.run.report.outlook import find_unverified
from kmem.run.stages.parts import Parts
from kmem.run.stages.verifying import speedup_of
from kmem.run.state.history import History

#: Kernels kept beside the winner, the winner included.
_TOP = 3


def conclude(
    parts: Parts, verified: Attempt | None, why_none: str, reason: str, seconds: float
) -> RunResult:
    """Only a kernel that beats the best baseline is a winner.

    Args:
        verified: the fastest attempt that the judge upholds.
        why_none: why there is none, or why others were not verified; may be empty.
        reason: why the rounds ended.
        seconds: what the run took so far.
    """
    session, history = parts.session, parts.history
    baselines, winner = history.baselines, verified
    speedup = speedup_of(winner.measurement.timing, baselines) if winner else None
    if why_none and history.attempts:
        reason += f"; {why_none}"
    if speedup is not None and not is_improvement(speedup, winner.measurement.timing.ratio_low):
        parts.announce(
            "measure",
            f"the fastest kernel is {speedup:.3f}x the best baseline, which is no improvement",
        )
        reason += "; nothing beat the best baseline"
        winner = speedup = None
    parts.recorder.record_best(winner)
    parts.recorder.record_top(_top_kernels(history, winner))
    bound = session.least_bound(winner.candidate.kernel if winner else None)
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
        verifications_in_time=parts.clock.verifications_in_time,
        unverified_faster=len(
            find_unverified(
                history.attempts, {*history.verdicts, *history.refused}, winner, baselines
            )
        ),
    )


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
