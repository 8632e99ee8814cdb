"""Stages 1 to 3 for a round: profile, diagnose and prescribe for every kernel that the strategy
wants to go on from.

What a round found is kept in memory, so that a resumed or replayed run goes on from the same,
whatever the ledger has learnt since.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.diagnose.bottleneck import diagnose
from kmem.errors import ProfilerError
from kmem.interfaces import Situation
from kmem.memory.ledger.track_records import TrackRecord
from kmem.orchestrate.strategies import choose_parents
from kmem.orchestrate.vetoes import find_vetoes
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.records import Attempt, Diagnosis, Prescription
from kmem.run.session import versions
from kmem.run.workbench import Workbench

logger = logging.getLogger(__name__)


def survey(
    number: int, bench: Workbench, repairs: Mapping[str, int]
) -> dict[str | None, Situation]:
    """The situations of a round by the hash of the kernel gone on from, best first; one without a
    kernel where there is none.

    Args:
        repairs: by author, how many repairs in a chain it is granted.
    """
    blank = _blank(number, bench, repairs)
    situations: dict[str | None, Situation] = {}
    for parent in choose_parents(bench.run.strategy, bench.ranking()):
        diagnosis, prescriptions = _examine(number, parent, bench)
        kernel = parent.candidate.kernel
        records = {entry.skill: entry.record for entry in prescriptions if entry.record}
        situations[kernel.hash] = replace(
            blank,
            parent=kernel,
            diagnosis=diagnosis,
            prescriptions=prescriptions,
            track_records=records,
        )
    return situations or {None: blank}


def _blank(number: int, bench: Workbench, repairs: Mapping[str, int]) -> Situation:
    session = bench.session
    return Situation(
        problem=session.problem,
        graphs=session.graphs,
        device=session.device,
        contract=bench.run.contract,
        bound=session.bound,
        round=number,
        parent=None,
        diagnosis=None,
        prescriptions=(),
        history=tuple(bench.attempts),
        lessons=tuple(bench.lessons),
        vetoes=find_vetoes(bench.attempts, bench.best, bench.lessons, repairs),
        recipes=session.recipes,
        writable=session.writable,
        skills=session.skills,
        experience=bench.experience(),
        seed=bench.run.seed,
    )


def _examine(
    number: int, parent: Attempt, bench: Workbench
) -> tuple[Diagnosis | None, tuple[Prescription, ...]]:
    """Profile, diagnose, prescribe.

    What a killed run found in this round stands: its own outcomes may have changed the ranking
    since.

    Without a profile there is no diagnosis, and the round goes on with what it knows from times
    alone.
    """
    kernel = parent.candidate.kernel
    session = bench.session
    memory = bench.memory
    for kept in memory.runs.diagnoses(bench.run.id):
        if (kept.round, kept.kernel) == (number, kernel.hash):
            return kept.diagnosis, kept.prescriptions
    try:
        profile = bench.profile(parent)
    except ProfilerError as ex:
        logger.warning("round %d goes on without a diagnosis: %s", number, ex)
        return None, ()
    diagnosis = diagnose(
        profile,
        session.device,
        session.bound,
        latency_ms=parent.measurement.latency_ms,
        history=bench.attempts,
    )
    prescriptions = consult_memory(
        memory,
        SkillQuery(diagnosis, session.operators, session.device.arch, session.contract),
        list(session.skills.values()),
        versions(),
        outcomes=bench.run.memory_mode != "off",
    )
    if bench.run.memory_mode != "off":
        prescriptions = tuple(
            replace(entry, record=describe_record(memory.track_records.of_skill(entry.skill)))
            for entry in prescriptions
        )
    memory.runs.put_diagnosis(bench.run.id, number, kernel.hash, diagnosis, prescriptions)
    bench.announce("diagnose", diagnosis.summary)
    return diagnosis, prescriptions


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
