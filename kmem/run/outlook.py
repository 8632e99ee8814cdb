"""The end of a report: why a run stopped, and what would be tried next.

A pure function of a run's records, so that it says the same whenever it is asked.
"""

import math
from collections.abc import Mapping, Sequence

from kmem.memory.runs.runs import RoundDiagnosis, Verdict
from kmem.orchestrate.accuracy import near_miss
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, RunResult, Status, fastest_baseline

#: Skills named at most.
_SKILLS = 3


def describe_outlook(
    result: RunResult,
    attempts: Sequence[Attempt],
    diagnoses: Sequence[RoundDiagnosis],
    verdicts: Mapping[str, Verdict],
) -> list[str]:
    """Why the run stopped, the headroom, and what is open, in lines of Markdown.

    Args:
        attempts: as they were screened, oldest first.
        verdicts: the final ones, by kernel hash.
    """
    lines = [f"It stopped because {result.reason}."]
    if result.speed_of_light is not None and result.speed_of_light < 1.0:
        lines.append(
            f"The bound leaves a factor of {1 / result.speed_of_light:.2f} at most to this kernel."
        )
    open_ends = [
        *_unverified(result, attempts, verdicts),
        *_narrowly_refused(attempts, verdicts),
        *_untried(attempts, diagnoses),
        *_untimed(result),
    ]
    if not open_ends:
        return [*lines, "", "Nothing is open that this run knows of: another seed or author may."]
    return [*lines, "", "Next would be:", "", *(f"- {line}" for line in open_ends)]


def _unverified(
    result: RunResult, attempts: Sequence[Attempt], verdicts: Mapping[str, Verdict]
) -> list[str]:
    """Candidates timed faster than the answer that no final verdict was given on."""
    answer = result.best.measurement if result.best else fastest_baseline(result.baselines)
    answer_ms = answer.timing.latency_ms if answer else math.inf
    waiting = [
        attempt
        for attempt in attempts
        if attempt.measurement.status is Status.PASSED
        and not _has_verdict(attempt, verdicts)
        and attempt.measurement.latency_ms * MIN_IMPROVEMENT < answer_ms
    ]
    if not waiting:
        return []
    fastest_ms = min(attempt.measurement.latency_ms for attempt in waiting)
    return [
        f"verify {len(waiting)} candidates that were timed faster than the answer (the fastest at "
        f"{fastest_ms:.4g} ms): give more --minutes"
    ]


def _has_verdict(attempt: Attempt, verdicts: Mapping[str, Verdict]) -> bool:
    verdict = verdicts.get(attempt.candidate.kernel.hash)
    return verdict is not None and verdict.measurement.status is not Status.INTERRUPTED


def _narrowly_refused(attempts: Sequence[Attempt], verdicts: Mapping[str, Verdict]) -> list[str]:
    """Kernels refused by a hair of which nothing more accurate was tried."""
    climbed = {attempt.candidate.kernel.parent for attempt in attempts}
    found: list[tuple[float, str]] = []
    for attempt in attempts:
        kernel = attempt.candidate.kernel
        verdict = verdicts.get(kernel.hash)
        measurement = verdict.measurement if verdict else attempt.measurement
        error = near_miss(measurement)
        if error is not None and kernel.hash not in climbed:
            found.append(
                (
                    error.excess,
                    f"better sums in {attempt.candidate.task.skill}: a kernel of it missed the "
                    f"accuracy contract by a factor of {error.excess:.2g} on family "
                    f"{error.family}, and its precision ladder ends there",
                )
            )
    return [min(found)[1]] if found else []


def _untried(attempts: Sequence[Attempt], diagnoses: Sequence[RoundDiagnosis]) -> list[str]:
    """Skills that the last diagnosis offered and nobody tried."""
    if not diagnoses:
        return []
    tried = {attempt.candidate.task.skill for attempt in attempts}
    tried |= {choice.recipe for attempt in attempts for choice in attempt.candidate.kernel.choices}
    last = max(diagnoses, key=lambda entry: entry.round)
    offered = [entry for entry in last.prescriptions if entry.skill not in tried]
    return [
        f"`{entry.skill}`, offered and not tried ({', '.join(entry.reasons)})"
        for entry in offered[:_SKILLS]
    ]


def _untimed(result: RunResult) -> list[str]:
    return [
        f"time baseline {baseline.name}, whose time was up: give more --baseline-minutes"
        for baseline in result.baselines
        if baseline.timed_out
    ]
