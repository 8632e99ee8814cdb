"""A round of a run whole, for `kmem runs show --round`: what was seen, asked, answered, tried,
measured and learnt.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmem.cli.why import describe_round, round_data
from kmem.errors import MemoryStoreError

if TYPE_CHECKING:
    from kmem.interfaces import CompletionRecord
    from kmem.memory.runs.runs import RoundDiagnosis
    from kmem.memory.store import Memory
    from kmem.records import Attempt, Lesson, Measurement, Plan, Profile


@dataclass(frozen=True, slots=True)
class WholeRound:
    """Everything that was kept of one round."""

    number: int
    diagnoses: "list[RoundDiagnosis]"
    plan: "Plan | None"
    attempts: "list[Attempt]"
    lessons: "list[Lesson]"
    conversations: "list[CompletionRecord]"
    profiles: "list[Profile]"  # of the round's kernels and of those it went on from
    verdicts: "dict[str, Measurement]"  # final ones, of the round's kernels


def read_round(memory: "Memory", run_id: str, number: int) -> WholeRound:
    """One round of a run (full id). Raises MemoryStoreError if nothing of it was kept."""
    plans = {entry.round: entry.plan for entry in memory.runs.plans(run_id)}
    diagnoses = [entry for entry in memory.runs.diagnoses(run_id) if entry.round == number]
    attempts = [attempt for attempt in memory.runs.attempts(run_id) if attempt.round == number]
    if number not in plans and not diagnoses and not attempts:
        known = (
            f"it has rounds {', '.join(map(str, sorted(plans)))}"
            if plans
            else "no round of it was kept"
        )
        raise MemoryStoreError(f"Run {run_id} has no round {number}; {known}")
    own = {attempt.candidate.kernel.hash for attempt in attempts}
    seen = own | {entry.kernel for entry in diagnoses}
    return WholeRound(
        number,
        diagnoses,
        plans.get(number),
        attempts,
        [lesson for lesson in memory.runs.lessons(run_id) if lesson.round == number],
        [record for record in memory.conversations.all(run_id) if record.key.round == number],
        [profile for profile in memory.runs.profiles(run_id) if profile.kernel in seen],
        {
            kernel: verdict
            for kernel, verdict in memory.runs.verdicts(run_id).items()
            if kernel in own
        },
    )


def describe_whole_round(found: WholeRound) -> str:
    """The round for people."""
    from kmem.run.conversations import render_conversation

    lines = [
        describe_round(found.number, found.diagnoses, found.plan, found.attempts, found.lessons)
    ]
    for profile in found.profiles:
        times = ", ".join(
            f"{launch.name} {launch.duration_ms:.4g} ms"
            for launch in profile.launches
            if launch.duration_ms is not None
        )
        kind = " (estimated)" if profile.estimated else ""
        lines.append(
            f"Profile of kernel {profile.kernel[:12]} by {profile.profiler}{kind}: "
            f"{times or f'{len(profile.launches)} launches'}"
        )
    lines += [f"\n{render_conversation(record)}" for record in found.conversations]
    for attempt in found.attempts:
        task = attempt.candidate.task
        measurement = attempt.measurement
        kernel = attempt.candidate.kernel
        time = (
            f", {measurement.latency_ms:.4g} ms{' est.' if measurement.estimated else ''}"
            if measurement.latency_ms is not None
            else ""
        )
        lines.append(
            f"\n"
            f"==== candidate {kernel.hash[:12]}: {task.move.value} {task.skill}, "
            f"{measurement.status.value}{time}"
        )
        lines.append(kernel.source)
        if measurement.log:
            lines.append(f"---- log\n{measurement.log}")
        if kernel.hash in found.verdicts:
            lines.append(f"---- final verdict: {found.verdicts[kernel.hash].status.value}")
    return "\n".join(lines)


def whole_round_data(found: WholeRound) -> dict[str, object]:
    """The round for programs: what `kmem why --json` says, with conversations, whole attempts,
    profiles and verdicts.
    """
    from kmem.serialize import to_data

    return {
        **round_data(found.number, found.diagnoses, found.plan, found.attempts, found.lessons),
        "conversations": [to_data(record) for record in found.conversations],
        "attempts": [to_data(attempt) for attempt in found.attempts],
        "profiles": [to_data(profile) for profile in found.profiles],
        "verdicts": {kernel: to_data(verdict) for kernel, verdict in found.verdicts.items()},
    }
