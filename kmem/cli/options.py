"""Options that several commands share, so that they mean and say the same everywhere."""

import click

from kmem.records import Precision, Purity

precision_option = click.option(
    "--precision",
    type=click.Choice([item.value for item in Precision]),
    default="match",
    show_default=True,
    help="Accuracy contract, shared with the baselines.",
)
purity_option = click.option(
    "--purity",
    type=click.Choice([item.value for item in Purity]),
    default="library",
    show_default=True,
    help="Whether library calls may compete.",
)
target_option = click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device to optimise for, such as h200; default: the GPU of this machine.",
)
memory_option = click.option(
    "--memory",
    "memory_mode",
    type=click.Choice(["off", "read", "rw"]),
    default="rw",
    show_default=True,
    help="Use of the long-term memory.",
)
