"""Stages 1 to 3 of a round: profile, diagnose and prescribe for every parent kernel.

What a round found is recorded, so that a resumed or replayed run goes on from the same diagnoses,
whatever the ledger has learnt since.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from kmem.diagnose.bottleneck import diagnose
from kmem.errors import ProfilerError
from kmem.interfaces import Situation
from kmem.memory.ledger.track_records import TrackRecord
from kmem.orchestrate.accuracy import needed_rungs
from kmem.orchestrate.strategies import choose_parents
from kmem.orchestrate.vetoes import find_vetoes
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.records import Attempt, Diagnosis, Prescription
from kmem.run.authors import Authors
from kmem.run.parts import Parts
from kmem.run.recall import Remembered
from kmem.run.session import versions
from kmem.skills import Skill

logger = logging.getLogger(__name__)


def survey(
    number: int, parts: Parts, authors: Authors, remembered: Remembered
) -> dict[str | None, Situation]:
    """The situations of a round by the hash of the parent kernel, best first.

    One situation without a parent where no kernel has passed.
    """
    history = parts.history
    blank = replace(
        describe_situation(parts, number, remembered),
        vetoes=find_vetoes(history.attempts, history.best, history.lessons, authors.repairs),
    )
    situations: dict[str | None, Situation] = {}
    for parent in choose_parents(parts.run.strategy, history.ranking()):
        kernel = parent.candidate.kernel
        diagnosis, prescriptions = _examine(parent, replace(blank, parent=kernel), parts, authors)
        records = {entry.skill: entry.record for entry in prescriptions if entry.record}
        situations[kernel.hash] = replace(
            blank,
            parent=kernel,
            diagnosis=diagnosis,
            prescriptions=prescriptions,
            track_records=records,
        )
    return situations or {None: blank}


def describe_situation(parts: Parts, number: int, remembered: Remembered) -> Situation:
    """What authors may know in a round, without a kernel to go on from."""
    session, history = parts.session, parts.history
    return Situation(
        traced=session.traced,
        round=number,
        parent=None,
        diagnosis=None,
        prescriptions=(),
        history=tuple(history.attempts),
        lessons=tuple(history.lessons),
        recipes=session.recipes,
        writable=session.writable,
        rewrites=session.rewrites,
        rewritten=session.rewritten,
        skills=session.skills,
        experience=remembered.experience,
        rungs=needed_rungs(history.attempts, remembered.rungs),
        seed=parts.run.seed,
    )


def _examine(
    parent: Attempt, situation: Situation, parts: Parts, authors: Authors
) -> tuple[Diagnosis | None, tuple[Prescription, ...]]:
    """Profile, diagnose, prescribe.

    What an earlier process of this run found in this round stands: its own outcomes may have
    changed the ranking since. Without a profile there is no diagnosis, and the round goes on with
    what it knows from times alone.
    """
    number, kernel = situation.round, parent.candidate.kernel
    traced = parts.session.traced
    kept = parts.history.earlier.diagnoses.get((number, kernel.hash))
    if kept is not None:
        return kept.diagnosis, kept.prescriptions
    try:
        profile = parts.measurer.profile(parent)
    except ProfilerError as ex:
        logger.warning("round %d goes on without a diagnosis: %s", number, ex)
        return None, ()
    diagnosis = diagnose(
        profile,
        traced.device,
        parts.session.least_bound(kernel),
        latency_ms=parent.measurement.latency_ms,
        history=parts.history.attempts,
    )
    known = replace(situation, diagnosis=diagnosis)
    skills = authors.used(list(parts.session.skills.values()), known)
    prescriptions = _prescribe(diagnosis, skills, parts)
    parts.recorder.record_diagnosis(number, kernel, diagnosis, prescriptions)
    parts.announce("diagnose", diagnosis.summary)
    return diagnosis, prescriptions


def _prescribe(
    diagnosis: Diagnosis, skills: Sequence[Skill], parts: Parts
) -> tuple[Prescription, ...]:
    """The skills to offer, each with what it has earned; a run without memory knows no outcomes."""
    session, memory = parts.session, parts.memory
    traced = session.traced
    outcomes_count = parts.run.memory_mode != "off"
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
            f"on {item.arch} {item.tried} tried, {item.passed} passed, {item.improved} of the "
            f"{item.compared} compared with a parent or baseline improved{gain}{again}"
        )
    return "; ".join(told) or "never tried yet"
