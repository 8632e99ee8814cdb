"""The run: recall, baselines, then rounds of profile, diagnose, prescribe, orchestrate, explore and measure.

The only module that knows the order of the stages. Every decision is a pure function of records, so that a killed run resumes by
walking the same path again with its finished measurements at hand. What is done with candidates is in workbench.py.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from kmem.diagnose.bottleneck import diagnose
from kmem.errors import ProfilerError
from kmem.interfaces import Assignment, Author
from kmem.memory.store import Memory
from kmem.orchestrate.plan import plan_first_round, plan_round, plan_seeds
from kmem.plugins import Registry, lookup
from kmem.prescribe.consult import consult_memory
from kmem.records import (
    Attempt,
    Candidate,
    Diagnosis,
    Kernel,
    Move,
    Plan,
    Prescription,
    Recalled,
    Run,
    RunResult,
    RunState,
    Status,
    Task,
    fastest_baseline,
)
from kmem.session import Session, versions
from kmem.workbench import Event, Workbench

logger = logging.getLogger(__name__)

#: An improvement counts when it exceeds this and its interval excludes 1: less is within what a rerun moves.
MIN_IMPROVEMENT = 1.005
_ROUNDS_WITHOUT_GAIN = 2
#: A remembered winner counts as holding here if it is at most this much slower than recorded.
_AS_REMEMBERED = 1.05
_VERIFY_AT_MOST = 3


def optimize(run: Run, session: Session, memory: Memory, registry: Registry, on_event: Callable[[Event], None]) -> RunResult:
    """Run or resume `run`. Attempts, baselines and verdicts are in memory as soon as they exist, so that whatever ends it, it can go on.

    The caller has started the run in memory and marks it if this raises; a result marks it FINISHED here.
    """
    started = time.monotonic()
    author = lookup(registry.authors, "recipes", "author")
    with Workbench(run, session, memory, registry, on_event, deadline=started + run.budget.minutes * 60) as bench:
        recalled = bench.recall()
        bench.announce("recall", f"memory offers {len(recalled)} kernels or settings for this graph")
        bench.start_baselines()
        reason = "the rounds are used up"
        stale = 0
        prescriptions: tuple[Prescription, ...] = ()
        for number in range(run.budget.rounds + 1):
            best = bench.best
            diagnosis = None
            if best is not None:
                if _is_as_remembered(best, recalled):
                    reason = "the remembered winner holds here as recorded"
                    break
                diagnosis, prescriptions = _examine(number, best, run, session, bench, memory)
                if reason := _reason_to_stop(run, diagnosis, stale):
                    break
            plan = _plan(number, run, session, bench, recalled, prescriptions)
            memory.put_plan(run.id, number, plan)
            if not plan.tasks:
                reason = plan.reason
                break
            bench.announce("orchestrate", f"round {number}: {plan.reason}")
            candidates = _explore(plan, run, session, bench, author, recalled, diagnosis, prescriptions)
            if not candidates:
                reason = "the authors have nothing new to try"
                break
            before = best.measurement.latency_ms if best else None
            bench.measure(number, candidates, diagnosis)
            gained = before is None or (bench.best is not None and bench.best.measurement.latency_ms * MIN_IMPROVEMENT < before)
            stale = 0 if gained else stale + 1
            reason = "the rounds are used up"
            if bench.seconds_left <= 0:
                reason = f"the {run.budget.minutes:g} minutes are used up"
                break
        result = _conclude(run, session, bench, reason, started)
    memory.set_run_state(run.id, RunState.FINISHED, result)
    return result


def _is_as_remembered(best: Attempt, recalled: list[Recalled]) -> bool:
    """Whether the best kernel is what memory holds for this very graph, and runs here about as fast as recorded."""
    if best.candidate.task.move is not Move.RECALL:
        return False
    same = (hit.outcome.latency_ms for hit in recalled if hit.exact and hit.outcome.choices == best.candidate.kernel.choices)
    remembered_ms = next(same, None)
    return remembered_ms is not None and best.measurement.latency_ms <= _AS_REMEMBERED * remembered_ms


def _examine(
    number: int, best: Attempt, run: Run, session: Session, bench: Workbench, memory: Memory
) -> tuple[Diagnosis | None, tuple[Prescription, ...]]:
    """Profile, diagnose, prescribe. What a killed run found in this round stands: its own outcomes may have changed the ranking since.

    Without a profile there is no diagnosis, and the round goes on with what it knows from times alone.
    """
    for kept in memory.diagnoses(run.id):
        if (kept.round, kept.kernel) == (number, best.candidate.kernel.hash):
            return kept.diagnosis, kept.prescriptions
    try:
        profile = bench.profile(best)
    except ProfilerError as ex:
        logger.warning("round %d goes on without a diagnosis: %s", number, ex)
        return None, ()
    diagnosis = diagnose(profile, session.device, session.bound, latency_ms=best.measurement.latency_ms, history=bench.attempts)
    prescriptions = _prescribe(diagnosis, run, session, memory)
    memory.put_diagnosis(run.id, number, best.candidate.kernel.hash, diagnosis, prescriptions)
    bench.announce("diagnose", diagnosis.summary)
    return diagnosis, prescriptions


def _explore(
    plan: Plan,
    run: Run,
    session: Session,
    bench: Workbench,
    author: Author,
    recalled: list[Recalled],
    diagnosis: Diagnosis | None,
    prescriptions: tuple[Prescription, ...],
) -> list[Candidate]:
    """Have the author write every task of the plan; a remembered kernel needs no author."""
    candidates = []
    for task in plan.tasks:
        remembered = _remembered_source(task, recalled)
        if remembered is not None:
            candidates.append(remembered)
            continue
        assignment = Assignment(
            problem=session.problem, graphs=session.graphs, device=session.device, contract=run.contract, task=task,
            parent=bench.kernel(task.parent), diagnosis=diagnosis, prescriptions=prescriptions, history=tuple(bench.attempts),
            recipes=session.recipes, seed=run.seed,
        )  # fmt: skip
        candidates += author.write(assignment)
    return candidates


def _remembered_source(task: Task, recalled: list[Recalled]) -> Candidate | None:
    """A recalled kernel as it was, text and all, if memory kept the text of an exact hit; otherwise its author writes it again."""
    for hit in recalled:
        if task.move is Move.RECALL and hit.exact and hit.source is not None and hit.outcome.choices == task.choices:
            return Candidate(Kernel(hit.source, choices=hit.outcome.choices, flags=hit.outcome.flags), task, "memory")
    return None


def _plan(
    number: int, run: Run, session: Session, bench: Workbench, recalled: list[Recalled], prescriptions: tuple[Prescription, ...]
) -> Plan:
    if number == 0:
        return plan_first_round(recalled, session.writable, run.budget)
    if bench.best is None:  # nothing recalled or seeded has passed yet
        tasks = plan_seeds(session.writable, run.budget, Move.SEED, None)
        return Plan(tuple(tasks), (), "nothing has passed yet: seed again, further down the ranking")
    return plan_round(number, bench.best, prescriptions, session.writable, bench.attempts, run.budget, run.seed)


def _prescribe(diagnosis: Diagnosis, run: Run, session: Session, memory: Memory) -> tuple[Prescription, ...]:
    return consult_memory(
        memory,
        diagnosis,
        session.operators,
        list(session.skills.values()),
        session.device.arch,
        session.contract,
        versions(),
        outcomes=run.memory_mode != "off",
    )


def _reason_to_stop(run: Run, diagnosis: Diagnosis | None, stale: int) -> str:
    if diagnosis is not None and diagnosis.speed_of_light is not None and diagnosis.speed_of_light >= run.budget.target_speed_of_light:
        return f"the best kernel runs at {diagnosis.speed_of_light:.0%} of the speed of light"
    if stale >= _ROUNDS_WITHOUT_GAIN:
        return f"{stale} rounds brought no gain above {MIN_IMPROVEMENT - 1:.1%}"
    return ""


def _conclude(run: Run, session: Session, bench: Workbench, reason: str, started: float) -> RunResult:
    """Judge the fastest attempts in full, in fresh processes, until one holds."""
    baselines = bench.baselines()
    reference = fastest_baseline(baselines)
    final: Attempt | None = None
    refused = "every candidate failed"
    waiting = bench.ranking()
    for _ in range(min(_VERIFY_AT_MOST, len(waiting))):
        attempt = waiting.pop(0)
        verdict = bench.verify(attempt, baselines)
        if verdict.measurement.status is Status.PASSED:
            final = verdict
            break
        refused = f"the judge refused the fastest ({verdict.measurement.status.value}): {verdict.measurement.log.strip()[:200]}"
        # Kernels that differ from a refused one only in sizes share its arithmetic: those of another kind go first (the sort is stable).
        waiting = sorted(waiting, key=partial(_is_same_kind, attempt))
    speedup = speed_of_light = None
    if final is not None:
        timing = final.measurement.timing
        speedup = timing.ratio if timing.ratio is not None else (reference.timing.latency_ms / timing.latency_ms if reference else None)
        speed_of_light = session.bound.time_ms / timing.latency_ms if session.bound else None
        certain = timing.ratio_low is None or timing.ratio_low > 1.0
        if speedup is not None and (speedup < MIN_IMPROVEMENT or not certain):
            bench.announce("measure", f"the fastest kernel is {speedup:.3f}x the best baseline, which is no improvement")
            reason += "; nothing beat the best baseline"
            final, speedup, speed_of_light = None, None, None
    elif bench.attempts:
        reason += f"; {refused}"
    bench.keep_best(final)
    recalled = final is not None and final.candidate.task.move is Move.RECALL
    flags = tuple(
        sorted(
            {
                *(final.measurement.flags if final else ()),
                *(final.candidate.kernel.flags if final else ()),
                *(["recalled"] if recalled else []),
            }
        )
    )
    return RunResult(
        run.id, session.problem.name, session.device.name, not session.present, final, baselines, session.bound, speedup, speed_of_light,
        recalled, bench.measurements, time.monotonic() - started, reason, flags,
    )  # fmt: skip


def _is_same_kind(one: Attempt, other: Attempt) -> bool:
    return _kind(one) == _kind(other)


def _kind(attempt: Attempt) -> tuple[tuple[str, str, str], ...]:
    """What an attempt chose by name rather than by number: recipes, strategies, precisions."""
    choices = attempt.candidate.kernel.choices
    return tuple((choice.recipe, name, value) for choice in choices for name, value in choice.knobs if isinstance(value, str))
