"""`kmem profile`, `kmem diagnose` and `kmem prescribe`: the first stages, which pipe JSON lines."""

import sys
from pathlib import Path
from typing import TypeVar

import click

from kmem.cli.display.diagnosis import describe_diagnosis
from kmem.cli.options.contract import MODE_HELP, MODES
from kmem.errors import ProfilerError
from kmem.plugins import Registry
from kmem.records import Diagnosis, Profile
from kmem.serialize import from_json, to_json

_PRECISIONS = ("match", "tf32", "bf16")

Stage = TypeVar("Stage", Profile, Diagnosis)


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument(
    "kernel", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False
)
@click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device to profile for, such as h200; default: the GPU of this machine.",
)
@click.option(
    "--profiler",
    default="auto",
    show_default=True,
    help="ncu (hardware counters), cupti (times), static (no GPU; estimated), or auto: the first "
    "that works.",
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="match",
    show_default=True,
    help="Accuracy contract to run under.",
)
@click.option("--mode", type=click.Choice(MODES), help=MODE_HELP)
@click.pass_obj
def profile(
    registry: Registry,
    problem: Path,
    kernel: Path | None,
    target: str | None,
    profiler: str,
    precision: str,
    mode: str | None,
) -> None:
    """Profile every launch of one forward and print a Profile as one JSON line.

    The line carries the problem's bound. PROBLEM is a problem file; KERNEL a file with ModelNew, by
    default the problem's own Model. Pipe the line into `kmem diagnose`.
    """
    from kmem.cli.actions.stages import profile_problem  # loads torch

    found = profile_problem(problem, kernel, target, profiler, precision, registry, mode)
    click.echo(to_json(found))


@click.command()
@click.option(
    "--ncu",
    "report",
    type=click.Path(path_type=Path),
    help="Read an Nsight Compute report (CSV of --page raw or details, or .ncu-rep) instead of "
    "stdin.",
)
@click.option(
    "--problem",
    type=click.Path(path_type=Path),
    help="Problem file: adds the bound, so that redundant traffic and headroom can be seen.",
)
@click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device of the profile; default: as the profile says, else the GPU here, else h200.",
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="match",
    show_default=True,
    help="Accuracy contract of the bound.",
)
@click.option(
    "--latency-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Time of one forward in ms; default: the sum over its launches.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON also when stdout is a terminal.")
def diagnose(
    report: Path | None,
    problem: Path | None,
    target: str | None,
    precision: str,
    latency_ms: float | None,
    as_json: bool,
) -> None:
    """Name the bottleneck with its evidence, by arithmetic.

    Reads a Profile JSON line on stdin (from `kmem profile`) or the --ncu report. Prints a Diagnosis
    as one JSON line, or text on a terminal.
    """
    from kmem.cli.actions.stages import diagnose_profile, read_report_profile

    seen = read_report_profile(report, target) if report else _read_stdin(Profile, "kmem profile")
    found = diagnose_profile(seen, problem, target, precision, latency_ms)
    click.echo(to_json(found) if as_json or not sys.stdout.isatty() else describe_diagnosis(found))


@click.command()
@click.option(
    "--op",
    "operators",
    multiple=True,
    help="Operator the kernel computes, such as max_pool; may be repeated. Default: any.",
)
@click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device whose skills and records count; default: the GPU here, else h200.",
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="match",
    show_default=True,
    help="Accuracy contract that skills must keep.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many skills to offer.",
)
@click.pass_obj
def prescribe(
    registry: Registry, operators: tuple[str, ...], target: str | None, precision: str, limit: int
) -> None:
    """Offer skills for a Diagnosis JSON line on stdin.

    Prints one Prescription a line, best first, each with its reasons.
    """
    diagnosis = _read_stdin(Diagnosis, "kmem diagnose")
    from kmem.cli.actions import stages

    for prescription in stages.prescribe(diagnosis, operators, target, precision, limit, registry):
        click.echo(to_json(prescription))


def _read_stdin(record: type[Stage], source: str) -> Stage:
    """What the stage before wrote.

    Raises:
        UsageError: if it wrote nothing.
        ProfilerError: if it wrote something else.
    """
    text = sys.stdin.readline() if not sys.stdin.isatty() else ""
    if not text.strip():
        raise click.UsageError(f"Nothing on stdin; pipe the output of `{source}` in")
    try:
        return from_json(record, text)
    except ValueError as ex:
        raise ProfilerError(
            f"stdin is not a {record.__name__} as `{source}` prints it: {str(ex).splitlines()[0]}"
        ) from ex
