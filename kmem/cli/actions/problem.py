"""Begin a problem file, or say what a run would make of one."""

from pathlib import Path

import click

from kmem.cli.display.problem import describe_preview
from kmem.cli.options.stages import CheckOptions
from kmem.devices import detect_device, named_target
from kmem.errors import OutputError
from kmem.plugins import Registry
from kmem.problem.features.mode import in_mode
from kmem.problem.source.load import load_problem
from kmem.records import Contract, Precision
from kmem.run.setup.preview import Preview, preview_problem
from kmem.serialize import to_json

_DEFAULT_TARGET = "h200"
_TEMPLATE = '''\
"""What the module computes, in a sentence."""

import torch
import torch.nn.functional as F

TOKENS, WIDTH = 4096, 1024  # sizes that matter to you: kernels are written for exactly these


class Model(torch.nn.Module):
    """The module to make fast, as it stands in your program; other modules may be imported."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.eval()  # kernels are written for the mode in which the constructor leaves the module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(x))


def get_inputs() -> list[torch.Tensor]:
    """The arguments of forward, drawn anew at each call."""
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs() -> list[int]:
    """The arguments of Model; leave the function out if there are none."""
    return [WIDTH]
'''


def write_template(file: Path) -> None:
    """Write a problem file to start from. Raises OutputError as `write_new` does."""
    write_new(file, _TEMPLATE)
    click.echo(str(file))
    click.echo(f"Put your module in, then: kmem problem check {file}", err=True)


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises OutputError: if there is a file, or none can be written.
    """
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as ex:
        raise OutputError(f"{file} is there already; give another name") from ex
    except OSError as ex:
        raise OutputError(f"Cannot write {file}: {ex.strerror}; give another place") from ex


def preview_file(file: Path, options: CheckOptions, registry: Registry) -> Preview:
    """What a run would make of a problem file.

    Raises ProblemError, TargetError: as their names say.
    """
    target, present = options.target, detect_device()
    named = target is not None and not (present and target.lower() == present.name)
    device = named_target(target or _DEFAULT_TARGET) if named or present is None else present
    problem = in_mode(load_problem(file), options.mode)
    return preview_problem(problem, Contract(Precision(options.precision)), device, registry)


def check_file(file: Path, options: CheckOptions, registry: Registry, *, as_json: bool) -> None:
    """Print what a run would make of a problem file."""
    found = preview_file(file, options, registry)
    click.echo(to_json(found) if as_json else describe_preview(found))
