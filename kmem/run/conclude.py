"""The end of a run: judge the fastest attempts in full, keep the winner and the next best, and say
what came of it.
"""

from collections.abc import Sequence
from functools import partial

from kmem.orchestrate.lineage import kind
from kmem.orchestrate.stop import is_improvement
from kmem.records import Attempt, Baseline, Kernel, Move, RunResult, Status, fastest_baseline
from kmem.run.workbench import Workbench

_VERIFY_AT_MOST = 3
#: Kernels kept beside the winner, the winner included.
_TOP = 3


def conclude(bench: Workbench, reason: str, seconds: float) -> RunResult:
    """Verify until one attempt holds, in fresh processes; nothing that does not beat the best
    baseline is a winner.

    Args:
        seconds: what the run took so far.
    """
    session, traced = bench.session, bench.session.traced
    baselines = bench.baselines()
    final, refused = _verify_fastest(bench, baselines)
    speedup = speed_of_light = None
    if final is not None:
        reference = fastest_baseline(baselines)
        timing = final.measurement.timing
        speedup = (
            timing.ratio
            if timing.ratio is not None
            else (reference.timing.latency_ms / timing.latency_ms if reference else None)
        )
        speed_of_light = traced.bound.time_ms / timing.latency_ms if traced.bound else None
        if speedup is not None and not is_improvement(speedup, timing.ratio_low):
            bench.announce(
                "measure",
                f"the fastest kernel is {speedup:.3f}x the best baseline, which is no improvement",
            )
            reason += "; nothing beat the best baseline"
            final = None
            speedup = None
            speed_of_light = None
    elif bench.attempts:
        reason += f"; {refused}"
    bench.keep_best(final)
    bench.keep_top(_top_kernels(bench, final))
    recalled = final is not None and final.candidate.task.move is Move.RECALL
    return RunResult(
        bench.run.id,
        traced.problem.name,
        traced.device.name,
        not session.present,
        final,
        baselines,
        traced.bound,
        speedup,
        speed_of_light,
        recalled,
        bench.measurements,
        seconds,
        reason,
        _flags(final, recalled=recalled),
    )


def _verify_fastest(bench: Workbench, baselines: Sequence[Baseline]) -> tuple[Attempt | None, str]:
    """The fastest attempt that the judge upholds, or why none."""
    refused = "every candidate failed"
    waiting = bench.ranking()
    for _ in range(min(_VERIFY_AT_MOST, len(waiting))):
        attempt = waiting.pop(0)
        verdict = bench.verify(attempt, baselines)
        if verdict.measurement.status is Status.PASSED:
            return verdict, ""
        refused = (
            f"the judge refused the fastest ({verdict.measurement.status.value}): "
            f"{verdict.measurement.log.strip()[:200]}"
        )
        # Kernels that differ from a refused one only in sizes share its arithmetic: those of
        # another kind go first (the sort is stable).
        waiting = sorted(waiting, key=partial(_is_same_kind, attempt))
    return None, refused


def _is_same_kind(one: Attempt, other: Attempt) -> bool:
    return kind(one) == kind(other)


def _top_kernels(bench: Workbench, final: Attempt | None) -> list[Kernel]:
    """The verified winner, then the fastest screened kernels; where nothing won, the fastest
    screened ones.
    """
    others = [
        attempt
        for attempt in bench.ranking()
        if final is None or attempt.candidate.kernel.hash != final.candidate.kernel.hash
    ]
    return [attempt.candidate.kernel for attempt in ([final] if final else []) + others][:_TOP]


def _flags(final: Attempt | None, *, recalled: bool) -> tuple[str, ...]:
    if final is None:
        return ()
    return tuple(
        sorted(
            {
                *final.measurement.flags,
                *final.candidate.kernel.flags,
                *(["recalled"] if recalled else []),
            }
        )
    )
