"""Where a run is resumed: what an earlier process finished of it, so that it is not done again.

A run that is resumed walks its path from the beginning, for every decision follows from its
records. What was measured, profiled and diagnosed is taken from memory here; what memory offered
when the run began, from the run directory (stages/recall.py); answers of language models, from the
archive of conversations (conversations.py).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kmem.memory.runs.runs import RoundDiagnosis, Verdict
from kmem.memory.store import Memory
from kmem.records import Attempt, Profile, Status


@dataclass(frozen=True, slots=True)
class EarlierWork:
    """What earlier processes of a run finished; all empty for a new run."""

    attempts: Mapping[str, Attempt]  # by kernel hash
    profiles: Mapping[str, Profile]  # by kernel hash
    diagnoses: Mapping[tuple[int, str], RoundDiagnosis]  # by round and kernel hash
    seconds_spent: float = 0.0  # of the run's minutes
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by kernel hash


def find_earlier_work(run_id: str, memory: Memory) -> EarlierWork:
    """Read what memory holds of a run.

    An interrupted attempt says nothing about its kernel, so the attempt is made again.
    """
    return EarlierWork(
        {
            attempt.candidate.kernel.hash: attempt
            for attempt in memory.runs.attempts(run_id)
            if attempt.measurement.status is not Status.INTERRUPTED
        },
        {profile.kernel: profile for profile in memory.runs.profiles(run_id)},
        {(found.round, found.kernel): found for found in memory.runs.diagnoses(run_id)},
        memory.runs.seconds_spent(run_id),
        memory.runs.verdicts(run_id),
    )


def time_over_all_sittings(
    seconds_left: Callable[[], float],
    spent_s: float,
    is_caught_up: Callable[[], bool],
    *,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[], float]:
    """What is left of a run's minutes when earlier sittings have used some of them, in seconds.

    To walk the old path again takes time that the run has paid for already. Until it has caught up,
    its clock stands where the last sitting ended; at most as long as that path took at first.

    Args:
        seconds_left: of a clock that began this sitting with what the earlier ones left.
        spent_s: what earlier sittings used.
        is_caught_up: whether all that they finished has come up again.
    """
    if spent_s <= 0:
        return seconds_left
    began = now()
    walked_s: float | None = None

    def left() -> float:
        nonlocal walked_s
        passed_s = now() - began
        if walked_s is None and is_caught_up():
            walked_s = passed_s
        return seconds_left() + min(passed_s if walked_s is None else walked_s, spent_s)

    return left
