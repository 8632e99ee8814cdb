"""What the page gets from the command line: how runs start, how this machine is checked."""

from functools import partial
from pathlib import Path

import click

from kmem.cli.actions.doctor import check_machine
from kmem.plugins import Registry
from kmem.ui.app import Parts
from kmem.ui.pages.machine import Checked


def page_parts(
    optimize: click.Command, registry: Registry, database: Path, landscapes: Path
) -> Parts:
    """The parts of the page over a database and a directory of landscapes.

    Args:
        optimize: the command that begins a run, whose options the page offers.
    """
    return Parts(database, registry, optimize, partial(_check, registry), landscapes)


def _check(registry: Registry) -> list[Checked]:
    """The checks of `kmem doctor`, without the minute that measures the GPU's ceilings."""
    _, checks = check_machine(registry, measure=False, announce=lambda text: None)
    return [Checked(check.name, check.ok, check.detail, check.remedy) for check in checks]
