"""Carry out a run, new or resumed, and say what came of it."""

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from kmem.cli.actions.ceilings import measured_ceilings
from kmem.cli.display.result import result_data
from kmem.cli.display.run import RunDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_NOTHING_BEAT_BASELINE
from kmem.cli.options.run import RunOptions
from kmem.devices import resolve_target
from kmem.errors import KmemError, TargetError
from kmem.explore.models.cost.budget import Spending
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.load import load_problem
from kmem.problem.mode import in_mode
from kmem.records import Device, Lesson, ModelChoice, Run, RunResult, RunState, Strategy
from kmem.run.directory import RunDirectory
from kmem.run.evaluator import EvaluatorProcesses, LiveEvaluator
from kmem.run.loop import optimize
from kmem.run.progress import Announce
from kmem.run.report import FinishedRun, summarise, write_report
from kmem.run.session import open_session
from kmem.serialize import to_json


def make_run(problem: Path, options: RunOptions, models: tuple[ModelChoice, ...]) -> Run:
    """A new run with an id of its own.

    Raises ProblemError, and TargetError for its device.
    """
    loaded = in_mode(load_problem(problem), options.mode)
    device, _ = resolve_target(options.target)
    now = datetime.now(UTC)
    run_id = now.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    place = options.out or Path("runs") / f"{loaded.name}-{run_id}"
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
    """Go on with a run, of which the id or its beginning is given.

    Raises TargetError if the run was begun with a GPU and there is none here, or without one.
    """
    with Memory() as memory:
        run = memory.runs.get(run_id)
        attempts = memory.runs.attempts(run.id)
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
    directory = RunDirectory(Path(run.out_dir))
    device, present = resolve_target(run.target)
    with Memory() as memory, directory.work():
        memory.runs.start(run)
        click.echo(f"run {run.id} in {run.out_dir}", err=True)
        kills = directory.kills()
        if kills:
            click.echo(
                f"the process at work on it was killed; taken up again at {kills[-1]}", err=True
            )
        with _state_kept(run, memory):
            if present:
                device = measured_ceilings(device, memory)
            result, notes = _search(run, device, present, registry, memory)
            notes += tuple(f"its process was killed; taken up again at {time}" for time in kills)
            usage = Spending(run.budget, RunArchive(memory.path, run.id)).usage()
            lessons = memory.runs.lessons(run.id)
            finished = FinishedRun(
                run,
                result,
                memory.runs.attempts(run.id),
                memory.runs.diagnoses(run.id),
                lessons,
                notes,
                usage,
            )
            report = write_report(directory, finished)
            directory.write_text("result.json", to_json(result))
    _tell_people(run, result, lessons, report)
    if as_json:
        click.echo(json.dumps(result_data(run, result, directory, usage)))
    elif result.best is not None:
        click.echo(str(directory.best_kernel))
    if result.best is None:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


@contextmanager
def _state_kept(run: Run, memory: Memory) -> Iterator[None]:
    """Keep in memory that a run was interrupted or failed, and say how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted. Nothing measured is lost: kmem runs resume {run.id}", err=True)
        memory.runs.set_state(run.id, RunState.INTERRUPTED)
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BaseException as ex:
        memory.runs.set_state(run.id, RunState.FAILED)
        if isinstance(ex, KmemError) and memory.runs.attempts(run.id):
            click.echo(
                f"Nothing measured is lost; when it is mended: kmem runs resume {run.id}", err=True
            )
        raise


def _search(
    run: Run, device: Device, present: bool, registry: Registry, memory: Memory
) -> tuple[RunResult, tuple[str, ...]]:
    """The result of the run's rounds, and notes about its problem for the report."""
    # beside the database: compiled kernels are shared by all runs
    cache = memory.path.parent / "cache"
    with (
        EvaluatorProcesses(Path(run.out_dir), cache, present=present) as processes,
        RunDisplay(run) as show,
    ):
        session = open_session(run.problem, run.contract, device, present, registry, memory)
        for note in session.notes:
            click.echo(f"note: {note}", err=True)

        def open_evaluator(announce: Announce) -> LiveEvaluator:
            return LiveEvaluator(run, session, registry, processes, announce)

        result = optimize(run, session, memory, registry, show, open_evaluator=open_evaluator)
    return result, session.notes


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
