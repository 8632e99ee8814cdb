"""`kmem problem`: a problem file begun, and one looked at without a run."""

from pathlib import Path

import click

from kmem.cli.options.models import ModelOptions, choose_models
from kmem.cli.options.records import takes
from kmem.cli.options.stages import CheckOptions
from kmem.plugins import Registry


@click.group()
def problem() -> None:
    """Begin a problem file, or look at one without a run."""


@problem.command()
@click.argument("what", metavar="FILE|DESCRIPTION")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write a description to; default: a name made of its words, here.",
)
@takes(ModelOptions)
@click.pass_obj
def new(registry: Registry, what: str, out: Path | None, options: ModelOptions) -> None:
    """Write a problem file; a file that is there stays.

    A name that ends in .py becomes a file to start from: a module, the inputs it is run on, and
    what each part is for. A DESCRIPTION in words, such as "fused RMSNorm over the last dimension of
    bf16[32, 4096, 8192] with a residual", becomes that problem: with -m a language model writes it,
    without one it is read for operators and sizes that kmem knows, and what is missing is asked for
    on a terminal. The file is shown and checked.
    """
    if what.endswith(".py"):
        from kmem.cli.actions.problem import write_template

        write_template(Path(what))
        return
    from kmem.cli.actions.describe import describe_problem  # loads torch

    models = choose_models(options, registry.providers) if options.models else ()
    describe_problem(what, out, models, registry)


@problem.command()
@click.argument("file", type=click.Path(path_type=Path))
@takes(CheckOptions)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def check(registry: Registry, file: Path, options: CheckOptions, as_json: bool) -> None:
    """Load and trace a problem file and say what a run would make of it; nothing is run.

    It prints the operators, the mode, the bound on a device, what recipes can write and what stays
    with the library, and the small sizes at which kernels are proved without a GPU. Exit code 1:
    the file breaks the contract, with the remedy.
    """
    from kmem.cli.actions.problem import check_file  # loads torch

    check_file(file, options, registry, as_json=as_json)
