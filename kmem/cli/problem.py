"""`kmem problem`: a problem file begun, and one looked at without a run."""

from pathlib import Path

import click

from kmem.cli.options.records import takes
from kmem.cli.options.stages import CheckOptions
from kmem.plugins import Registry


@click.group()
def problem() -> None:
    """Begin a problem file, or look at one without a run."""


@problem.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def new(file: Path) -> None:
    """Write a problem file to start from; a file that is there stays.

    It holds a module, the inputs it is run on, and what each part is for.
    """
    from kmem.cli.actions.problem import write_template

    write_template(file)


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
