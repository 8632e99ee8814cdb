"""The end of a report: why a run stopped, and what would be tried next.

A pure function of a run's records, so that it says the same whenever it is asked.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from kmem.memory.runs.runs import RoundDiagnosis, Verdict
from kmem.orchestrate.accuracy import near_miss
from kmem.orchestrate.stop import has_gained
from kmem.records import Attempt, Baseline, RunResult, Status, fastest_baseline

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


def find_unverified(
    attempts: Sequence[Attempt],
    judged: Collection[str],
    best: Attempt | None,
    baselines: Sequence[Baseline],
) -> list[Attempt]:
    """Candidates timed faster than the answer that no final verdict was given on.

    Args:
        judged: hashes of the kernels with a final verdict.
        best: the answer; None if it is the best baseline.
    """
    baseline = fastest_baseline(baselines)
    answer_ms = baseline.timing.latency_ms if baseline else math.inf
    if best is not None:  # as it was screened: final times are taken otherwise
        answer_ms = min(
            attempt.measurement.latency_ms
            for attempt in (*attempts, best)
            if attempt.candidate.kernel.hash == best.candidate.kernel.hash
        )
    return [
        attempt
        for attempt in attempts
        if attempt.measurement.status is Status.PASSED
        and attempt.candidate.kernel.hash not in judged
        and has_gained(answer_ms, attempt.measurement.latency_ms)
    ]


def _unverified(
    result: RunResult, attempts: Sequence[Attempt], verdicts: Mapping[str, Verdict]
) -> list[str]:
    judged = [
        kernel_hash
        for kernel_hash, verdict in verdicts.items()
        if verdict.measurement.status is not Status.INTERRUPTED
    ]
    waiting = find_unverified(attempts, judged, result.best, result.baselines)
    if not waiting:
        return []
    fastest_ms = min(attempt.measurement.latency_ms for attempt in waiting)
    return [
        f"verify {len(waiting)} candidates that were timed faster than the answer (the fastest at "
        f"{fastest_ms:.4g} ms): give more --minutes"
    ]


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
