"""What the tool `explain` answers: a skill with what it has earned, or a run round by round."""

from kmem.errors import MemoryStoreError
from kmem.mcp.arguments import Json
from kmem.memory.store import Memory
from kmem.records import Attempt
from kmem.serialize import to_data
from kmem.skills import Skill


def explain_skill(memory: Memory, skill: Skill) -> Json:
    """A skill's whole text, where it stands, and its track record."""
    standing = memory.standings.of(skill)
    return {
        "name": skill.name,
        "description": skill.description,
        "status": standing.standing.value,
        "standing": standing.reason,
        "license": skill.license,
        "body": skill.body,
        "path": str(skill.path),
        "record": [to_data(record) for record in memory.track_records.of_skill(skill.name)],
        "reproductions": [to_data(each) for each in standing.reproductions],
    }


def explain_run(memory: Memory, run_id: str, number: int | None) -> Json:
    """Why a run did what it did, by round; with a number only that round.

    Raises:
        MemoryStoreError: if there is no such run or round.
    """
    run = memory.runs.get(run_id)
    diagnoses = memory.runs.diagnoses(run.id)
    plans = memory.runs.plans(run.id)
    attempts = memory.runs.attempts(run.id)
    lessons = memory.runs.lessons(run.id)
    rounds = sorted({*(entry.round for entry in diagnoses), *(entry.round for entry in plans)})
    if number is not None and number not in rounds:
        raise MemoryStoreError(
            f"Run {run.id} has no round {number}; it has: {', '.join(map(str, rounds)) or 'none'}"
        )
    return {
        "run": run.id,
        "problem": run.problem.name,
        "rounds": [
            {
                "round": each,
                "diagnoses": [to_data(entry) for entry in diagnoses if entry.round == each],
                "plans": [to_data(entry.plan) for entry in plans if entry.round == each],
                "attempts": [
                    _describe_attempt(attempt) for attempt in attempts if attempt.round == each
                ],
                "lessons": [to_data(lesson) for lesson in lessons if lesson.round == each],
            }
            for each in (rounds if number is None else [number])
        ],
    }


def _describe_attempt(attempt: Attempt) -> Json:
    return {
        "kernel": attempt.candidate.kernel.hash,
        "skill": attempt.candidate.task.skill,
        "status": attempt.measurement.status.value,
        "latency_ms": attempt.measurement.latency_ms,
        "estimated": attempt.measurement.estimated,
    }
