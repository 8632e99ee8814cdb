"""Carry out a run, new or resumed, and say what came of it."""

import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from kmem.cli.actions.ceilings import measured_ceilings
from kmem.cli.display.picture import show_picture
from kmem.cli.display.result import result_data
from kmem.cli.display.run import RunDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_NOTHING_BEAT_BASELINE
from kmem.cli.options.models import check_models
from kmem.cli.options.run import RunOptions
from kmem.devices import resolve_target
from kmem.errors import KmemError, MemoryStoreError, TargetError, first_line
from kmem.explore.models.cost.budget import Spending
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.load import load_problem
from kmem.problem.mode import in_mode
from kmem.records import Device, Lesson, ModelChoice, Run, RunResult, RunState, Strategy
from kmem.run.baselines import count_loaded_at_once
from kmem.run.directory import RunDirectory, default_run_directory
from kmem.run.evaluator import LiveEvaluator
from kmem.run.finished import Executable, FinishedRun
from kmem.run.first_screen import summarise
from kmem.run.loop import optimize
from kmem.run.processes import EvaluatorProcesses
from kmem.run.progress import Announce
from kmem.run.report import write_report
from kmem.run.session import Session, open_session
from kmem.serialize import to_json


def make_run(problem: Path, options: RunOptions, models: tuple[ModelChoice, ...]) -> Run:
    """A new run with an id of its own.

    Raises ProblemError, and TargetError for its device.
    """
    loaded = in_mode(load_problem(problem), options.mode)
    device, _ = resolve_target(options.target)
    now = datetime.now(UTC)
    run_id = now.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    place = options.out or default_run_directory(f"{loaded.name}-{run_id}")
    return Run(
        run_id,
        loaded,
        device.name,
        options.contract.contract,
        options.budget,
        options.memory_mode,
        options.seed,
        str(place.resolve()),
        now.isoformat(timespec="seconds"),
        authors=options.authors,
        strategy=Strategy(options.strategy),
        models=models,
    )


def resume(run_id: str, registry: Registry, *, as_json: bool) -> None:
    """Go on with a run, of which the id or its beginning is given; a finished one is only told.

    Raises TargetError if the run was begun with a GPU and there is none here, or without one.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        attempts = memory.runs.attempts(run.id)
        entry = memory.run_entries.one(run.id)
        if entry.state is RunState.FINISHED and entry.result is not None:
            click.echo(f"Run {run.id} has finished already; nothing is done again.", err=True)
            directory = RunDirectory(Path(run.out_dir))
            finished = _finished(memory, run, entry.result)
            report = directory.root / "report.md"
            if not report.is_file():  # killed between its last verdict and its report
                report = _write_results(directory, finished)
            _tell_result(finished, directory, report, as_json=as_json)
            return
    check_models(run.models, registry.providers)
    _, present = resolve_target(run.target)
    if any(attempt.measurement.estimated is present for attempt in attempts):
        where = "without a GPU, by estimates" if present else f"on a GPU ({run.target})"
        raise TargetError(
            f"Run {run.id} was begun {where}; resume it on such a machine, or start anew with kmem "
            f"optimize"
        )
    execute_run(run, registry, as_json=as_json)


def execute_run(run: Run, registry: Registry, *, as_json: bool) -> None:
    """Search, with progress on stderr, print the result on stdout, and exit with its code."""
    device, present = resolve_target(run.target)
    directory = RunDirectory(Path(run.out_dir))
    display = RunDisplay(run)
    with _taken_away_if_it_never_began(run, directory), Memory() as memory, directory.work(run):
        click.echo(f"run {run.id} in {run.out_dir}", err=True)
        kills = directory.kills()
        if kills:
            click.echo(
                f"the process at work on it was killed; taken up again at {kills[-1]}", err=True
            )
        with _state_kept(run, memory, display):
            if present:
                device = measured_ceilings(device, memory)
            result, session = _search(run, device, present, registry, memory, display)
            killed = tuple(f"its process was killed; taken up again at {time}" for time in kills)
            finished = replace(
                _finished(memory, run, result),
                notes=(*session.notes, *killed),
                executable=Executable.of(session),
            )
            report = _write_results(directory, finished)
    _tell_result(finished, directory, report, as_json=as_json)


@contextmanager
def _taken_away_if_it_never_began(run: Run, directory: RunDirectory) -> Iterator[None]:
    """Leave no directory of a run that was refused before its first round: there is nothing in it.

    Such a run has no row in memory either: `_search` adds that once the problem is traced.
    """
    try:
        yield
    except BaseException:
        if not _is_known(run):
            directory.abandon(run)
        raise


def _is_known(run: Run) -> bool:
    try:
        with Memory.to_read() as memory:
            return memory.runs.has(run.id)
    except MemoryStoreError:
        return False


def _write_results(directory: RunDirectory, finished: FinishedRun) -> Path:
    """Write what a run leaves beside its kernels; returns the report's path."""
    directory.write_text("result.json", to_json(finished.result))
    return write_report(directory, finished)


