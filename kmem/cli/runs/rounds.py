"""What was kept of a round of a run: its words for people, and its data for programs.

`kmem why` shows a `Round`: what was seen, offered, decided, got and learnt. `kmem runs show
--round` shows a `WholeRound`: also what was asked and answered, every candidate, the profiles and
the final verdicts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kmem.cli.display.diagnosis import describe_diagnosis
from kmem.errors import MemoryStoreError
from kmem.interfaces import CompletionRecord
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.memory.store import Memory
from kmem.orchestrate.vetoes import describe_check
from kmem.records import Attempt, Claim, Lesson, Measurement, Plan, Profile
from kmem.run.report.finished import describe_unjudged
from kmem.run.state.conversations import render_conversation
from kmem.serialize import to_data


@dataclass(frozen=True, slots=True)
class Round:
    """A round with its reasons; `diagnoses` has the fastest kernel gone on from first."""

    number: int
    diagnoses: list[RoundDiagnosis]
    plan: Plan | None
    attempts: list[Attempt]
    lessons: list[Lesson]


@dataclass(frozen=True, slots=True)
class WholeRound:
    """Everything that was kept of one round."""

    round: Round
    conversations: list[CompletionRecord]
    profiles: list[Profile]  # of the round's kernels and of those it went on from
    verdicts: dict[str, Measurement]  # final ones, of the round's kernels


def read_rounds(memory: Memory, run_id: str) -> dict[int, Round]:
    """Every round of a run (full id) of which anything was kept, by number and in order."""
    diagnoses = memory.runs.diagnoses(run_id)
    plans = {entry.round: entry.plan for entry in memory.runs.plans(run_id)}
    attempts = memory.runs.attempts(run_id)
    lessons = memory.runs.lessons(run_id)
    numbers = {entry.round for entry in (*diagnoses, *attempts)} | set(plans)
    return {
        number: Round(
            number,
            [entry for entry in diagnoses if entry.round == number],
            plans.get(number),
            [attempt for attempt in attempts if attempt.round == number],
            [lesson for lesson in lessons if lesson.round == number],
        )
        for number in sorted(numbers)
    }


def read_whole_round(memory: Memory, run_id: str, number: int) -> WholeRound:
    """One round of a run (full id).

    Raises MemoryStoreError if nothing of it was kept.
    """
    rounds = read_rounds(memory, run_id)
    if number not in rounds:
        planned = [other.number for other in rounds.values() if other.plan is not None]
        raise no_such_round(run_id, number, planned)
    found = rounds[number]
    own = {attempt.candidate.kernel.hash for attempt in found.attempts}
    seen = own | {entry.kernel for entry in found.diagnoses}
    return WholeRound(
        found,
        [record for record in memory.conversations.all(run_id) if record.key.round == number],
        [profile for profile in memory.runs.profiles(run_id) if profile.kernel in seen],
        {
            kernel: verdict.measurement
            for kernel, verdict in memory.runs.verdicts(run_id).items()
            if kernel in own
        },
    )


def no_such_round(run_id: str, number: int, rounds: Iterable[int]) -> MemoryStoreError:
    """The error for a round that a run does not have, which names those that it has."""
    numbers = ", ".join(map(str, rounds))
    known = f"it has rounds {numbers}" if numbers else "no round of it was kept"
    return MemoryStoreError(f"Run {run_id} has no round {number}; {known}")


def describe_round(found: Round) -> str:
    """A round for people: what was seen of each kernel, offered, decided, got and learnt."""
    lines = [f"Round {found.number}"]
    if not found.diagnoses:
        reason = "none, nothing had been measured yet" if found.number == 0 else "none was made"
        lines.append(f"  Diagnosis: {reason}")
    for entry in found.diagnoses:
        lines.append(f"  Diagnosis of kernel {entry.kernel[:12]}")
        lines += [f"    {line}" for line in describe_diagnosis(entry.diagnosis).splitlines()]
        for prescription in entry.prescriptions:
            lines.append(f"  Offered: {prescription.skill} (score {prescription.score:.3f})")
            lines += [f"    - {reason}" for reason in prescription.reasons]
            if prescription.claims:
                lines.append(f"    - predicts {_listed(prescription.claims)}")
    if found.plan is not None:
        lines.append(f"  Plan: {found.plan.reason}")
        lines += [
            f"    {task.move.value} {task.skill}, {task.samples} candidates: {task.reason}"
            for task in found.plan.tasks
        ]
        lines += [f"    vetoed {veto.skill}: {veto.reason}" for veto in found.plan.vetoes]
    if found.attempts:
        lines.append(f"  Came of it: {_describe_attempts(found)}")
        lines += [f"    {line}" for line in _describe_predictions(found)]
    lines += [f"  Learnt: {lesson.text}" for lesson in found.lessons]
    return "\n".join(lines)


def _describe_predictions(found: Round) -> list[str]:
    """What was predicted of each attempt, beside what came of it, the greatest gain first."""
    checks = {lesson.kernel: lesson.checks for lesson in found.lessons if lesson.checks}
    predicted = [attempt for attempt in found.attempts if attempt.candidate.task.claims]
    lines = []
    for attempt in sorted(predicted, key=lambda attempt: -(attempt.speedup or 0.0)):
        task, kernel = attempt.candidate.task, attempt.candidate.kernel.hash
        came = attempt.measurement.status.value
        if attempt.speedup is not None:
            came = f"{attempt.speedup:.3g}x over its parent {(task.parent or '')[:12]}"
        settled = "; ".join(describe_check(check) for check in checks.get(kernel, ()))
        lines.append(
            f"{task.skill} predicted {_listed(task.claims)}: kernel {kernel[:12]} came to {came}; "
            f"{settled or 'not settled by a profile'}"
        )
    return lines


def _listed(claims: Iterable[Claim]) -> str:
    return ", ".join(map(str, claims))


def _describe_attempts(found: Round) -> str:
    attempts = found.attempts
    passed = [attempt for attempt in attempts if attempt.measurement.latency_ms is not None]
    text = f"{len(attempts)} attempts, {len(passed)} passed"
    planned = sum(task.samples for task in found.plan.tasks) if found.plan is not None else 0
    if (unjudged := planned - len(attempts)) > 0:
        estimated = any(attempt.measurement.estimated for attempt in attempts)
        text += f", {unjudged} planned and not judged ({describe_unjudged(estimated=estimated)})"
    if not passed:
        return text
    best = min(passed, key=lambda attempt: attempt.measurement.latency_ms)
    estimated = " (estimated)" if best.measurement.estimated else ""
    return (
        f"{text}, the fastest {best.measurement.latency_ms:.4g} ms{estimated} by "
        f"{best.candidate.task.skill}"
    )


def round_data(found: Round) -> dict[str, object]:
    """A round for programs.

    `kernel`, `diagnosis` and `prescriptions` are those of the fastest kernel gone on from;
    `diagnoses` has all.
    """
    first = found.diagnoses[0] if found.diagnoses else None
    offered = first.prescriptions if first else ()
    return {
        "round": found.number,
        "diagnoses": [to_data(entry) for entry in found.diagnoses],
        "lessons": [to_data(lesson) for lesson in found.lessons],
        "kernel": first.kernel if first else None,
        "diagnosis": to_data(first.diagnosis) if first else None,
        "prescriptions": [to_data(prescription) for prescription in offered],
        "plan": to_data(found.plan) if found.plan else None,
        "attempts": [
            {
                "kernel": attempt.candidate.kernel.hash,
                "skill": attempt.candidate.task.skill,
                "parent": attempt.candidate.task.parent,
                "predicted": [str(claim) for claim in attempt.candidate.task.claims],
                "speedup": attempt.speedup,
                "status": attempt.measurement.status.value,
                "latency_ms": attempt.measurement.latency_ms,
                "estimated": attempt.measurement.estimated,
            }
            for attempt in found.attempts
        ],
    }


def describe_whole_round(found: WholeRound) -> str:
    """The round for people, with its conversations, candidates, profiles and verdicts."""
    lines = [describe_round(found.round)]
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
    for attempt in found.round.attempts:
        task, kernel = attempt.candidate.task, attempt.candidate.kernel
        measurement = attempt.measurement
        unit = "ms est." if measurement.estimated else "ms"
        latency_ms = measurement.latency_ms
        time = f", {latency_ms:.4g} {unit}" if latency_ms is not None else ""
        lines.append(
            f"\n==== candidate {kernel.hash[:12]}: {task.move.value} {task.skill}, "
            f"{measurement.status.value}{time}"
        )
        lines.append(kernel.source)
        if measurement.log:
            lines.append(f"---- log\n{measurement.log}")
        if kernel.hash in found.verdicts:
            lines.append(f"---- final verdict: {found.verdicts[kernel.hash].status.value}")
    return "\n".join(lines)


def whole_round_data(found: WholeRound) -> dict[str, object]:
    """The round for programs: `round_data` with conversations, attempts, profiles and verdicts."""
    return {
        **round_data(found.round),
        "conversations": [to_data(record) for record in found.conversations],
        "attempts": [to_data(attempt) for attempt in found.round.attempts],
        "profiles": [to_data(profile) for profile in found.profiles],
        "verdicts": {kernel: to_data(verdict) for kernel, verdict in found.verdicts.items()},
    }
