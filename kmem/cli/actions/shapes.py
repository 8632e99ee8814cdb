"""Carry out a run for each shape, and ship what they found as one table."""

import json
from functools import partial
from pathlib import Path

import click

from kmem.cli.actions.optimize import carry_out
from kmem.cli.exit_codes import EXIT_NOTHING_BEAT_BASELINE
from kmem.deploy.bucketed import carry_out_all
from kmem.deploy.widening import Ranged, Widening
from kmem.plugins import Registry
from kmem.problem.sizing.shapes import read_ranges, read_shapes
from kmem.problem.source.load import load_problem
from kmem.run.directory import default_run_directory
from kmem.run.setup.settings import RunSettings
from kmem.run.setup.shapes import runs_for_files, write_shapes


def execute_shapes(
    path: Path, text: str, settings: RunSettings, registry: Registry, *, as_json: bool
) -> None:
    """Make a module fast at every shape, with progress on stderr; print where the package lies."""
    say = partial(click.echo, err=True)
    problem = load_problem(path)
    shapes = read_shapes(text, problem)
    directory = settings.out or default_run_directory(f"{problem.name}-shapes")
    ranged = Ranged(shapes, read_ranges(text, problem), Widening(problem, directory, registry, say))
    runs = runs_for_files(write_shapes(problem, shapes, directory), settings, directory)
    found = carry_out_all(
        runs,
        lambda run: carry_out(run, registry).finished.result,
        directory,
        say,
        ranged.widen,
    )
    say(str(found))
    if as_json:
        rows = [
            {"shape": dict(shape), "speedup": result.speedup, "run": result.run.id}
            for shape, (_, result) in zip(shapes, found.results, strict=True)
        ]
        where = str(found.package.directory) if found.package is not None else None
        click.echo(json.dumps({"package": where, "shapes": rows}))
    elif found.package is not None:
        click.echo(str(found.package.directory))
    if not found.is_faster:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)
