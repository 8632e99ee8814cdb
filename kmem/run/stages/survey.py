"""Stages 1 to 3 of a round: profile, diagnose and prescribe for every parent kernel.

What a round found is recorded, so that a resumed or replayed run goes on from the same diagnoses,
whatever the ledger has learnt since.
"""

import logging
from dataclasses import replace

from kmem.diagnose.bottleneck import diagnose
from kmem.errors import ProfilerError
from kmem.interfaces import Situation
from kmem.orchestrate.accuracy import needed_rungs
from kmem.orchestrate.strategies import choose_parents
from kmem.orchestrate.vetoes import find_vetoes
from kmem.records import Attempt, Background, Diagnosis, Prescription
from kmem.run.stages.authors import Authors
from kmem.run.stages.consulting import prescribe
from kmem.run.stages.parts import Parts
from kmem.run.stages.recall import Remembered
from kmem.run.state.background import keep_background

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
    for parent in _parents(number, parts):
        kernel = parent.candidate.kernel
        diagnosis, prescriptions = _examine(parent, replace(blank, parent=kernel), parts, authors)
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


def _parents(number: int, parts: Parts) -> list[Attempt]:
    """Whom the strategy goes on from; in the first round after the seeds also the given kernel.

    So that it is profiled and diagnosed, whatever was faster at once.
    """
    ranking = parts.history.ranking()
    parents = choose_parents(parts.run.strategy, ranking)
    start = parts.run.start
    given = [each for each in ranking if start and each.candidate.kernel.hash == start.hash]
    if number == 1 and parents and given and given[0] not in parents:
        parents.append(given[0])
    return parents


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
        rungs=needed_rungs(
            history.attempts,
            session.traced,
            session.recipes,
            session.rewrites,
            remembered.rungs,
        ),
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
    prescriptions = prescribe(diagnosis, skills, parts.run, parts.session, parts.memory)
    parts.recorder.record_diagnosis(number, kernel, diagnosis, prescriptions)
    parts.announce("diagnose", diagnosis.summary)
    return diagnosis, prescriptions
