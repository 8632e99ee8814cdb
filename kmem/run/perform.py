"""Carry out a run, new or resumed, in this process: what `kmem optimize` and the Python API call.

Nothing is printed here: who calls gives a display for the run's events and a function for lines.
"""

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kmem.devices import resolve_target
from kmem.errors import KmemError, MemoryStoreError, first_line
from kmem.explore.models.cost.budget import Spending
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Device, Run, RunResult, RunState
from kmem.run.directory import RunDirectory
from kmem.run.evaluation.baselines import count_loaded_at_once
from kmem.run.evaluation.evaluator import LiveEvaluator
from kmem.run.evaluation.processes import EvaluatorProcesses
from kmem.run.loop import optimize
from kmem.run.report.finished import Executable, FinishedRun
from kmem.run.report.report import write_report
from kmem.run.setup.ceilings import measured_ceilings
from kmem.run.setup.session import Session, open_session
from kmem.run.state.breakdown import keep_breakdown
from kmem.run.state.diary import noted, write_entry
from kmem.run.state.progress import Announce, Event
from kmem.serialize import to_json

#: What torch.export loads when it is first used: most of the time of tracing a module in a new
#: process (1.3 of 1.4 s of processor time; 10 s where no file is cached).
_TRACING = "torch.export._trace"


@dataclass(frozen=True, slots=True)
class Performed:
    """A run that has ended, with what it left."""

    finished: FinishedRun
    directory: RunDirectory
    report: Path


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told how a run goes."""

    display: AbstractContextManager[Callable[[Event], None]]  # gives the function for each event
    say: Callable[[str], None]  # told in a line what is no event


def perform(run: Run, registry: Registry, audience: Audience) -> Performed:
    """Search until the run's end, and write its results.

    Memory knows the run as interrupted or failed if this raises once the search has begun.
    """
    # The thousand modules of torch.export come in while the device and the processes come up.
    threading.Thread(target=importlib.import_module, args=(_TRACING,), daemon=True).start()
    device, present = resolve_target(run.target)
    directory = RunDirectory(Path(run.out_dir))
    with _taken_away_if_it_never_began(run, directory), Memory() as memory, directory.work(run):
        audience.say(f"run {run.id} in {run.out_dir}")
        kills = directory.kills()
        if kills:
            audience.say(f"the process at work on it was killed; taken up again at {kills[-1]}")
        with _state_kept(run, memory):
            if present:
                device = measured_ceilings(device, memory, audience.say)
            result, session = _search(run, device, present, registry, memory, audience)
            killed = tuple(f"its process was killed; taken up again at {time}" for time in kills)
            finished = replace(
                recall_finished(memory, run, result),
                notes=(*session.notes, *killed),
                executable=Executable.of(session),
            )
            report = write_results(directory, finished)
    return Performed(finished, directory, report)


def recall_finished(memory: Memory, run: Run, result: RunResult) -> FinishedRun:
    """What memory knows of a finished run, for its report."""
    return FinishedRun(
        run,
        result,
        memory.runs.attempts(run.id),
        memory.runs.diagnoses(run.id),
        memory.runs.lessons(run.id),
        usage=Spending(run.budget, RunArchive(memory.path, run.id)).usage(),
        plans=memory.runs.plans(run.id),
        verdicts=memory.runs.verdicts(run.id),
    )


def write_results(directory: RunDirectory, finished: FinishedRun) -> Path:
    """Write what a run leaves beside its kernels; returns the report's path."""
    directory.write_text("result.json", to_json(finished.result))
    return write_report(directory, finished)


@contextmanager
def _taken_away_if_it_never_began(run: Run, directory: RunDirectory) -> Iterator[None]:
    """Leave no directory of a run that was refused before its first round: there is nothing in it.

    Such a run has no row in memory either: `_search` adds that once the problem is traced.
    """
    try:
        yield
    except BaseException:
        if not has_begun(run):
            directory.abandon(run)
        raise


def has_begun(run: Run) -> bool:
    """Whether memory knows the run, so that it can be resumed."""
    try:
        with Memory.to_read() as memory:
            return memory.runs.has(run.id)
    except MemoryStoreError:
        return False


@contextmanager
def _state_kept(run: Run, memory: Memory) -> Iterator[None]:
    """Keep in memory that a run was interrupted or failed."""
    try:
        yield
    except KeyboardInterrupt:
        if memory.runs.has(run.id):
            memory.runs.set_state(run.id, RunState.INTERRUPTED, failure="interrupted")
        raise
    except BaseException as ex:
        if memory.runs.has(run.id):
            reason = str(ex) if isinstance(ex, KmemError) else first_line(ex)
            memory.runs.set_state(run.id, RunState.FAILED, failure=reason)
        raise


def _search(
    run: Run,
    device: Device,
    present: bool,
    registry: Registry,
    memory: Memory,
    audience: Audience,
) -> tuple[RunResult, Session]:
    """The result of the run's rounds, and what it worked with."""
    # beside the database: compiled kernels are shared by all runs
    # with its real name, under which Triton finds a kernel again in another run
    cache = (memory.path.parent / "cache").resolve()
    left = run.budget.minutes - memory.runs.seconds_spent(run.id) / 60
    sitting = replace(run, budget=replace(run.budget, minutes=max(0.0, left)))
    baselines = count_loaded_at_once(
        memory, run.problem, device, run.contract, run.budget.baselines
    )
    root = Path(run.out_dir)
    write_entry(root, "trace", f"tracing {run.problem.name} and finding the bound for {run.target}")
    with (
        EvaluatorProcesses(
            root, cache, run.problem, present=present, baselines=baselines
        ) as processes,
        audience.display as show,
    ):
        with processes.cores.hold():
            session = open_session(run.problem, run.contract, device, present, registry, memory)
        keep_breakdown(RunDirectory(root), session.traced)
        memory.runs.start(run)
        for note in session.notes:
            audience.say(f"note: {note}")

        def open_evaluator(announce: Announce) -> LiveEvaluator:
            return LiveEvaluator(sitting, session, registry, processes, announce)

        result = optimize(
            run, session, memory, registry, noted(root, show), open_evaluator=open_evaluator
        )
    return result, session
