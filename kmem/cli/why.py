"""`kmem why`: what a round of a run saw, was offered, decided and got, with the reasons for each."""

import json
from typing import TYPE_CHECKING

import click

from kmem.errors import MemoryStoreError

if TYPE_CHECKING:
    from kmem.memory.runs.runs import RoundDiagnosis
    from kmem.records import Attempt, Lesson, Plan

# kmem.memory (sqlite_utils) is imported inside the command: `kmem --help` must not pay for it.


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("number", metavar="[ROUND]", type=click.IntRange(min=0), required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: the rounds under `rounds`."
)
def why(run_id: str, number: int | None, as_json: bool) -> None:
    """Say why RUN did what it did in ROUND (default: in every round).

    Shows the diagnosis with its evidence, each skill offered with its reasons, what was planned and
    what was vetoed, what came of it, and what was learnt: claims that the next profile falsified.
    RUN may be a unique prefix of its id.
    """
    from kmem.memory.store import Memory

    with Memory() as memory:
        run = memory.runs.get(run_id)
        diagnoses = memory.runs.diagnoses(run.id)
        lessons = memory.runs.lessons(run.id)
        plans = {entry.round: entry.plan for entry in memory.runs.plans(run.id)}
        attempts = memory.runs.attempts(run.id)
    rounds = sorted({*(entry.round for entry in diagnoses), *plans})
    if number is not None and number not in rounds:
        known = (
            f"it has rounds {', '.join(map(str, rounds))}" if rounds else "no round of it was kept"
        )
        raise MemoryStoreError(f"Run {run.id} has no round {number}; {known}")
    shown = []
    for each in rounds if number is None else [number]:
        tried = [attempt for attempt in attempts if attempt.round == each]
        found, plan = [entry for entry in diagnoses if entry.round == each], plans.get(each)
        learnt = [lesson for lesson in lessons if lesson.round == each]
        if as_json:
            shown.append(round_data(each, found, plan, tried, learnt))
        else:
            click.echo(describe_round(each, found, plan, tried, learnt))
    if as_json:
        click.echo(json.dumps({"run": run.id, "rounds": shown}))


def describe_round(
    number: int,
    diagnoses: "list[RoundDiagnosis]",
    plan: "Plan | None",
    attempts: "list[Attempt]",
    lessons: "list[Lesson]",
) -> str:
    """A round for people: what was seen of each kernel gone on from, offered, decided, got and
    learnt.
    """
    from kmem.cli.stages import describe_diagnosis

    lines = [f"Round {number}"]
    if not diagnoses:
        lines.append(
            "  Diagnosis: none, nothing had been measured yet"
            if number == 0
            else "  Diagnosis: none was made"
        )
    for found in diagnoses:
        lines.append(f"  Diagnosis of kernel {found.kernel[:12]}")
        lines += [f"    {line}" for line in describe_diagnosis(found.diagnosis).splitlines()]
        for prescription in found.prescriptions:
            lines.append(f"  Offered: {prescription.skill} (score {prescription.score:.3f})")
            lines += [f"    - {reason}" for reason in prescription.reasons]
    if plan is not None:
        lines.append(f"  Plan: {plan.reason}")
        lines += [
            f"    {task.move.value} {task.skill}, {task.samples} candidates: {task.reason}"
            for task in plan.tasks
        ]
        lines += [f"    vetoed {veto.skill}: {veto.reason}" for veto in plan.vetoes]
    if attempts:
        lines.append(f"  Came of it: {_describe_attempts(attempts)}")
    lines += [f"  Learnt: {lesson.text}" for lesson in lessons]
    return "\n".join(lines)


def _describe_attempts(attempts: "list[Attempt]") -> str:
    passed = [attempt for attempt in attempts if attempt.measurement.latency_ms is not None]
    text = f"{len(attempts)} attempts, {len(passed)} passed"
    if not passed:
        return text
    best = min(passed, key=lambda attempt: attempt.measurement.latency_ms)
    estimated = " (estimated)" if best.measurement.estimated else ""
    return (
        f"{text}, the fastest {best.measurement.latency_ms:.4g} ms{estimated} by "
        f"{best.candidate.task.skill}"
    )


def round_data(
    number: int,
    diagnoses: "list[RoundDiagnosis]",
    plan: "Plan | None",
    attempts: "list[Attempt]",
    lessons: "list[Lesson]",
) -> dict[str, object]:
    """A round for programs.

    `kernel`, `diagnosis` and `prescriptions` are those of the fastest kernel gone on from;
    `diagnoses` has all.
    """
    from kmem.serialize import to_data

    found = diagnoses[0] if diagnoses else None
    return {
        "round": number,
        "diagnoses": [to_data(entry) for entry in diagnoses],
        "lessons": [to_data(lesson) for lesson in lessons],
        "kernel": found.kernel if found else None,
        "diagnosis": to_data(found.diagnosis) if found else None,
        "prescriptions": [to_data(prescription) for prescription in found.prescriptions]
        if found
        else [],
        "plan": to_data(plan) if plan else None,
        "attempts": [
            {
                "kernel": attempt.candidate.kernel.hash,
                "skill": attempt.candidate.task.skill,
                "status": attempt.measurement.status.value,
                "latency_ms": attempt.measurement.latency_ms,
                "estimated": attempt.measurement.estimated,
            }
            for attempt in attempts
        ],
    }
