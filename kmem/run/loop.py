"""The run: recall, baselines, then rounds of profile, diagnose, prescribe, orchestrate, explore,
measure and reflect.

The only module that knows the order of the stages. Every decision is a pure function of records, so
that a killed run resumes by walking the same path again with its finished measurements and answers
at hand. What a stage does is in survey.py (1 to 3), orchestrate/ (4), authors.py (5), workbench.py
and evaluator.py (6), reflect.py and conclude.py.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from kmem.interfaces import CompletionArchive, Situation
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.orchestrate.plan import plan_first_round, plan_round
from kmem.orchestrate.stop import has_gained, is_as_remembered, minutes_used_up, reason_to_stop
from kmem.orchestrate.vetoes import Past, count_doubts
from kmem.plugins import Registry
from kmem.records import Plan, Recalled, Run, RunResult, RunState, Strategy
from kmem.run.authors import Authors
from kmem.run.clock import Clock
from kmem.run.conclude import conclude
from kmem.run.conversations import FiledArchive
from kmem.run.reflect import reflect
from kmem.run.session import Session
from kmem.run.survey import survey
from kmem.run.workbench import Event, OpenEvaluator, Workbench


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

    Attempts, answers and verdicts are in memory as soon as they exist, so that whatever ends it, it
    can go on.

    The caller has started the run in memory and marks it if this raises; a result marks it FINISHED
    here.

    Args:
        open_evaluator: makes what compiles, judges and profiles.
        archive: where conversations are kept and found again; by default in `memory`.
        clock: the run's minutes; by default the evaluator's.
    """
    started = time.monotonic()
    with Workbench(run, session, memory, on_event, open_evaluator) as bench:
        clock = clock or Clock(lambda: bench.seconds_left)
        authors = Authors(
            bench,
            registry,
            FiledArchive(archive or RunArchive(memory.path, run.id), bench.directory),
            clock,
        )
        recalled = bench.recall()
        bench.announce(
            "recall", f"memory offers {len(recalled)} kernels or settings for this graph"
        )
        bench.start_baselines()
        reason, stale = "the rounds are used up", 0
        for number in range(run.budget.rounds + 1):
            if is_as_remembered(bench.best, recalled):
                reason = "the remembered winner holds here as recorded"
                break
            situations = survey(number, bench, authors.repairs)
            if stop := _reason_to_stop(number, run, situations, stale):
                reason = stop
                break
            plan = _plan(number, bench, situations, authors, recalled)
            if number and clock.is_over():  # the plan lacks what models were not in time to propose
                reason = minutes_used_up(run.budget)
                break
            memory.runs.put_plan(run.id, number, plan)
            if not plan.tasks:
                reason = authors.spent or plan.reason
                break
            bench.announce("orchestrate", f"round {number}: {plan.reason}")
            candidates = authors.write(plan.tasks, situations, recalled)
            if not candidates:
                reason = (
                    minutes_used_up(run.budget)
                    if clock.is_over()
                    else authors.spent or "the authors have nothing new to try"
                )
                break
            before_ms = bench.best.measurement.latency_ms if bench.best else None
            measured = bench.measure(number, candidates, situations)
            authors.repair(number, measured, situations)
            reflect(number, situations, authors, bench, clock)
            stale = (
                0
                if has_gained(before_ms, bench.best.measurement.latency_ms if bench.best else None)
                else stale + 1
            )
            if clock.is_over():
                reason = minutes_used_up(run.budget)
                break
        if authors.complaint:
            reason += f"; {authors.complaint}"
        result = replace(
            conclude(bench, reason, time.monotonic() - started), looks_in_time=clock.looks_in_time
        )
    memory.runs.set_state(run.id, RunState.FINISHED, result)
    return result


def _plan(
    number: int,
    bench: Workbench,
    situations: dict[str | None, Situation],
    authors: Authors,
    recalled: list[Recalled],
) -> Plan:
    run, offers = bench.run, authors.propose(situations)
    if number == 0:
        experience = next(iter(situations.values())).experience
        directions = offers[0].directions
        return plan_first_round(
            recalled,
            directions,
            run.budget,
            run.strategy,
            experience=experience,
            rewrites=authors.rewrite,
        )
    vetoes = next(iter(situations.values())).vetoes
    past = Past(bench.attempts, vetoes, count_doubts(bench.attempts, bench.lessons))
    return plan_round(number, offers, past, run.strategy, run.budget, run.seed)


def _reason_to_stop(
    number: int, run: Run, situations: dict[str | None, Situation], stale: int
) -> str:
    if run.strategy is Strategy.BEST_OF_N and number:
        return "best-of-n writes all its kernels in the first round"
    best = next(iter(situations.values()))
    return reason_to_stop(best.diagnosis, best.prescriptions, best.skills, stale, run.budget)
