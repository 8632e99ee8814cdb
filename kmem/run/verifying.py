"""The final verdicts: the fastest kernels before the judge with everything it has, and repairs.

`verify_early` gives a run an answer as soon as there is a kernel worth one. `verify_ranking` ends a
run: it goes down the ranking until a kernel holds or the minutes are over. Whatever the judge
refuses goes back to its author on the way, and what comes back takes its place in the ranking.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kmem.interfaces import Situation
from kmem.orchestrate.lineage import base_of, kind
from kmem.orchestrate.stop import is_improvement
from kmem.recipes import ACCURACY
from kmem.records import Attempt, Baseline, Measurement, Status, Timing, fastest_baseline
from kmem.run.authors import Authors
from kmem.run.history import History
from kmem.run.parts import Parts

#: A kernel counts as timed faster than the baseline up to this ratio of their times: the two were
#: not timed in pairs, and apart they vary by a few per cent.
_MAY_BE_FASTER = 1.02


def verify_early(
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
    *,
    wait: bool = False,
) -> None:
    """Verify the best kernel so far, if none is verified and the quick baselines are timed.

    A run that is resumed or replayed verifies early where it did before, whatever is known now.

    Args:
        situations: of the round, for what is repaired.
        wait: for the quick baselines, because the search cannot go on without the verdict.
    """
    history, best = parts.history, parts.history.best
    if best is None or not parts.session.present or history.has_verified:
        return
    earlier = history.earlier
    recorded, place = earlier.verdicts.get(best.candidate.kernel.hash), len(history.attempts)
    is_due = recorded is not None and recorded.early and recorded.attempts == place
    is_known = place < len(earlier.attempts)  # what happened here is on record
    is_ready = not is_known and parts.clock.is_ready(parts.baselines.is_quick_known)
    if not (is_due or is_ready or wait):
        return
    baselines = parts.baselines.wait_for_quick(max(0.0, parts.clock.seconds_left))
    if not _may_be_faster(best, baselines):
        return
    verified = parts.measurer.verify(best, baselines, early=True)
    timing = verified.measurement.timing
    if timing is None:
        _mend(verified, parts, situations, authors)
        return
    against = "" if timing.ratio is None else f", {timing.ratio:.2f}x {timing.reference}"
    seconds = 60 * parts.run.budget.minutes - parts.clock.run_seconds_left
    after = f" after {seconds:.0f} s" if math.isfinite(seconds) else ""
    parts.announce("measure", f"first verified kernel{after}: {timing.latency_ms:.4g} ms{against}")


def verify_ranking(parts: Parts, authors: Authors, blank: Situation) -> tuple[Attempt | None, str]:
    """The fastest attempt that the judge upholds, with its verdict; or None, and why none.

    First against the baselines that are quick to time, then against all of them, for which a run
    waits here.

    Args:
        blank: a situation without a parent kernel, for what is repaired.
    """
    history = parts.history
    why = "every candidate failed"
    # the part of the minutes that is kept for the verdicts is not spent on waiting
    quick = parts.baselines.wait_for_quick(max(0.0, parts.clock.seconds_left))
    why = _go_down(parts, authors, blank, quick) or why
    why = _go_down(parts, authors, blank, parts.baselines.wait()) or why
    for attempt in history.ranking():
        verdict = history.verdicts.get(attempt.candidate.kernel.hash)
        if verdict is not None:
            return replace(attempt, measurement=verdict), why if "minutes" in why else ""
    return None, why


def _go_down(
    parts: Parts, authors: Authors, blank: Situation, baselines: Sequence[Baseline]
) -> str:
    """Verify what is worth it; why the last kernel was refused, or what kept others from it."""
    history, why = parts.history, ""
    asked: set[str] = set()
    while (attempt := _next_to_verify(history, baselines, asked)) is not None:
        asked.add(attempt.candidate.kernel.hash)
        # a winner in hand is timed against a baseline that came late, whatever the minutes say
        is_due = attempt.candidate.kernel.hash in history.verdicts or not history.was_verified
        if not parts.clock.may_verify(is_first=is_due):
            return "the minutes ended before every faster candidate was verified"
        verified = parts.measurer.verify(attempt, baselines)
        measurement = verified.measurement
        if measurement.status is Status.INTERRUPTED:
            return "the minutes ended while the fastest candidate was verified"
        if measurement.status is not Status.PASSED:
            why = (
                f"the judge refused the fastest ({measurement.status.value}): "
                f"{measurement.log.strip()[:200]}"
            )
            base = base_of(verified.candidate.task, history.attempts)
            _mend(verified, parts, {base: blank}, authors)
    return why


def _next_to_verify(
    history: History, baselines: Sequence[Baseline], asked: Collection[str]
) -> Attempt | None:
    """What to verify next; None if the fastest that holds beats the baseline, or nothing may.

    Kernels that differ from a refused one only in sizes share its arithmetic: others go first.

    Args:
        asked: hashes of kernels that have been verified against these very baselines.
    """
    refused = {
        _arithmetic(attempt)
        for attempt in history.attempts
        if attempt.candidate.kernel.hash in history.refused
    }
    ranking = sorted(history.ranking(), key=lambda attempt: _arithmetic(attempt) in refused)
    for attempt in ranking:
        kernel_hash = attempt.candidate.kernel.hash
        verdict = history.verdicts.get(kernel_hash)
        if verdict is None or (kernel_hash not in asked and not _is_current(verdict, baselines)):
            if not history.was_verified or _may_be_faster(attempt, baselines):
                return attempt
        elif is_winner(verdict.timing, baselines):
            return None
    return None


def _is_current(verdict: Measurement, baselines: Sequence[Baseline]) -> bool:
    """Whether a verdict was timed in pairs against the baseline that is the fastest now."""
    best, timing = fastest_baseline(baselines), verdict.timing
    return best is None or timing is None or verdict.estimated or timing.reference == best.name


def _may_be_faster(attempt: Attempt, baselines: Sequence[Baseline]) -> bool:
    best = fastest_baseline(baselines)
    time_ms = attempt.measurement.latency_ms
    return best is None or time_ms is None or time_ms <= _MAY_BE_FASTER * best.timing.latency_ms


def is_winner(timing: Timing | None, baselines: Sequence[Baseline]) -> bool:
    """Whether a verified kernel beats the best baseline, or there is none to beat."""
    speedup = speedup_of(timing, baselines)
    return timing is not None and (speedup is None or is_improvement(speedup, timing.ratio_low))


def speedup_of(timing: Timing | None, baselines: Sequence[Baseline]) -> float | None:
    """Timed in pairs against the best baseline, or else from the two times; None without one."""
    best = fastest_baseline(baselines)
    if timing is None or best is None:
        return timing.ratio if timing else None
    if timing.ratio is not None and timing.reference in (None, best.name):
        return timing.ratio
    return best.timing.latency_ms / timing.latency_ms


def _arithmetic(attempt: Attempt) -> tuple[object, ...]:
    """What decides how a kernel rounds: recipes, their knobs of kind, and their rungs."""
    rungs = [dict(choice.knobs).get(ACCURACY) for choice in attempt.candidate.kernel.choices]
    return kind(attempt), tuple(rungs)


def _mend(
    refused: Attempt,
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
) -> None:
    """Candidates in place of one that a final verdict refused, measured at once."""
    candidates = authors.write_repairs([refused], situations)
    while candidates:
        measured = parts.measurer.measure(refused.round, candidates, situations)
        candidates = authors.write_repairs(measured, situations)
