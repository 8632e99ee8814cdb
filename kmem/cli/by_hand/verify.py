"""`kmem verify` and `kmem measure`: the judge on its own.

They judge a file with `ModelNew` from anywhere for a problem file, or what a bundle holds.
"""

from pathlib import Path

import click

from kmem.cli.bad_input import BadInput, OneLineCommand
from kmem.cli.options.judge import JudgeOptions
from kmem.cli.options.records import takes
from kmem.plugins import Registry

_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the verdict as one JSON object."
)


@click.command(cls=OneLineCommand)
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device to estimate for where there is no GPU; default: h200.",
)
@takes(JudgeOptions)
@_JSON
@click.pass_obj
def verify(
    registry: Registry | None,
    problem: Path,
    kernel: Path | None,
    target: str | None,
    options: JudgeOptions,
    as_json: bool,
) -> None:
    """Judge a kernel file against the module it replaces, or repeat what an evidence bundle says.

    PROBLEM defines Model and get_inputs(); KERNEL defines ModelNew. With a bundle (EVIDENCE.json)
    in the place of PROBLEM and no KERNEL, its problem, kernel, contract and seed are judged again
    here, and what differs is said. Exit code 0: passed; 1: not passed, with status and reason; 2:
    one of the files cannot be judged. Without a GPU the verdict comes from the Triton interpreter
    on small sizes and the time is an estimate.
    """
    if kernel is None and problem.suffix != ".json":
        raise BadInput(
            "Missing argument 'KERNEL': give a file with ModelNew, or an evidence bundle (.json) "
            "alone."
        )
    from kmem.cli.actions.judge import verify_bundle, verify_kernel  # loads torch

    if kernel is None:
        verify_bundle(problem, options, registry, as_json=as_json)
    else:
        verify_kernel(problem, kernel, target, options, registry, as_json=as_json)


@click.command(cls=OneLineCommand)
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("kernel", type=click.Path(path_type=Path))
@takes(JudgeOptions)
@_JSON
@click.pass_obj
def measure(
    registry: Registry | None,
    problem: Path,
    kernel: Path,
    options: JudgeOptions,
    as_json: bool,
) -> None:
    """Judge a kernel file and time it, in pairs, against eager and compiled PyTorch; needs a GPU.

    The exit codes are those of `kmem verify`.
    """
    from kmem.cli.actions.judge import measure_kernel  # loads torch

    measure_kernel(problem, kernel, options, registry, as_json=as_json)
