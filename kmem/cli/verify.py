"""`kmem verify` and `kmem measure`: the judge on its own, for a problem file and a file with
`ModelNew` from anywhere, or for a bundle.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.cli.options import precision_option
from kmem.errors import CaseError, EvidenceError, ProblemError, TargetError
from kmem.plugins import Registry
from kmem.records import Baseline, Contract, Kernel, Measurement, Precision, Purity, Status
from kmem.run.single import Case, find_checkers, judge_case, make_case, read_kernel

if TYPE_CHECKING:
    from kmem.interfaces import Checker
    from kmem.measure.bundle import Deviation
    from kmem.records import Device

# The judge and devices import torch: inside the functions, so that `kmem --help` does not pay for
# them.

EXIT_NOT_PASSED = 1
#: Estimates are made for this device where there is no GPU and none is named.
_DEFAULT_TARGET = "h200"

_announce = partial(click.echo, err=True)


class BadInput(click.ClickException):
    """A file that cannot be judged at all: one line, exit code 2."""

    exit_code = 2


class _OneLine(click.Command):
    """Says what is wrong with its arguments in one line, as it does with files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as ex:
            raise BadInput(ex.format_message()) from ex


@contextmanager
def _bad_input() -> Iterator[None]:
    try:
        yield
    except (CaseError, EvidenceError, ProblemError, TargetError) as ex:
        raise BadInput(str(ex)) from ex


_PURITY = click.option(
    "--purity",
    type=click.Choice([item.value for item in Purity]),
    default="library",
    show_default=True,
    help=(
        "triton: at most 1% of GPU time outside the file's own kernels and no library operator "
        "that computes."
    ),
)
_SEED = click.option(
    "--seed",
    type=int,
    help=(
        "Seed of inputs and parameters, to repeat a verdict; default: drawn anew, so that no "
        "kernel can know it."
    ),
)
_CHECK = click.option(
    "--check",
    "checks",
    multiple=True,
    metavar="NAME",
    help="Ask a further source check as well, such as kernelguard.",
)
_EVIDENCE = click.option(
    "--evidence",
    "evidence_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help=(
        "Directory for the evidence of a kernel that passes; default: evidence/ beside the "
        "database."
    ),
)
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the verdict as one JSON object."
)


@click.command(cls=_OneLine)
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option(
    "--target",
    envvar="KMEM_TARGET",
    help="Device to estimate for where there is no GPU; default: h200.",
)
@precision_option
@_PURITY
@_SEED
@_CHECK
@_EVIDENCE
@_JSON
@click.pass_obj
def verify(
    registry: Registry | None,
    problem: Path,
    kernel: Path | None,
    target: str | None,
    precision: str,
    purity: str,
    seed: int | None,
    checks: tuple[str, ...],
    evidence_dir: Path | None,
    as_json: bool,
) -> None:
    """Judge a kernel file against the module it replaces, or repeat what an evidence bundle says.

    PROBLEM defines Model and get_inputs(); KERNEL defines ModelNew. With a bundle (EVIDENCE.json)
    in the place of PROBLEM and no KERNEL, its problem, kernel, contract and seed are judged again
    here, and what differs is said. Exit code 0: passed; 1: not passed, with status and reason; 2:
    one of the files cannot be judged. Without a GPU the verdict comes from the Triton interpreter
    on small sizes and the time is an estimate.
    """
    from kmem.devices import detect_device, named_target

    present = detect_device()
    if kernel is None:
        if problem.suffix != ".json":
            raise BadInput(
                "Missing argument 'KERNEL': give a file with ModelNew, or an evidence bundle "
                "(.json) alone."
            )
        _repeat(problem, present, registry, seed, evidence_dir, as_json)
        return
    with _bad_input():
        device = present or named_target(target or _DEFAULT_TARGET)
        case = _read_case(
            problem, kernel, precision, purity, seed, find_checkers(registry, checks), evidence_dir
        )
        measurement, baselines = judge_case(
            case, device, gpu=present is not None, announce=_announce
        )
    _print_verdict(measurement, baselines, (), as_json)


@click.command(cls=_OneLine)
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("kernel", type=click.Path(path_type=Path))
@precision_option
@_PURITY
@_SEED
@_CHECK
@_EVIDENCE
@_JSON
@click.pass_obj
def measure(
    registry: Registry | None,
    problem: Path,
    kernel: Path,
    precision: str,
    purity: str,
    seed: int | None,
    checks: tuple[str, ...],
    evidence_dir: Path | None,
    as_json: bool,
) -> None:
    """Judge a kernel file and time it, in pairs, against eager and compiled PyTorch; needs a GPU.

    The exit codes are those of `kmem verify`.
    """
    from kmem.devices import detect_device

    with _bad_input():
        case = _read_case(
            problem, kernel, precision, purity, seed, find_checkers(registry, checks), evidence_dir
        )
    device = detect_device()
    if device is None:
        raise TargetError("No GPU here to measure on; `kmem verify` judges a kernel without one")
    with _bad_input():
        measurement, baselines = judge_case(case, device, gpu=True, announce=_announce)
    _print_verdict(measurement, baselines, (), as_json)


