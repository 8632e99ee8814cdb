"""The map of a run: recall and baselines, then rounds of the six stages, then the verdict.

A round profiles, diagnoses, prescribes, orchestrates, explores, measures and reflects; no other
module knows this order. Every decision is a pure function of records, so that a killed run resumes
by walking the same path again with its finished measurements and answers at hand. Candidates pass
from stages/authors.py through evaluation/measuring.py into the history, and from there into the
situations of the next round; state/recorder.py keeps a copy of everything.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kmem.host.parallel import in_background
from kmem.interfaces import RECIPES, CompletionArchive, Situation
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.orchestrate.accuracy import needed_rungs
from kmem.orchestrate.plan import (
    is_recall_alone,
    plan_after_recall,
    plan_first_round,
    plan_round,
)
from kmem.orchestrate.stop import has_gained, is_as_remembered, minutes_used_up, reason_to_stop
from kmem.orchestrate.vetoes import Past, count_doubts
from kmem.plugins import Registry
from kmem.records import Candidate, Plan, Run, RunResult, RunState, Strategy, Task
from kmem.run.report.convergence import load_plotting
from kmem.run.setup.session import Session
from kmem.run.stages.authors import Authors
from kmem.run.stages.batches import first_tasks, in_batches
from kmem.run.stages.conclude import conclude
from kmem.run.stages.parts import OpenEvaluator, Parts, open_parts
from kmem.run.stages.recall import Remembered, recall
from kmem.run.stages.reflect import reflect
from kmem.run.stages.stopping import reason_enough
from kmem.run.stages.survey import describe_situation, survey
from kmem.run.stages.verifying import is_winner, verify_early, verify_ranking
from kmem.run.state.clock import Clock
from kmem.run.state.conversations import FiledArchive
from kmem.run.state.progress import Event


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
        for remark in (authors.complaint, authors.spent):
            if remark and remark not in reason:
                reason += f"; {remark}"
        if session.present:  # the verdicts are waited for
            threading.Thread(target=load_plotting, daemon=True).start()
        blank = describe_situation(parts, run.budget.rounds, remembered)
        verified, why_none = verify_ranking(parts, authors, blank)
        seconds = time.monotonic() - started
        result = conclude(parts, verified, why_none, reason, seconds)
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
        if number and (reason := reason_enough(parts, remembered, run.budget.candidates_per_round)):
            return reason
        situations = survey(number, parts, authors, remembered)
        if reason := _reason_to_stop(number, run, situations, stale):
            return reason
        plan = _plan(number, parts, situations, authors, remembered)
        if number and clock.is_over():  # the plan lacks what models were not in time to propose
            return minutes_used_up(run.budget)
        parts.recorder.record_plan(number, plan)
        if not plan.tasks:
            return authors.spent or plan.reason
        parts.announce("orchestrate", f"round {number}: {plan.reason}")
        before_ms, unanswered = history.best_ms, authors.unanswered
        was_written = _write_and_measure(number, parts, plan, situations, authors, remembered)
        if number == 0 and is_recall_alone(plan):
            verify_early(parts, situations, authors, wait=True)
            if not _holds(parts, remembered):
                remembered = replace(remembered, descents=())  # memory is mistaken here
                was_written |= _begin_without_recall(plan, parts, situations, authors, remembered)
            elif not run.budget.rounds:
                return "the remembered winner holds here as recorded"
        # a model whose answer could not be used may have a better one in the next round
        if not was_written and authors.unanswered == unanswered:
            return _reason_nothing_was_written(parts, authors)
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


def _holds(parts: Parts, remembered: Remembered) -> bool:
    """Whether the best kernel is the remembered winner, as fast as recorded, and wins here too."""
    history = parts.history
    if history.best is None or not is_as_remembered(history.best, remembered.winners):
        return False
    verdict = history.verdicts.get(history.best.candidate.kernel.hash)
    if not parts.session.present:  # nothing but estimates
        return True
    return verdict is not None and is_winner(verdict.timing, history.baselines)


def _begin_without_recall(
    recalled: Plan,
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
    remembered: Remembered,
) -> bool:
    """The first round as if nothing had been recalled; False if nothing was written in it.

    Args:
        recalled: the plan whose remembered winner did not hold.
    """
    if parts.clock.is_over():
        return False
    blank = replace(remembered, winners=())
    plan = _plan(0, parts, situations, authors, blank)
    parts.recorder.record_plan(0, plan_after_recall(recalled, plan))
    parts.announce("recall", "what memory holds does not hold here: begin as without it")
    return _write_and_measure(0, parts, plan, situations, authors, blank)


def _write_and_measure(
    number: int,
    parts: Parts,
    plan: Plan,
    situations: Mapping[str | None, Situation],
    authors: Authors,
    remembered: Remembered,
) -> bool:
    """Stages 5 and 6 for a plan; False if nothing was written for it."""
    has_passed = parts.history.best is not None
    by_recipes = all(task.author == RECIPES for task in plan.tasks)
    if has_passed or not parts.measurer.takes_time or not by_recipes or parts.run.start:
        candidates = authors.write(plan.tasks, situations, remembered.winners)
    else:
        candidates = _write_beside(number, parts, plan.tasks, situations, authors, remembered)
    if not candidates:
        return False
    batches = in_batches(candidates, parts, remembered, has_passed=has_passed)
    _measure_and_repair(number, parts, batches, situations, authors, remembered)
    return True


def _write_beside(
    number: int,
    parts: Parts,
    tasks: Sequence[Task],
    situations: Mapping[str | None, Situation],
    authors: Authors,
    remembered: Remembered,
) -> list[Candidate]:
    """What recipes write for the first tasks of a run, while the likeliest kernel is measured.

    Of a graph of forty operators each kernel takes a second to write. The first one of each task
    is compiled while others are written. Once the minutes are over nothing more is written.
    """
    write = authors.writer(situations, remembered.winners)

    def write_first(task: Task) -> list[Candidate]:
        first = [replace(each, task=task) for each in write(replace(task, samples=1))]
        parts.measurer.expect(first)
        return first

    def write_others() -> list[Candidate]:
        for task in tasks:
            if parts.clock.is_over():
                return ahead
            write_first(task)
        return authors.write_all(tasks, write)

    guesses = authors.foresee(tasks, situations, remembered.winners)
    ahead = [
        candidate
        for task in first_tasks(guesses, parts, remembered)
        for candidate in write_first(task)
    ]
    others = in_background(write_others)
    if ahead:
        _measure_batch(number, parts, ahead, situations, authors)
    return ahead if parts.clock.is_over() else others.result()


def _measure_batch(
    number: int,
    parts: Parts,
    candidates: Sequence[Candidate],
    situations: Mapping[str | None, Situation],
    authors: Authors,
) -> None:
    """Stage 6 for candidates; those that failed are repaired as long as anything comes back."""
    measured = parts.measurer.measure(number, candidates, situations)
    while measured and not parts.clock.is_over():
        repaired = authors.write_repairs(measured, situations)
        measured = parts.measurer.measure(number, repaired, situations)
    verify_early(parts, situations, authors)


def _measure_and_repair(
    number: int,
    parts: Parts,
    batches: Sequence[Sequence[Candidate]],
    situations: Mapping[str | None, Situation],
    authors: Authors,
    remembered: Remembered,
) -> None:
    """Stage 6, with failed candidates sent back to authors that repair, and an early verdict.

    It ends when all pass, nothing new comes back, the chains of repairs are used up, or memory
    expects too little of the rest of a first round.
    """
    parts.measurer.expect([candidate for batch in batches for candidate in batch])
    for place, batch in enumerate(batches):
        left = sum(map(len, batches[place:]))
        if place and parts.clock.is_over():  # what is left of the minutes is for the verdict
            return
        if place and (reason := reason_enough(parts, remembered, left)):
            parts.announce("measure", f"{left} candidates are left out: {reason}")
            return
        chosen = _raise_rungs(batch, parts, situations, authors) if place else batch
        _measure_batch(number, parts, chosen, situations, authors)


def _raise_rungs(
    candidates: Sequence[Candidate],
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
) -> Sequence[Candidate]:
    """The candidates, those of recipes written again if their sites must stand on a higher rung.

    What was measured of the round's first candidates may have shown that.
    """
    session = parts.session
    needed = needed_rungs(parts.history.attempts, session.traced, session.recipes, session.rewrites)
    raised = {
        kernel_hash: replace(
            situation,
            rungs={
                place: max(needed.get(place, 0), situation.rungs.get(place, 0))
                for place in {*needed, *situation.rungs}
            },
        )
        for kernel_hash, situation in situations.items()
    }
    if all(raised[each].rungs == situations[each].rungs for each in situations):
        return candidates
    kept = [candidate for candidate in candidates if not candidate.kernel.choices]
    tasks = {candidate.task: None for candidate in candidates if candidate.kernel.choices}
    return [*kept, *authors.write(list(tasks), raised)]


def _best_situation(situations: Mapping[str | None, Situation]) -> Situation:
    """That of the fastest kernel, which the survey names first."""
    return next(iter(situations.values()))
