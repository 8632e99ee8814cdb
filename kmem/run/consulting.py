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
    told = []
    for item in records:
        gain = f", {item.speedup:.2f}x in the geometric mean" if item.speedup is not None else ""
        again = (
            f"; remembered kernels of it passed {item.recalled} times again"
            if item.recalled
            else ""
        )
        told.append(
            f"on {item.arch} {item.tried} tried, {item.passed} passed, {item.improved} "
            f"improved{gain}{again}"
        )
    return "; ".join(told) or "never tried yet"
