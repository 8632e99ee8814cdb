"""`kmem optimize`: the main job."""

from pathlib import Path

import click

from kmem.cli.options.authors import needed_models, with_author
from kmem.cli.options.records import takes
from kmem.cli.options.run import RunOptions
from kmem.plugins import Registry


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@takes(RunOptions)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def optimize(registry: Registry, problem: Path, options: RunOptions, as_json: bool) -> None:
    """Make the module in PROBLEM fast.

    PROBLEM is a Python file (or a directory with problem.py) that defines Model, get_inputs() and
    perhaps get_init_inputs(). The winner is best_kernel.py in the run directory, with report.md
    beside it and the three fastest kernels in top_kernels/. Exit code 0: a verified kernel was
    produced; 3: nothing beat the best baseline; 130: interrupted, and `kmem runs resume` goes on.
    """
    options = with_author(options)
    models = needed_models(registry, options)
    from kmem.cli.actions.optimize import execute_run, make_run  # loads torch

    execute_run(make_run(problem, options, models), registry, as_json=as_json)
