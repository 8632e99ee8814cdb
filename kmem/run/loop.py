"""The map of a run: recall and baselines, then rounds of the six stages, then the verdict.

A round profiles, diagnoses, prescribes, orchestrates, explores, measures and reflects; no other
module knows this order. Every decision is a pure function of records, so that a killed run resumes
by walking the same path again with its finished measurements and answers at hand. Candidates pass
from authors.py through measuring.py into the history, and from there into the situations of the
next round; recorder.py keeps a copy of everything.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from kmem.interfaces import CompletionArchive, Situation
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.orchestrate.plan import plan_first_round, plan_round
from kmem.orchestrate.stop import has_gained, is_as_remembered, minutes_used_up, reason_to_stop
from kmem.orchestrate.vetoes import Past, count_doubts
from kmem.plugins import Registry
from kmem.records import Candidate, Plan, Run, RunResult, RunState, Strategy
from kmem.run.authors import Authors
from kmem.run.clock import Clock
from kmem.run.conclude import conclude
from kmem.run.conversations import FiledArchive
from kmem.run.parts import OpenEvaluator, Parts, open_parts
from kmem.run.progress import Event
from kmem.run.recall import Remembered, recall
from kmem.run.reflect import reflect
from kmem.run.session import Session
from kmem.run.survey import survey


def optimize(
    run: Run,
    session: Session,
    memory: Memory,
    registry: Registry,
    on_event: Callable[[Event], None],
    *,
    open_evaluator: OpenEvaluator,
    archive: CompletionArchive | None = None,
    clock: Clock | None = None,
) -> RunResult:
    """Run or resume `run`.

    Attempts, answers and verdicts are in memory as soon as they exist, so that the run can go on
    whatever ends it. The caller has started the run in memory and marks it if this raises; a result
    marks it FINISHED here.

    Args:
        open_evaluator: makes what compiles, judges and profiles.
        archive: where conversations are kept and found again; by default in `memory`.
        clock: the run's minutes; by default the evaluator's.
    """
    started = time.monotonic()
    with open_parts(run, session, memory, on_event, open_evaluator, clock) as parts:
        authors = _begin_authors(parts, registry, archive or RunArchive(memory.path, run.id))
        remembered = recall(run, session, memory, parts.directory)
        parts.announce(
            "recall",
            f"memory offers {len(remembered.winners)} kernels or settings for this graph",
        )
        parts.baselines.start(parts.announce)
        reason = _go_through_rounds(parts, authors, remembered)
        if authors.complaint:
            reason += f"; {authors.complaint}"
        result = conclude(parts, reason, time.monotonic() - started)
    memory.runs.set_state(run.id, RunState.FINISHED, result)
    return result


def _begin_authors(parts: Parts, registry: Registry, archive: CompletionArchive) -> Authors:
    filed = FiledArchive(archive, parts.directory)
    return Authors(parts.run, registry, filed, parts.clock, parts.history, parts.announce)


def _go_through_rounds(parts: Parts, authors: Authors, remembered: Remembered) -> str:
    """Round after round until there is a reason to stop; returns the reason."""
    run, history = parts.run, parts.history
    clock, stale = parts.clock, 0
    for number in range(run.budget.rounds + 1):
        if is_as_remembered(history.best, remembered.winners):
            return "the remembered winner holds here as recorded"
        situations = survey(number, parts, authors.repairs, remembered.experience)
        if reason := _reason_to_stop(number, run, situations, stale):
            return reason
        plan = _plan(number, parts, situations, authors, remembered)
        if number and clock.is_over():  # the plan lacks what models were not in time to propose
            return minutes_used_up(run.budget)
        parts.recorder.record_plan(number, plan)
        if not plan.tasks:
            return authors.spent or plan.reason
        parts.announce("orchestrate", f"round {number}: {plan.reason}")
        candidates = authors.write(plan.tasks, situations, remembered.winners)
        if not candidates:
            return _reason_nothing_was_written(parts, authors)
        before_ms = history.best_ms
        _measure_and_repair(number, parts, candidates, situations, authors)
        reflect(number, parts, situations, authors)
        stale = 0 if has_gained(before_ms, history.best_ms) else stale + 1
        if clock.is_over():
            return minutes_used_up(run.budget)
    return "the rounds are used up"


def _reason_to_stop(
    number: int, run: Run, situations: Mapping[str | None, Situation], stale: int
) -> str:
    """Why this round is not worth its measurements; empty if it is.

    Args:
        stale: how many rounds in a row brought no gain.
    """
    if run.strategy is Strategy.BEST_OF_N and number:
        return "best-of-n writes all its kernels in the first round"
    best = _best_situation(situations)
    return reason_to_stop(best.diagnosis, best.prescriptions, best.skills, stale, run.budget)


def _plan(
    number: int,
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
    remembered: Remembered,
) -> Plan:
    """Stage 4: what the authors propose, shared out by the run's strategy."""
    run, history = parts.run, parts.history
    offers = authors.propose(situations)
    if number == 0:
        return plan_first_round(
            remembered.winners,
            offers[0].directions,
            run.budget,
            run.strategy,
            experience=remembered.experience,
            rewrites=authors.rewrite,
        )
    doubts = count_doubts(history.attempts, history.lessons)
    past = Past(history.attempts, _best_situation(situations).vetoes, doubts)
    return plan_round(number, offers, past, run.strategy, run.budget, run.seed)


def _reason_nothing_was_written(parts: Parts, authors: Authors) -> str:
    if parts.clock.is_over():
        return minutes_used_up(parts.run.budget)
    return authors.spent or "the authors have nothing new to try"


def _measure_and_repair(
    number: int,
    parts: Parts,
    candidates: Sequence[Candidate],
    situations: Mapping[str | None, Situation],
    authors: Authors,
) -> None:
    """Stage 6, with failed candidates sent back to authors that repair.

    It ends when all pass, nothing new comes back, or the chains of repairs are used up.
    """
    measured = parts.measurer.measure(number, candidates, situations)
    while measured and not parts.clock.is_over():
        repaired = authors.write_repairs(measured, situations)
        measured = parts.measurer.measure(number, repaired, situations)


def _best_situation(situations: Mapping[str | None, Situation]) -> Situation:
    """That of the fastest kernel, which the survey names first."""
    return next(iter(situations.values()))
