"""Where a run is resumed: what an earlier process finished of it, so that it is not done again.

A run that is resumed walks its path from the beginning, for every decision follows from its
records. What was measured, profiled and diagnosed is taken from memory here; what memory offered
when the run began, from the run directory (recall.py); answers of language models, from the archive
of conversations (conversations.py).
"""

from collections.abc import Mapping
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
        memory.runs.verdicts(run_id),
    )
