"""Stage 3 of a round: the skills to offer for a diagnosis, each with what it has earned."""

import random
from collections.abc import Sequence
from dataclasses import replace

from kmem.memory.ledger.track_records import TrackRecord
from kmem.memory.store import Memory
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import Gate, SkillQuery
from kmem.prescribe.rank import MAX_PRESCRIPTIONS
from kmem.records import Diagnosis, Prescription, Run, Strategy
from kmem.run.setup.session import Session, versions
from kmem.skills import Skill


def prescribe(
    diagnosis: Diagnosis, skills: Sequence[Skill], run: Run, session: Session, memory: Memory
) -> tuple[Prescription, ...]:
    """The skills to offer, each with what it has earned; a run without memory knows no outcomes.

    Args:
        skills: those that some author can use.
    """
    if run.strategy is Strategy.RANDOM_SKILLS:
        return _draw(diagnosis, skills, run, session)
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


def _draw(
    diagnosis: Diagnosis, skills: Sequence[Skill], run: Run, session: Session
) -> tuple[Prescription, ...]:
    """As many skills as are prescribed, at random among those that may be used here at all."""
    traced = session.traced
    gate = Gate(SkillQuery(diagnosis, session.operators, traced.device.arch, traced.contract))
    allowed = sorted(
        (skill for skill in skills if not gate.test(skill).is_forbidden),
        key=lambda skill: skill.name,
    )
    generator = random.Random(f"{run.seed}:{diagnosis.summary}")
    drawn = generator.sample(allowed, min(MAX_PRESCRIPTIONS, len(allowed)))
    values = diagnosis.known
    reason = "drawn at random: the control that prescriptions must beat"
    return tuple(
        Prescription(skill.name, 1.0, (reason,), claims=skill.predictions(values))
        for skill in drawn
    )


def describe_record(records: Sequence[TrackRecord]) -> str:
    """What the ledger says a skill has earned, by architecture, in a sentence."""
    told = [f"on {item.arch} {item.told}" for item in records]
    return "; ".join(told) or "never tried yet"
