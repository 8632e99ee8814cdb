"""Carry out a run, new or resumed, and say what came of it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from kmem.cli.display.picture import show_picture
from kmem.cli.display.result import result_data
from kmem.cli.display.run import RunDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_NOTHING_BEAT_BASELINE
from kmem.cli.options.run import RunOptions
from kmem.devices import resolve_target
from kmem.errors import KmemError, TargetError
from kmem.explore.models.roles import check_models
from kmem.measure.user_test import read_user_test
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Kernel, ModelChoice, Run, RunState, Strategy
from kmem.run.directory import RunDirectory
from kmem.run.evaluation.single import Terms, make_case, read_kernel, read_small_constants
from kmem.run.perform import (
    Audience,
    Performed,
    has_begun,
    perform,
    recall_finished,
    write_results,
)
from kmem.run.report.finished import FinishedRun
from kmem.run.report.first_screen import NOT_REMEMBERED, summarise
from kmem.run.report.starting import describe_start
from kmem.run.setup.settings import RunSettings, new_run

_say = partial(click.echo, err=True)


def run_settings(
    problem: Path, options: RunOptions, models: tuple[ModelChoice, ...]
) -> RunSettings:
    """What the options tell a run. Raises CaseError: if the given kernel is none."""
    return RunSettings(
        options.budget,
        options.contract.contract,
        options.target,
        options.mode,
        options.memory_mode,
        options.authors,
        models,
        Strategy(options.strategy),
        options.out,
        options.seed,
        _start(problem, options) if options.start else None,
        read_user_test(options.test) if options.test else None,
    )


def make_run(problem: Path, options: RunOptions, models: tuple[ModelChoice, ...]) -> Run:
    """A new run, as the options say.

    Raises ProblemError, and TargetError for its device.
    """
    return new_run(problem, run_settings(problem, options, models))


def _start(problem: Path, options: RunOptions) -> Kernel:
    """The kernel to start from, checked as one that is to be judged.

    Raises CaseError: if it is no kernel for the problem.
    """
    file = options.start
    terms = Terms(options.contract.contract, mode=options.mode)
    constants = read_small_constants(file)
    case = make_case(problem, read_kernel(file), terms, name=str(file), small_constants=constants)
    return case.kernel


def resume(run_id: str, registry: Registry, *, as_json: bool) -> None:
    """Go on with a run, of which the id or its beginning is given; a finished one is only told.

    Raises TargetError if the run was begun with a GPU and there is none here, or without one.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        attempts = memory.runs.attempts(run.id)
        entry = memory.run_entries.one(run.id)
        if entry.state is RunState.FINISHED and entry.result is not None:
            _say(f"Run {run.id} has finished already; nothing is done again.")
            directory = RunDirectory(Path(run.out_dir))
            finished = recall_finished(memory, run, entry.result)
            report = directory.root / "report.md"
            if not report.is_file():  # killed between its last verdict and its report
                report = write_results(directory, finished)
            _tell_result(Performed(finished, directory, report), as_json=as_json)
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
    _tell_result(carry_out(run, registry), as_json=as_json)


def carry_out(run: Run, registry: Registry) -> Performed:
    """Search, with progress on stderr."""
    display = RunDisplay(run)
    with _told_how_to_go_on(run, display):
        return perform(run, registry, Audience(display, _say))


@contextmanager
def _told_how_to_go_on(run: Run, display: RunDisplay) -> Iterator[None]:
    """Say how to go on with a run that was interrupted or failed."""
    try:
        yield
    except KeyboardInterrupt:
        if has_begun(run):
            _say(
                f"\nInterrupted{_best_so_far(run, display)}. Nothing measured is lost: kmem runs "
                f"resume {run.id}"
            )
        else:
            _say("\nInterrupted before anything was tried; nothing is left")
        raise SystemExit(EXIT_INTERRUPTED) from None
    except KmemError:
        if has_begun(run) and _has_attempts(run):
            _say(f"Nothing measured is lost; when it is mended: kmem runs resume {run.id}")
        raise


def _has_attempts(run: Run) -> bool:
    with Memory.to_read() as memory:
        return bool(memory.runs.attempts(run.id))


def _best_so_far(run: Run, display: RunDisplay) -> str:
    """Where the run stood, and where its best kernel lies if there is one."""
    place = Path(run.out_dir) / "best_kernel.py"
    if not place.is_file():
        return ""
    return f"; {display.standing}: {place} (provisional, not verified)"


def _tell_result(performed: Performed, *, as_json: bool) -> None:
    """Say what came of a run on stderr and stdout, and exit with its code."""
    finished, directory = performed.finished, performed.directory
    run, result = finished.run, finished.result
    if sys.stdout.isatty():
        show_picture(Console(stderr=True), result, finished.attempts)
    _tell_people(finished, performed.report)
    if as_json:
        click.echo(json.dumps(result_data(run, result, directory, finished.usage)))
    elif result.best is not None:
        click.echo(str(directory.best_kernel))
    if result.best is None:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


def _tell_people(finished: FinishedRun, report: Path) -> None:
    """Say on stderr what came of the run and where its report lies."""
    run, result = finished.run, finished.result
    _say(summarise(result))
    if started := describe_start(run, result, finished.attempts):
        _say(started)
    lessons = finished.lessons
    if worth := sum(lesson.worth_a_skill for lesson in lessons):
        _say(
            f"{worth} of {len(lessons)} lessons may hold for other modules: kmem skills distill "
            f"{run.id}"
        )
    if result.best is not None:  # otherwise the summary says so
        _say(f"It stopped because {result.reason}.")
    if result.estimated:
        _say(NOT_REMEMBERED)
    _say(f"report: {report}")
