"""`kmem verify` and `kmem measure`: judge one kernel, or repeat a bundle, and print the verdict."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from kmem.cli.bad_input import bad_input
from kmem.cli.display.verdict import describe_verdict
from kmem.cli.exit_codes import EXIT_NOT_PASSED
from kmem.cli.options.judge import JudgeOptions
from kmem.devices import detect_device, named_target
from kmem.errors import TargetError
from kmem.measure.bundle import Deviation, compare_bundles, read_bundle
from kmem.measure.user_test import read_user_test
from kmem.plugins import Registry
from kmem.records import Baseline, Kernel, Measurement, Status
from kmem.run.evaluation.single import (
    Case,
    Terms,
    find_checkers,
    judge_case,
    make_case,
    read_kernel,
    read_small_constants,
)
from kmem.serialize import to_data

#: Estimates are made for this device where there is no GPU and none is named.
_DEFAULT_TARGET = "h200"

_announce = partial(click.echo, err=True)


def verify_kernel(
    problem: Path,
    kernel: Path,
    target: str | None,
    options: JudgeOptions,
    registry: Registry | None,
    *,
    as_json: bool,
) -> None:
    """Judge a kernel file, on the GPU or without one, and print the verdict."""
    present = detect_device()
    with bad_input():
        device = present or named_target(target or _DEFAULT_TARGET)
        case = _read_case(problem, kernel, options, registry)
        measurement, baselines = judge_case(
            case, device, gpu=present is not None, announce=_announce
        )
    print_verdict(measurement, baselines, as_json=as_json)


def measure_kernel(
    problem: Path, kernel: Path, options: JudgeOptions, registry: Registry | None, *, as_json: bool
) -> None:
    """Judge and time a kernel file, and print the verdict.

    Raises TargetError without a GPU.
    """
    with bad_input():
        case = _read_case(problem, kernel, options, registry)
    device = detect_device()
    if device is None:
        raise TargetError("No GPU here to measure on; `kmem verify` judges a kernel without one")
    with bad_input():
        measurement, baselines = judge_case(case, device, gpu=True, announce=_announce)
    print_verdict(measurement, baselines, as_json=as_json)


def verify_bundle(
    path: Path, options: JudgeOptions, registry: Registry | None, *, as_json: bool
) -> None:
    """Judge what a bundle holds again, and print the verdict and what differs."""
    present = detect_device()
    with bad_input():
        bundle = read_bundle(path)
        terms = Terms(
            bundle.contract,
            bundle.seed if options.seed is None else options.seed,
            find_checkers(registry, bundle.checkers),
            # by default none: it would take the place of the bundle that is repeated
            options.evidence_dir,
        )
        kernel = Kernel(
            bundle.kernel_source,
            flags=bundle.kernel_flags,
            small_constants=bundle.kernel_small_constants,
        )
        case = Case(bundle.problem, kernel, terms)
        device = present or bundle.device
        measurement, baselines = judge_case(
            case, device, gpu=present is not None, announce=_announce
        )
    deviations = compare_bundles(bundle, measurement, device)
    print_verdict(measurement, baselines, deviations, as_json=as_json)


def _read_case(
    problem: Path, kernel: Path, options: JudgeOptions, registry: Registry | None
) -> Case:
    checkers = find_checkers(registry, options.checks)
    test = read_user_test(options.test) if options.test else None
    terms = Terms(
        options.contract, options.seed, checkers, options.evidence_dir, options.mode, test
    )
    return make_case(
        problem,
        read_kernel(kernel),
        terms,
        name=str(kernel),
        small_constants=read_small_constants(kernel),
    )


def print_verdict(
    measurement: Measurement,
    baselines: tuple[Baseline, ...],
    deviations: Sequence[Deviation] | None = None,
    *,
    as_json: bool,
) -> None:
    """Print a verdict on stdout; exit 1 unless it is passed.

    Args:
        deviations: what differs from the bundle that was repeated; None where none was.
    """
    if as_json:
        data = to_data(measurement)
        if measurement.latency_ms is not None and not math.isfinite(measurement.latency_ms):
            data["timing"] = None
        data["baselines"] = [to_data(baseline) for baseline in baselines]
        if deviations is not None:
            data["deviations"] = [to_data(deviation) for deviation in deviations]
        click.echo(json.dumps(data, sort_keys=True))
    else:
        click.echo(describe_verdict(measurement, baselines))
        if deviations is not None:
            lines = [f"differs: {deviation}" for deviation in deviations]
            click.echo("\n".join(lines) or "as recorded")
    if measurement.status is not Status.PASSED:
        raise SystemExit(EXIT_NOT_PASSED)
