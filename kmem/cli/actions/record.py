"""`kmem bench --record`: measure whole knob landscapes, for searches that need no GPU."""

import shlex
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import click

from kmem.bench.problems import find_problems
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.landscapes import recording_progress
from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.cli.options.bench import BenchOptions
from kmem.devices import resolve_target
from kmem.errors import ProblemError
from kmem.learning.recording.request import Asked
from kmem.learning.recording.schedule import record_landscapes
from kmem.learning.suite import SUFFIX, load_suite
from kmem.memory.store import Memory
from kmem.problem.load import load_problem
from kmem.records import Problem
from kmem.run.ceilings import measured_ceilings

_SEED = 0


def record_suite(paths: tuple[Path, ...], options: BenchOptions, root: Path) -> None:
    """Record the landscapes of every problem under the paths into a directory, and print its path.

    Exits 130 if interrupted, with what was measured kept.
    """
    if not paths:
        raise click.UsageError(
            "Name problem files, directories of them, or a suite file such as "
            "problems/landscapes.json."
        )
    device, present = resolve_target(options.target)
    problems = find_suite(paths, options.level, options.only)
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
            asked = Asked(
                device,
                present,
                options.contract.contract,
                options.settings,
                _SEED,
                options.minutes,
                options.jobs,
            )
            record_landscapes(problems, root, asked, show)
    except KeyboardInterrupt:
        again = shlex.join(["kmem", *sys.argv[1:]])
        click.echo(f"\nInterrupted. What is measured is kept; go on with: {again}", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
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
