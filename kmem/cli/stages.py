"""`kmem profile | kmem diagnose | kmem prescribe`: the first three stages as commands that pipe
JSON lines.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.errors import ProfilerError
from kmem.plugins import Registry, lookup

if TYPE_CHECKING:
    from kmem.records import Bound, Device, Diagnosis, Prescription, Profile

# Problem loading and devices import torch, memory imports sqlite_utils: inside the functions, so
# that `kmem --help` does not pay for them.

_PRECISIONS = ("match", "tf32", "bf16")
_DEFAULT_REPORT_TARGET = "h200"


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
    help=(
        "ncu (hardware counters), cupti (times), static (no GPU; estimated), or auto: the first "
        "that works."
    ),
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="match",
    show_default=True,
    help="Accuracy contract to run under.",
)
@click.pass_obj
def profile(
    registry: Registry,
    problem: Path,
    kernel: Path | None,
    target: str | None,
    profiler: str,
    precision: str,
) -> None:
    """Profile every launch of one forward and print a Profile as one JSON line.

    PROBLEM is a problem file; KERNEL a file with ModelNew, by default the problem's own Model. Pipe
    the line into `kmem diagnose`.
    """
    from kmem.devices import resolve_target
    from kmem.problem.load import FULL, load_problem
    from kmem.profile.collect import collect_profile
    from kmem.profile.job import reference_kernel
    from kmem.profile.target import ProfileTarget
    from kmem.records import Contract, Kernel, Precision
    from kmem.serialize import to_json

    loaded = load_problem(problem)
    device, present = resolve_target(target)
    candidate = Kernel(kernel.read_text(encoding="utf-8")) if kernel else reference_kernel(loaded)
    executor = lookup(registry.executors, "local", "executor")
    contract = Contract(Precision(precision))
    click.echo(
        to_json(
            collect_profile(
                candidate,
                ProfileTarget(loaded, FULL, contract, device),
                registry.profilers,
                executor,
                present=present,
                name=profiler,
            )
        )
    )


@click.command()
@click.option(
    "--ncu",
    "report",
    type=click.Path(path_type=Path),
    help=(
        "Read an Nsight Compute report (CSV of --page raw or details, or .ncu-rep) instead of "
        "stdin."
    ),
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
    from kmem.serialize import to_json

    profile = _read_report_profile(report, target) if report else _read_stdin_profile()
    found = _diagnose(profile, str(problem) if problem else None, target, precision, latency_ms)
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
    """Offer skills for a Diagnosis JSON line on stdin; print one Prescription a line, best first,
    each with its reasons.
    """
    from kmem.records import Diagnosis
    from kmem.serialize import to_json

    diagnosis = _read_stdin(Diagnosis, "kmem diagnose")
    for prescription in _prescribe(registry, diagnosis, operators, target, precision, limit):
        click.echo(to_json(prescription))


def diagnose_report(path: Path, problem: str | None, target: str | None = None) -> "Diagnosis":
    """Diagnose an Nsight Compute report file.

    Args:
        path: CSV or .ncu-rep.
        problem: path of the problem file, for the bound; None if it is not known.
        target: name of the device the report is from; None for the GPU here, else h200.
    Raises:
        ProfilerError: if the report cannot be read. TargetError, ProblemError: as their names say.
    """
    return _diagnose(_read_report_profile(path, target), problem, target, "match", None)


def describe_diagnosis(diagnosis: "Diagnosis") -> str:
    """A diagnosis as a few lines for people."""
    lines = [diagnosis.summary]
    lines += [
        f"  {item.metric} = {item.value:.4g} ({item.comparison} {item.threshold:g})"
        for item in diagnosis.evidence
    ]
    if diagnosis.speed_of_light is not None and diagnosis.headroom_ms is not None:
        lines.append(
            f"  speed of light {diagnosis.speed_of_light:.1%}, headroom "
            f"{diagnosis.headroom_ms:.4g} ms"
        )
    if diagnosis.secondary:
        lines.append(f"  also: {', '.join(item.value for item in diagnosis.secondary)}")
    if diagnosis.estimated:
        lines.append("  estimated: compiled, not run")
    return "\n".join(lines)


def _read_report_profile(path: Path, target: str | None) -> "Profile":
    from kmem.profile.ncu_csv import read_report
    from kmem.records import Profile

    return Profile("", "ncu", target or "", False, read_report(path))


def _read_stdin_profile() -> "Profile":
    from kmem.records import Profile

    return _read_stdin(Profile, "kmem profile")


def _read_stdin(cls: type, source: str):  # noqa: ANN202 - an instance of cls
    from kmem.serialize import from_json

    text = sys.stdin.readline() if not sys.stdin.isatty() else ""
    if not text.strip():
        raise click.UsageError(f"Nothing on stdin; pipe the output of `{source}` in")
    try:
        return from_json(cls, text)
    except ValueError as ex:
        raise ProfilerError(
            f"stdin is not a {cls.__name__} as `{source}` prints it: {str(ex).splitlines()[0]}"
        ) from ex


def _resolve_device(name: str | None) -> "Device":
    from kmem.devices import detect_device, named_target

    present = detect_device()
    if name and present is not None and name.lower() == present.name:
        return present
    if name:
        return named_target(name)
    return present or named_target(_DEFAULT_REPORT_TARGET)


def _diagnose(
    profile: "Profile",
    problem: str | None,
    target: str | None,
    precision: str,
    latency_ms: float | None,
) -> "Diagnosis":
    from kmem.diagnose.bottleneck import diagnose as name_bottleneck

    device = _resolve_device(target or profile.device or None)
    bound = _trace_bound(problem, precision, device) if problem else None
    return name_bottleneck(profile, device, bound, latency_ms=latency_ms)


def _trace_bound(problem: str, precision: str, device: "Device") -> "Bound | None":
    from kmem.problem.load import FULL, load_problem
    from kmem.profile.static import trace_bound
    from kmem.records import Contract, Precision

    return trace_bound(load_problem(problem), FULL, Contract(Precision(precision)), device)


def _prescribe(
    registry: Registry,
    diagnosis: "Diagnosis",
    operators: tuple[str, ...],
    target: str | None,
    precision: str,
    limit: int,
) -> "tuple[Prescription, ...]":
    from kmem.memory.store import Memory
    from kmem.prescribe.consult import consult_memory
    from kmem.prescribe.gate import SkillQuery
    from kmem.records import Contract, Precision
    from kmem.run.session import load_library, versions

    device = _resolve_device(target)
    with Memory() as memory:
        library = list(load_library(registry).values())
        memory.skills.sync(library)
        contract = Contract(Precision(precision))
        query = SkillQuery(diagnosis, operators, device.arch, contract)
        return consult_memory(memory, query, library, versions(), limit=limit)
