"""What `kmem memory ablate` compares: AblationOptions."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.executor import ExecutorOptions
from kmem.cli.options.records import nested, option
from kmem.records import Strategy


@dataclass(frozen=True, slots=True)
class AblationOptions:
    """The options of `kmem memory ablate`."""

    arms: str = option(
        "--arms",
        default="off,read,rw,placebo,shuffled,poison,oracle",
        show_default=True,
        help="What the memory of a run holds; off is always among them.",
    )
    seeds: int = option(
        "--seeds",
        type=click.IntRange(min=1),
        default=5,
        show_default=True,
        help="Searches of each problem with each arm.",
    )
    left_out: tuple[str, ...] = option(
        "--leave-out",
        metavar="CLASS",
        multiple=True,
        help="Operator class that memory has never seen; only its problems are searched. May be "
        "repeated; 'each': every problem's own.",
    )
    strategy: str = option(
        "--strategy",
        type=click.Choice([item.value for item in Strategy]),
        default="bandit",
        show_default=True,
        help="How a search shares out its samples.",
    )
    only: tuple[str, ...] = option(
        "--only",
        metavar="GLOB",
        multiple=True,
        help="Only landscapes whose name matches; may be repeated.",
    )
    out: Path | None = option(
        "--out",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="KMEM_ABLATION",
        help="Keep trials, comparison and plot here.",
    )
    where: ExecutorOptions = nested(ExecutorOptions)
