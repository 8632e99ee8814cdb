"""Stages 1 to 3 of a round: profile, diagnose and prescribe for every parent kernel.

What a round found is recorded, so that a resumed or replayed run goes on from the same diagnoses,
whatever the ledger has learnt since.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from kmem.diagnose.bottleneck import diagnose
from kmem.errors import ProfilerError
from kmem.interfaces import Situation
from kmem.orchestrate.accuracy import needed_rungs
from kmem.orchestrate.strategies import choose_parents
from kmem.orchestrate.vetoes import find_vetoes
from kmem.records import Attempt, Background, Diagnosis, Prescription
from kmem.run.background import keep_background
from kmem.run.consulting import prescribe
from kmem.run.parts import Parts
from kmem.run.recall import Remembered

logger = logging.getLogger(__name__)


def survey(
    number: int, parts: Parts, repairs: Mapping[str, int], remembered: Remembered
) -> dict[str | None, Situation]:
    """The situations of a round by the hash of the parent kernel, best first.

    One situation without a parent where no kernel has passed.

    Args:
        repairs: by author, how many repairs in a chain it is granted.
    """
    history = parts.history
    blank = replace(
        describe_situation(parts, number, remembered),
        vetoes=find_vetoes(history.attempts, history.best, history.lessons, repairs),
    )
    situations: dict[str | None, Situation] = {}
    for parent in choose_parents(parts.run.strategy, history.ranking()):
        diagnosis, prescriptions = _examine(number, parent, parts)
        kernel = parent.candidate.kernel
        records = {entry.skill: entry.record for entry in prescriptions if entry.record}
        situations[kernel.hash] = replace(
            blank,
            parent=kernel,
            diagnosis=diagnosis,
            prescriptions=prescriptions,
            track_records=records,
            background=replace(blank.background, profile=history.profiles.get(kernel.hash)),
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
        background=_background(parts, number, remembered),
        seed=parts.run.seed,
    )


def _background(parts: Parts, number: int, remembered: Remembered) -> Background:
    """What models are told beside in a round: the baselines known by then are part of it."""
    run, known = parts.run, remembered.background
    if not run.models:
        return known
    at_round = keep_background(
        parts.directory,
        run.id,
        f"round-{number}",
        lambda: Background(baselines=tuple(parts.history.baselines)),
    )
    return replace(known, baselines=at_round.baselines)


def _examine(
    number: int, parent: Attempt, parts: Parts
) -> tuple[Diagnosis | None, tuple[Prescription, ...]]:
    """Profile, diagnose, prescribe.

    What an earlier process of this run found in this round stands: its own outcomes may have
    changed the ranking since. Without a profile there is no diagnosis, and the round goes on with
    what it knows from times alone.
    """
    kernel, traced = parent.candidate.kernel, parts.session.traced
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
    prescriptions = prescribe(diagnosis, parts.run, parts.session, parts.memory)
    parts.recorder.record_diagnosis(number, kernel, diagnosis, prescriptions)
    parts.announce("diagnose", diagnosis.summary)
    return diagnosis, prescriptions
