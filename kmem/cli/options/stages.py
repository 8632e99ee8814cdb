"""What the stages by hand and the look at a problem can be told."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.contract import mode_option, precision_option, target_option
from kmem.cli.options.records import option
from kmem.cli.options.whole import input_option


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of `kmem problem check`."""

    target: str | None = target_option(
        "Device of the bound, such as h200; default: the GPU here, else h200."
    )
    precision: str = precision_option("Accuracy contract of the bound and of what recipes match.")
    mode: str | None = mode_option()


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The options of `kmem profile`."""

    target: str | None = target_option(
        "Device to profile for, such as h200; default: the GPU of this machine."
    )
    profiler: str = option(
        "--profiler",
        default="auto",
        show_default=True,
        help="ncu (hardware counters), cupti (times), static (no GPU; estimated), or auto: the "
        "first that works.",
    )
    precision: str = precision_option("Accuracy contract to run under.")
    mode: str | None = mode_option()
    tables: bool = option(
        "--tables",
        is_flag=True,
        help="Print where the time goes as tables, not a Profile for the next stage.",
    )
    inputs: tuple[str, ...] = input_option()
    picture: Path | None = option(
        "--picture",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write the tables' treemap, an SVG file.",
    )
    as_json: bool = option("--json", is_flag=True, help="Print the tables as one JSON object.")


@dataclass(frozen=True, slots=True)
class DiagnoseOptions:
    """The options of `kmem diagnose`, but for its output."""

    report: Path | None = option(
        "--ncu",
        type=click.Path(path_type=Path),
        help="Read an Nsight Compute report (CSV of --page raw or details, or .ncu-rep) instead of "
        "stdin.",
    )
    problem: Path | None = option(
        "--problem",
        type=click.Path(path_type=Path),
        help="Problem file: adds the bound, so that redundant traffic and headroom can be seen.",
    )
    target: str | None = target_option(
        "Device of the profile; default: as the profile says, else the GPU here, else h200."
    )
    precision: str = precision_option("Accuracy contract of the bound.")
    latency_ms: float | None = option(
        "--latency-ms",
        type=click.FloatRange(min=0, min_open=True),
        help="Time of one forward in ms; default: the sum over its launches.",
    )


@dataclass(frozen=True, slots=True)
class PrescribeOptions:
    """The options of `kmem prescribe`."""

    operators: tuple[str, ...] = option(
        "--op",
        multiple=True,
        help="Operator the kernel computes, such as max_pool; may be repeated. Default: "
        "those of the graph that was profiled, else any.",
    )
    target: str | None = target_option(
        "Device whose skills and records count; default: the GPU here, else h200."
    )
    precision: str = precision_option("Accuracy contract that skills must keep.")
    limit: int = option(
        "--limit",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help="How many skills to offer.",
    )
