"""Stage 3 of a round: the skills to offer for a diagnosis, each with what it has earned."""

from collections.abc import Sequence
from dataclasses import replace

from kmem.memory.ledger.track_records import TrackRecord
from kmem.memory.store import Memory
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.records import Diagnosis, Prescription, Run
from kmem.run.session import Session, versions
from kmem.skills import Skill


def prescribe(
    diagnosis: Diagnosis, skills: Sequence[Skill], run: Run, session: Session, memory: Memory
) -> tuple[Prescription, ...]:
    """The skills to offer, each with what it has earned; a run without memory knows no outcomes.

    Args:
        skills: those that some author can use.
    """
    traced = session.traced
    outcomes_count = run.memory_mode != "off"
    prescriptions = consult_memory(
        memory,
        SkillQuery(diagnosis, session.operators, traced.device.arch, traced.contract),
        skills,
        versions(),
        outcomes=outcomes_count,
    )
    if not outcomes_count:
        return prescriptions
    return tuple(
        replace(entry, record=describe_record(memory.track_records.of_skill(entry.skill)))
        for entry in prescriptions
    )


def describe_record(records: Sequence[TrackRecord]) -> str:
    """What the ledger says a skill has earned, by architecture, in a sentence."""
    told = [f"on {item.arch} {item.told}" for item in records]
    return "; ".join(told) or "never tried yet"