def _read_case(
    problem: Path,
    kernel: Path,
    precision: str,
    purity: str,
    seed: int | None,
    checkers: "tuple[Checker, ...]",
    evidence_dir: Path | None,
) -> Case:
    contract = Contract(Precision(precision), Purity(purity))
    return make_case(
        problem, read_kernel(kernel), contract, seed, checkers, evidence_dir, name=str(kernel)
    )


def _repeat(
    path: Path,
    present: "Device | None",
    registry: Registry | None,
    seed: int | None,
    evidence_dir: Path | None,
    as_json: bool,
) -> None:
    """Judge what a bundle holds again, and say what differs."""
    from kmem.measure.bundle import compare_bundles, read_bundle

    with _bad_input():
        bundle = read_bundle(path)
        case = Case(
            bundle.problem,
            Kernel(bundle.kernel_source, flags=bundle.kernel_flags),
            bundle.contract,
            bundle.seed if seed is None else seed,
            find_checkers(registry, bundle.checkers),
            evidence_dir,  # by default none: it would take the place of the bundle that is repeated
        )
        device = present or bundle.device
        measurement, baselines = judge_case(
            case, device, gpu=present is not None, announce=_announce
        )
    _print_verdict(
        measurement, baselines, compare_bundles(bundle, measurement, device), as_json, repeated=True
    )


def _print_verdict(
    measurement: Measurement,
    baselines: tuple[Baseline, ...],
    deviations: "Sequence[Deviation]",
    as_json: bool,
    *,
    repeated: bool = False,
) -> None:
    """Print on stdout; exit 1 unless passed.

    `repeated`: say also where a bundle's verdict holds in full.
    """
    from kmem.serialize import to_data

    if as_json:
        data = to_data(measurement)
        if measurement.latency_ms is not None and not math.isfinite(measurement.latency_ms):
            data["timing"] = None
        data["baselines"] = [to_data(baseline) for baseline in baselines]
        if repeated:
            data["deviations"] = [to_data(deviation) for deviation in deviations]
        click.echo(json.dumps(data, sort_keys=True))
    else:
        click.echo(_describe(measurement, baselines))
        if repeated:
            click.echo(
                "\n".join(f"differs: {deviation}" for deviation in deviations) or "as recorded"
            )
    if measurement.status is not Status.PASSED:
        raise SystemExit(EXIT_NOT_PASSED)


def _describe(measurement: Measurement, baselines: tuple[Baseline, ...]) -> str:
    from kmem.measure.verdicts import REFUSED_FAMILIES

    lines = [measurement.status.value]
    if measurement.log:
        lines.append(measurement.log.strip())
    worst = max(
        measurement.errors,
        key=lambda report: report.relative_error / max(report.allowed_error, 1e-300),
        default=None,
    )
    if worst is not None:
        lines.append(
            f"{len(measurement.errors)} comparisons; closest to its limit: {worst.family}, error "
            f"{worst.relative_error:.1e}, "
            f"allowed {worst.allowed_error:.1e}, eager {worst.reference_error:.1e}"
        )
    timing = measurement.timing
    if timing is not None and math.isfinite(timing.latency_ms):
        kind = (
            "estimated"
            if measurement.estimated
            else f"p20 {timing.latency_ms_p20:.4g}, p80 {timing.latency_ms_p80:.4g}"
        )
        lines.append(f"{timing.latency_ms:.4g} ms ({kind})")
        if timing.ratio is not None:
            lines.append(
                f"{timing.ratio:.3f}x {timing.reference} (95% interval {timing.ratio_low:.3f} to "
                f"{timing.ratio_high:.3f})"
            )
    for baseline in baselines:
        lines.append(
            f"{baseline.name}: {baseline.timing.latency_ms:.4g} ms"
            if baseline.timing
            else f"{baseline.name}: failed"
        )
    if REFUSED_FAMILIES in measurement.environment:
        lines.append(
            f"left out, for the module itself raises: {measurement.environment[REFUSED_FAMILIES]}"
        )
    if measurement.library_share is not None:
        lines.append(f"{measurement.library_share:.1%} of GPU time in library kernels")
    if measurement.flags:
        lines.append("flags: " + ", ".join(measurement.flags))
    return "\n".join(lines)
