"""`kmem optimize`: the main job."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from kmem.cli.options.models import choose_models
from kmem.cli.options.records import takes
from kmem.cli.options.run import RunOptions
from kmem.cli.page_beside import page_beside
from kmem.explore.models.roles import check_models
from kmem.plugins import Registry
from kmem.records import ModelChoice


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@takes(RunOptions)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--ui", is_flag=True, help="Serve the page and open it on this run.")
@click.pass_obj
def optimize(
    registry: Registry, problem: Path, options: RunOptions, as_json: bool, ui: bool
) -> None:
    """Make the module in PROBLEM fast.

    PROBLEM is a Python file (or a directory with problem.py) that defines Model, get_inputs() and
    perhaps get_init_inputs(). The winner is best_kernel.py in the run directory, with report.md
    beside it and the three fastest kernels in top_kernels/. Exit code 0: a verified kernel was
    produced; 3: nothing beat the best baseline; 130: interrupted, and `kmem runs resume` goes on.
    """
    options = _completed(options)
    models = _models(registry, options)
    check_models(models, registry.providers)
    from kmem.cli.actions.optimize import execute_run, make_run  # loads torch

    run = make_run(problem, options, models)
    with page_beside(run) if ui else nullcontext():
        execute_run(run, registry, as_json=as_json)


def _completed(options: RunOptions) -> RunOptions:
    """The options with the author that a model given alone asks for."""
    source = click.get_current_context().get_parameter_source
    if source("models") is not ParameterSource.COMMANDLINE:
        return options
    if source("author") is not ParameterSource.DEFAULT:
        return options
    click.echo("-m names a language model: --author both", err=True)
    return replace(options, author="both")


def _models(registry: Registry, options: RunOptions) -> tuple[ModelChoice, ...]:
    """The models that authors need.

    Raises UsageError if authors and models do not fit.
    """
    if "llm" in options.authors:
        if not options.models.models:
            raise click.UsageError(
                f"--author {options.author} needs a language model: give one with -m"
            )
        return choose_models(options.models, registry.providers)
    if click.get_current_context().get_parameter_source("models") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "-m names a language model, but --author recipes asks none: add --author llm or "
            "--author both"
        )
    return ()
