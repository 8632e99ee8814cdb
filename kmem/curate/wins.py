"""The measured improvements of a run: attempts that beat their parent beyond what a rerun moves."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.memory.ledger.outcomes import LedgerEntry
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.memory.skills.standing import Interval
from kmem.memory.store import Memory
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, Kernel, Lesson, Outcome, Run, Status, Timing


@dataclass(frozen=True, slots=True)
class Win:
    """One improvement, with everything that is known about it.

    `outcomes` are what the ledger holds of the winning kernel, oldest first.
    """

    run: Run
    parent: Attempt
    child: Attempt
    effect: Interval
    interval_source: str  # how the interval came about, in words
    before: RoundDiagnosis | None  # of the parent, if it was profiled
    after: RoundDiagnosis | None  # of the child
    # what else the run tried from the same parent with the same skill
    siblings: tuple[Attempt, ...]
    outcomes: tuple[LedgerEntry, ...]
    lessons: tuple[Lesson, ...] = ()  # what the run noted about the winning kernel

    @property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Parent and child."""
        return self.parent.candidate.kernel, self.child.candidate.kernel

    @property
    def skill(self) -> str:
        return self.child.candidate.task.skill

    @property
    def outcome(self) -> Outcome:
        """The first record of the winning kernel."""
        return self.outcomes[0].outcome


def find_wins(memory: Memory, run: Run) -> tuple[list[Win], list[str]]:
    """The wins of a run, in the order they were measured, and why other improvements are no wins.

    Of several attempts from one parent with one skill the one with the largest effect stands for
    all. The parent of a repaired kernel is the nearest ancestor that passed. Estimates are no
    measurements: they are left out without a word. The reasons are one line each.
    """
    attempts = [
        attempt for attempt in memory.runs.attempts(run.id) if not attempt.measurement.estimated
    ]
    by_hash = {attempt.candidate.kernel.hash: attempt for attempt in attempts}
    diagnoses = {
        entry.kernel: entry
        for entry in memory.runs.diagnoses(run.id)
        if not entry.diagnosis.estimated
    }
    lessons = memory.runs.lessons(run.id)
    best: dict[tuple[str, str], Win] = {}
    left_out = []
    for child in attempts:
        parent = _parent(child, by_hash)
        if parent is None or child.measurement.status is not Status.PASSED:
            continue
        parent_hash = parent.candidate.kernel.hash
        child_hash = child.candidate.kernel.hash
        skill = child.candidate.task.skill
        effect, source = measured_effect(
            parent.measurement.timing, child.measurement.timing, parent_hash
        )
        name = f"run {run.id}, kernel {child_hash[:12]}"
        if effect.value < MIN_IMPROVEMENT:
            continue
        if effect.low <= 1.0:
            left_out.append(f"{name}: {effect} is within what a rerun moves")
            continue
        outcomes = memory.ledger.entries(skill=skill, source_hash=child_hash, status=Status.PASSED)
        if not outcomes:
            left_out.append(
                f"{name}: {effect} is not in the ledger (the run had --memory {run.memory_mode}, "
                "or it was retracted)"
            )
            continue
        known = best.get((parent_hash, skill))
        if known is not None and known.effect.value >= effect.value:
            continue
        beside = (parent_hash, _parent_hash(child))
        best[parent_hash, skill] = Win(
            run=run,
            parent=parent,
            child=child,
            effect=effect,
            interval_source=source,
            before=diagnoses.get(parent_hash),
            after=diagnoses.get(child_hash),
            siblings=tuple(
                other
                for other in attempts
                if other is not child
                and other.candidate.task.skill == skill
                and _parent_hash(other) in beside
            ),
            outcomes=tuple(outcomes),
            lessons=tuple(lesson for lesson in lessons if lesson.kernel == child_hash),
        )
    return list(best.values()), left_out


def measured_effect(before: Timing, after: Timing, before_hash: str) -> tuple[Interval, str]:
    """The speedup from one timed kernel to another, and where its interval came from, in words.

    Of two kernels timed pair by pair, the interval is the judge's own. Where both were timed pair
    by pair against one reference, it is the quotient of their two intervals, ends against ends.
    Otherwise it is the quotient of the 20th to 80th percentiles of the two times, ends against
    ends. The last two are wider than a 95% interval of the quotient would be for noise that does
    not drift, and hold without knowing how the noises are related.
    """
    if (
        after.reference == before_hash
        and after.ratio is not None
        and after.ratio_low is not None
        and after.ratio_high is not None
    ):
        return (
            Interval(after.ratio_low, after.ratio, after.ratio_high),
            "95% interval, timed pair by pair",
        )
    ends = (before.ratio_low, before.ratio_high, after.ratio_low, after.ratio_high)
    if after.reference is not None and before.reference == after.reference and None not in ends:
        return (
            Interval(
                after.ratio_low / before.ratio_high,
                after.ratio / before.ratio,
                after.ratio_high / before.ratio_low,
            ),
            f"from the 95% intervals of both against {after.reference}",
        )
    return (
        Interval(
            before.latency_ms_p20 / after.latency_ms_p80,
            before.latency_ms / after.latency_ms,
            before.latency_ms_p80 / after.latency_ms_p20,
        ),
        "from the 20th to 80th percentiles of both times",
    )


def _parent_hash(attempt: Attempt) -> str | None:
    return attempt.candidate.kernel.parent or attempt.candidate.task.parent


def _parent(attempt: Attempt, by_hash: Mapping[str, Attempt]) -> Attempt | None:
    """The nearest ancestor that passed; None if the chain leaves the run first."""
    seen = {attempt.candidate.kernel.hash}
    found = by_hash.get(_parent_hash(attempt) or "")
    while found is not None and found.measurement.status is not Status.PASSED:
        if found.candidate.kernel.hash in seen:
            return None
        seen.add(found.candidate.kernel.hash)
        found = by_hash.get(_parent_hash(found) or "")
    return found
