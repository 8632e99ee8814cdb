"""`kmem bench --record`: measure whole knob landscapes, for searches that need no GPU."""

import shlex
import shutil
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import click

from kmem.bench.problems import find_problems
from kmem.cli.actions.crews import (
    ask_for_card,
    count_gpus,
    find_executor,
    known_ceilings,
    open_desk,
    say,
    target_of,
)
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.landscapes import recording_progress, show_outlook
from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.cli.options.bench import BenchOptions
from kmem.devices import resolve_target
from kmem.engines.executor import Wanted
from kmem.errors import ProblemError
from kmem.learning.landscape import LandscapeDirectory
from kmem.learning.recording.elsewhere import record_elsewhere
from kmem.learning.recording.outlook import look_ahead
from kmem.learning.recording.request import Asked
from kmem.learning.recording.schedule import record_landscapes
from kmem.learning.suite import SUFFIX, load_suite
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.source.load import load_problem
from kmem.records import Device, Problem
from kmem.run.setup.ceilings import measured_ceilings

_SEED = 0


def record_suite(
    paths: tuple[Path, ...], options: BenchOptions, root: Path, registry: Registry
) -> None:
    """Record the landscapes of every problem under the paths into a directory, and print its path.

    Exits 130 if interrupted, with what was measured kept.
    """
    if not paths:
        raise click.UsageError(
            "Name problem files, directories of them, or a suite file such as "
            "problems/landscapes.json."
        )
    problems = find_suite(paths, options.level, options.only)
    if options.listed:
        device, _ = resolve_target(options.target)
        asked = _asked(options, device, present=True)
        show_outlook(look_ahead(LandscapeDirectory(root), problems, asked))
        return
    if options.where.executor != "local" or options.gpus is not None:
        if options.within is not None:
            raise click.UsageError(
                "--within ends a recording on this machine; with an executor, interrupt it"
            )
        _record_away(problems, options, root, registry)
        return
    device, present = resolve_target(options.target)
    click.echo(
        f"recording landscapes of {len(problems)} problems for {device.name} in {root}", err=True
    )
    try:
        with interrupt_on_termination(), recording_progress() as show:
            if present:
                with Memory() as memory:
                    device = measured_ceilings(
                        device, memory, lambda text: click.echo(text, err=True)
                    )
            record_landscapes(
                problems,
                root,
                _asked(options, device, present),
                show,
                within_minutes=options.within,
            )
    except KeyboardInterrupt:
        _tell_how_to_go_on()
        raise SystemExit(EXIT_INTERRUPTED) from None
    click.echo(str(root))


def _asked(options: BenchOptions, device: Device, present: bool) -> Asked:
    return Asked(
        device,
        present,
        options.contract.contract,
        options.settings,
        _SEED,
        options.minutes,
        options.jobs,
    )


def _tell_how_to_go_on() -> None:
    again = shlex.join(["kmem", *sys.argv[1:]])
    click.echo(f"\nInterrupted. What is measured is kept; go on with: {again}", err=True)


def _record_away(
    problems: tuple[Problem, ...], options: BenchOptions, root: Path, registry: Registry
) -> None:
    """Record on the workers of a crew, a problem on each."""
    executor = find_executor(registry, options.where)
    gpus = count_gpus(executor, options.where, options.gpus)
    place = root.resolve() / "crew"
    place.mkdir(parents=True, exist_ok=True)
    cpus = 0 if gpus else options.jobs
    # one problem at a time on a GPU: its judge fills it
    wanted = Wanted(gpus, cpus, address=options.where.address, directory=place)
    try:
        with interrupt_on_termination(), recording_progress() as show:
            reference = None
            if gpus:
                with open_desk(executor, wanted) as desk:
                    reference = ask_for_card(desk)
            device, present = target_of(options.target, reference)
            if present:
                with Memory.to_read() as memory:  # the rates as measured, if they are known
                    device = memory.devices.ceilings(device.name) or device
            with executor.hire(wanted, say) as crew:
                asked = _asked(options, device, present)
                if reference is not None:
                    ceilings = known_ceilings(reference)
                    asked = replace(asked, card=reference.card, ceilings=ceilings)
                record_elsewhere(crew, problems, root, asked, show)
    except KeyboardInterrupt:
        _tell_how_to_go_on()
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    click.echo(str(root))


def find_suite(
    paths: tuple[Path, ...], level: int | None, only: tuple[str, ...]
) -> tuple[Problem, ...]:
    """The problems of suite files, and those of files and directories as they are.

    Args:
        paths: suite files, problem files, or directories of problems.
        level: only this level of KernelBench checkouts; None: all of them.
        only: shell patterns; a problem is kept if its name matches one. None given: all are kept.
    Raises:
        ProblemError: if a path is none of these, or nothing is left.
    """
    problems: list[Problem] = []
    for path in paths:
        if path.suffix == SUFFIX:
            problems += load_suite(path)
        else:
            problems += [load_problem(found.path) for found in find_problems([path], level)]
    kept = {
        problem.name: problem
        for problem in problems
        if not only or any(fnmatchcase(problem.name, pattern) for pattern in only)
    }
    if not kept:
        raise ProblemError(
            f"No problem of {', '.join(map(str, paths))} is called {' or '.join(only)}; see the "
            f"names in the suite"
        )
    return tuple(kept.values())
