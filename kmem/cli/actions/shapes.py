"""Carry out a run for each shape, and ship what they found as one table."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from kmem.cli.actions.optimize import carry_out
from kmem.cli.exit_codes import EXIT_NOTHING_BEAT_BASELINE
from kmem.deploy.package import export_package
from kmem.plugins import Registry
from kmem.problem.load import load_problem
from kmem.problem.shapes import label_of, read_shapes
from kmem.run.directory import default_run_directory
from kmem.run.first_screen import summarise
from kmem.run.result import Result
from kmem.run.settings import RunSettings
from kmem.run.shapes import runs_for_shapes

_say = partial(click.echo, err=True)


def execute_shapes(
    path: Path, text: str, settings: RunSettings, registry: Registry, *, as_json: bool
) -> None:
    """Make a module fast at every shape, with progress on stderr; print where the package lies.

    A shape at which nothing beats the best baseline has no row in the table: there, as at every
    shape that was not named, the module's own code runs.
    """
    problem = load_problem(path)
    shapes = read_shapes(text, problem)
    directory = settings.out or default_run_directory(f"{problem.name}-shapes")
    runs = runs_for_shapes(problem, shapes, settings, directory)
    rows: list[dict[str, Any]] = []
    faster: list[Result] = []
    for shape, run in zip(shapes, runs, strict=True):
        _say(f"{label_of(shape)}:")
        result = Result(run, carry_out(run, registry).finished.result)
        _say(summarise(result.outcome))
        if result.is_faster:
            faster.append(result)
        rows.append({"shape": dict(shape), "speedup": result.speedup, "run": run.id})
    package = None
    if faster:
        package = export_package(faster, directory / "package", problem.name.lower(), force=True)
    _say(f"{len(faster)} of {len(shapes)} shapes have a kernel")
    if as_json:
        where = str(package.directory) if package is not None else None
        click.echo(json.dumps({"package": where, "shapes": rows}))
    elif package is not None:
        click.echo(str(package.directory))
    if package is None:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)
