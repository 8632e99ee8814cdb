"""What several commands ask in the same words: contract, target and use of the memory.

Each function gives a field for a record of options (see records.py).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kmem.cli.options.records import option
from kmem.records import Contract, Precision, Purity

#: Mirrors kmem.problem.features.mode.MODES, whose package loads torch.
_MODES = ("train", "eval")


def precision_option(text: str) -> Any:
    """`--precision`, with the help that says whose accuracy the command means."""
    return option(
        "--precision",
        type=click.Choice([item.value for item in Precision]),
        default="match",
        show_default=True,
        help=text,
    )


def purity_option(text: str) -> Any:
    """`--purity`, with the help that says what it means to the command."""
    return option(
        "--purity",
        type=click.Choice([item.value for item in Purity]),
        default="library",
        show_default=True,
        help=text,
    )


def mode_option() -> Any:
    """`--mode`."""
    return option(
        "--mode",
        type=click.Choice(_MODES),
        help="Mode of the module: train or eval; default: as the file leaves it, which is training "
        "unless it calls eval().",
    )


def target_option(
    text: str = "Device to optimise for, such as h200; default: the GPU of this machine.",
) -> Any:
    """`--target`, with the help that says what the device is for and what it is by default."""
    return option("--target", envvar="KMEM_TARGET", help=text)


def user_test_option() -> Any:
    """`--test`."""
    return option(
        "--test",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A test of your own that a kernel must pass as well, for pytest or a script that "
        "exits with 0: it imports ModelNew from kernel and Model from problem, and runs confined.",
    )


def memory_option() -> Any:
    """`--memory`."""
    return option(
        "--memory",
        type=click.Choice(["off", "read", "rw"]),
        default="rw",
        show_default=True,
        help="Use of the long-term memory.",
    )


@dataclass(frozen=True, slots=True)
class ContractOptions:
    """What a kernel must keep, and what it may call."""

    precision: str = precision_option("Accuracy contract, shared with the baselines.")
    purity: str = purity_option("Whether library calls may compete.")

    @property
    def contract(self) -> Contract:
        """Both as the record that a run keeps."""
        return Contract(Precision(self.precision), Purity(self.purity))