def _finished(memory: Memory, run: Run, result: RunResult) -> FinishedRun:
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


@contextmanager
def _state_kept(run: Run, memory: Memory, display: RunDisplay) -> Iterator[None]:
    """Keep in memory that a run was interrupted or failed, and say how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        if memory.runs.has(run.id):
            click.echo(
                f"\nInterrupted{_best_so_far(run, display)}. Nothing measured is lost: kmem runs "
                f"resume {run.id}",
                err=True,
            )
            memory.runs.set_state(run.id, RunState.INTERRUPTED, failure="interrupted")
        else:
            click.echo("\nInterrupted before anything was tried; nothing is left", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BaseException as ex:
        if memory.runs.has(run.id):
            reason = str(ex) if isinstance(ex, KmemError) else first_line(ex)
            memory.runs.set_state(run.id, RunState.FAILED, failure=reason)
            if isinstance(ex, KmemError) and memory.runs.attempts(run.id):
                click.echo(
                    f"Nothing measured is lost; when it is mended: kmem runs resume {run.id}",
                    err=True,
                )
        raise


def _best_so_far(run: Run, display: RunDisplay) -> str:
    """Where the run stood, and where its best kernel lies if there is one."""
    place = RunDirectory(Path(run.out_dir)).best_kernel
    if not place.is_file():
        return ""
    return f"; {display.standing}: {place} (provisional, not verified)"


def _search(
    run: Run,
    device: Device,
    present: bool,
    registry: Registry,
    memory: Memory,
    display: RunDisplay,
) -> tuple[RunResult, Session]:
    """The result of the run's rounds, and what it worked with."""
    # beside the database: compiled kernels are shared by all runs
    cache = memory.path.parent / "cache"
    left = run.budget.minutes - memory.runs.seconds_spent(run.id) / 60
    sitting = replace(run, budget=replace(run.budget, minutes=max(0.0, left)))
    baselines = count_loaded_at_once(
        memory, run.problem, device, run.contract, run.budget.baselines
    )
    with (
        EvaluatorProcesses(
            Path(run.out_dir), cache, run.problem, present=present, baselines=baselines
        ) as processes,
        display as show,
    ):
        session = open_session(run.problem, run.contract, device, present, registry, memory)
        memory.runs.start(run)
        for note in session.notes:
            click.echo(f"note: {note}", err=True)

        def open_evaluator(announce: Announce) -> LiveEvaluator:
            return LiveEvaluator(sitting, session, registry, processes, announce)

        result = optimize(run, session, memory, registry, show, open_evaluator=open_evaluator)
    return result, session


def _tell_result(
    finished: FinishedRun, directory: RunDirectory, report: Path, *, as_json: bool
) -> None:
    """Say what came of a run on stderr and stdout, and exit with its code."""
    run, result = finished.run, finished.result
    if sys.stdout.isatty():
        show_picture(Console(stderr=True), result, finished.attempts)
    _tell_people(run, result, finished.lessons, report)
    if as_json:
        click.echo(json.dumps(result_data(run, result, directory, finished.usage)))
    elif result.best is not None:
        click.echo(str(directory.best_kernel))
    if result.best is None:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


def _tell_people(run: Run, result: RunResult, lessons: Sequence[Lesson], report: Path) -> None:
    """Say on stderr what came of the run and where its report lies."""
    click.echo(summarise(result), err=True)
    if worth := sum(lesson.worth_a_skill for lesson in lessons):
        click.echo(
            f"{worth} of {len(lessons)} lessons may hold for other modules: kmem skills distill "
            f"{run.id}",
            err=True,
        )
    if result.best is not None:  # otherwise the summary says so
        click.echo(f"It stopped because {result.reason}.", err=True)
    click.echo(f"report: {report}", err=True)
