"""All that memory has of one run, gathered once for its pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.devices import TARGETS
from kmem.memory.runs.entries import RunEntry
from kmem.memory.runs.runs import RoundDiagnosis, RoundPlan, Verdict
from kmem.memory.store import Memory
from kmem.records import (
    Attempt,
    Baseline,
    Bound,
    Lesson,
    Profile,
    Run,
    RunResult,
    fastest_baseline,
)
from kmem.run.directory import seen_state
from kmem.ui.figures import Origin


@dataclass(frozen=True, slots=True)
class RunStory:
    """A run as its pages tell it, finished or not."""

    entry: RunEntry
    state: str  # as it is seen: "killed" for a run that ended without a word
    attempts: Sequence[Attempt]
    diagnoses: Sequence[RoundDiagnosis]
    plans: Sequence[RoundPlan]
    lessons: Sequence[Lesson]
    verdicts: Mapping[str, Verdict]
    profiles: Sequence[Profile]
    baselines: Sequence[Baseline]
    seconds_spent: float

    @property
    def run(self) -> Run:
        return self.entry.run

    @property
    def result(self) -> RunResult | None:
        return self.entry.result

    @property
    def bound(self) -> Bound | None:
        """What the module needs at least; while the run is at work, as its profiles have it."""
        if self.result is not None:
            return self.result.bound
        known = [profile.bound for profile in self.profiles if profile.bound is not None]
        return known[0] if known else None

    @property
    def best(self) -> Attempt | None:
        """The winner, or the fastest attempt so far."""
        if self.result is not None and self.result.best is not None:
            return self.result.best
        passed = [each for each in self.attempts if each.measurement.latency_ms is not None]
        return min(passed, key=lambda each: each.measurement.latency_ms or 0.0, default=None)

    @property
    def baseline(self) -> Baseline | None:
        """The fastest way to run the unmodified module."""
        return fastest_baseline(self.baselines)

    @property
    def origin(self) -> Origin:
        """Where the figures of this run come from."""
        return Origin(self.is_estimated, self.run.target, self.run.created_at)

    @property
    def is_estimated(self) -> bool:
        """Whether its times are estimates; of a run without any yet, what its attempts say."""
        if self.result is not None:
            return self.result.estimated
        return any(attempt.measurement.estimated for attempt in self.attempts)


def read_story(memory: Memory, run_id: str) -> RunStory:
    """A run (id, or its unique beginning) with all that is known of it.

    Raises MemoryStoreError if there is none.
    """
    run = memory.runs.get(run_id)
    entry = memory.run_entries.one(run.id)
    result = entry.result
    return RunStory(
        entry,
        seen_state(entry.state, Path(run.out_dir)),
        memory.runs.attempts(run.id),
        memory.runs.diagnoses(run.id),
        memory.runs.plans(run.id),
        memory.runs.lessons(run.id),
        memory.runs.verdicts(run.id),
        memory.runs.profiles(run.id),
        result.baselines if result is not None else _known_baselines(memory, run),
        memory.runs.seconds_spent(run.id),
    )


def _known_baselines(memory: Memory, run: Run) -> Sequence[Baseline]:
    """The baselines of a run at work: those measured last for its module on its device."""
    device = TARGETS.get(run.target)
    if device is None:
        return ()
    return memory.devices.latest_baselines(
        run.problem.hash, device.full_name, run.contract.precision
    )
