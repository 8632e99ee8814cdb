"""The final verdicts: the fastest kernels before the judge with everything it has, and repairs.

`verify_early` gives a run an answer as soon as there is a kernel worth one. `verify_ranking` ends a
run: it goes down the ranking until a kernel holds or the minutes are over. Whatever the judge
refuses goes back to its author on the way, and what comes back takes its place in the ranking.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from kmem.interfaces import Situation
from kmem.measure.competition import Awaited
from kmem.measure.examine.examination import CUT_OFF
from kmem.orchestrate.lineage import base_of, kind
from kmem.orchestrate.stop import has_gained, is_improvement
from kmem.recipes import ACCURACY
from kmem.records import Attempt, Baseline, Measurement, Status, Timing, fastest_baseline
from kmem.run.stages.authors import Authors
from kmem.run.stages.parts import Parts
from kmem.run.state.history import History

#: A kernel counts as timed faster than the baseline up to this ratio of their times: the two were
#: not timed in pairs, and apart they vary by a few per cent.
_MAY_BE_FASTER = 1.02
#: Where kernels were timed in pairs with the baseline, its time beside them is known: another that
#: was not timed faster than the baseline counts up to this ratio of that time.
_BY_PAIRS = 1.005
#: How long a kernel waits for the first baseline, in seconds: a verdict on one that is slower than
#: eager takes longer.
_FIRST_BASELINE_S = 4.0
#: How long a kernel that passed every check of an early verdict waits for torch.compile, in
#: seconds.
_QUICK_BASELINES_S = 8.0


def verify_early(
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
    *,
    wait: bool = False,
) -> None:
    """Verify the best kernel so far, unless one that beats the quick baselines is verified.

    The judge checks it while these are still timed. What it refuses is repaired, and what comes
    back is verified at once. A run that is resumed or replayed verifies early where it did before,
    whatever is known now.

    Args:
        situations: of the round, for what is repaired.
        wait: for the quick baselines, because the search cannot go on without the verdict.
    """
    while (best := _early_candidate(parts)) is not None:
        baselines = _early_baselines(parts, best, wait=wait)
        if baselines is None:
            return
        verified = parts.measurer.verify(best, baselines, early=True)
        timing = verified.measurement.timing
        if timing is not None:
            parts.baselines.let_tune()
            _announce_verified(parts, timing)
            return
        if verified.measurement.status is Status.INTERRUPTED:
            return
        _mend(verified, parts, situations, authors)


def _early_candidate(parts: Parts) -> Attempt | None:
    """The best kernel so far, if it has no verdict, nor has its arithmetic been refused."""
    history, best = parts.history, parts.history.best
    if best is None or not parts.session.present or best.candidate.kernel.hash in history.verdicts:
        return None
    return None if _arithmetic(best) in _refused_arithmetic(history) else best


def _early_baselines(
    parts: Parts, best: Attempt, *, wait: bool
) -> Sequence[Baseline] | Awaited | None:
    """What to verify the best kernel against now; None if that is not due."""
    history, clock = parts.history, parts.clock
    baselines, place = parts.baselines, len(history.attempts)
    recorded = history.earlier.verdicts.get(best.candidate.kernel.hash)
    if recorded is not None and recorded.early and recorded.attempts == place:
        return baselines.wait_for_quick(max(0.0, clock.seconds_left))
    if wait:
        found = baselines.wait_for_quick(max(0.0, clock.seconds_left))
        return found if _may_be_faster(best, found, history) and not _has_winner(history) else None
    # what happened here is on record, or there is no time
    if place < len(history.earlier.attempts) or not clock.is_ready(clock.seconds_left > 0):
        return None
    found = baselines.wait_for_first(min(_FIRST_BASELINE_S, clock.seconds_left))
    if not found or not _may_be_faster(best, found, history) or _has_winner(history):
        return None
    if baselines.is_quick_known:
        return found
    return Awaited(_patience(parts), lambda: baselines.wait_for_quick(0.0))


def _patience(parts: Parts) -> Callable[[], bool]:
    """Whether a checked kernel is to wait no longer for the quick baselines, from the first look.

    A large module compiles for a minute, in which the search goes on; its kernel is then timed
    again.
    """
    began: float | None = None

    def is_over() -> bool:
        nonlocal began
        if began is None:
            began = time.monotonic()
        is_late = time.monotonic() - began >= _QUICK_BASELINES_S or parts.clock.seconds_left <= 0
        return is_late or parts.baselines.is_quick_known

    return is_over


def _announce_verified(parts: Parts, timing: Timing) -> None:
    against = "" if timing.ratio is None else f", {timing.ratio:.2f}x {timing.reference}"
    if not is_winner(timing, parts.history.baselines):
        parts.announce(
            "measure", f"verified, and no improvement: {timing.latency_ms:.4g} ms{against}"
        )
        return
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
            is_open = "minutes" in why or "no verdict" in why
            return replace(attempt, measurement=verdict), why if is_open else ""
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
        if measurement.log == CUT_OFF:
            return "the minutes ended while the fastest candidate was verified"
        if measurement.status is Status.INTERRUPTED:
            why = f"the fastest has no verdict: {measurement.log.strip()[:200]}"
        elif measurement.status is not Status.PASSED:
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
    """What to verify next; None if nothing was timed faster than a winner in hand, or nothing may.

    Kernels that differ from a refused one only in sizes share its arithmetic: others go first.

    Args:
        asked: hashes of kernels that have been verified against these very baselines.
    """
    refused = _refused_arithmetic(history)
    ranking = sorted(history.ranking(), key=lambda attempt: _arithmetic(attempt) in refused)
    to_beat_ms = math.inf  # by the fastest that holds
    for attempt in ranking:
        kernel_hash, time_ms = attempt.candidate.kernel.hash, attempt.measurement.latency_ms
        if not has_gained(to_beat_ms, time_ms):
            continue
        verdict, was_asked = history.verdicts.get(kernel_hash), kernel_hash in asked
        if was_asked and verdict is None:
            continue  # the judge came to none
        if verdict is None or (not was_asked and not _is_current(verdict, baselines)):
            if not history.was_verified or _may_be_faster(attempt, baselines, history):
                return attempt
        elif is_winner(verdict.timing, baselines):
            to_beat_ms = time_ms
    return None


def _refused_arithmetic(history: History) -> set[tuple[object, ...]]:
    """Of all kernels that a final verdict refused."""
    return {
        _arithmetic(attempt)
        for attempt in history.attempts
        if attempt.candidate.kernel.hash in history.refused
    }


def _has_winner(history: History) -> bool:
    """Whether a kernel was verified that beats the baselines that are known."""
    return any(
        is_winner(verdict.timing, history.baselines) for verdict in history.verdicts.values()
    )


def _is_current(verdict: Measurement, baselines: Sequence[Baseline]) -> bool:
    """Whether a verdict was timed in pairs against the baseline that is the fastest now."""
    best, timing = fastest_baseline(baselines), verdict.timing
    return best is None or timing is None or verdict.estimated or timing.reference == best.name


def _may_be_faster(attempt: Attempt, baselines: Sequence[Baseline], history: History) -> bool:
    """Whether a kernel was timed faster than the best baseline, or by so little slower."""
    best, time_ms = fastest_baseline(baselines), attempt.measurement.latency_ms
    if best is None or time_ms is None or time_ms <= best.timing.latency_ms:
        return True
    limit_ms = _MAY_BE_FASTER * best.timing.latency_ms
    in_pairs = [
        each.measurement.latency_ms * timing.ratio
        for each in history.ranking()
        if (timing := _timing_of(each, history)) is not None
        and timing.reference == best.name
        and timing.ratio is not None
        and each.measurement.latency_ms is not None
    ]
    if in_pairs:
        limit_ms = min(limit_ms, _BY_PAIRS * median(in_pairs))
    return time_ms <= limit_ms


def _timing_of(attempt: Attempt, history: History) -> Timing | None:
    verdict = history.verdicts.get(attempt.candidate.kernel.hash)
    return verdict.timing if verdict is not None else None


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
