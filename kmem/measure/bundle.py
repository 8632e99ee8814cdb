"""The bundle of a verdict: everything that stands behind it, in one JSON file.

`kmem verify` can repeat the verdict from that file anywhere. In order: the bundle, writing and
reading it, and what a repetition finds different.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kmem.errors import BundleError
from kmem.records import Baseline, Contract, Device, Measurement, Problem, Status, content_hash
from kmem.serialize import from_data, to_json

#: Raised whenever a field changes its meaning; a bundle of another number is refused rather than
#: guessed at.
FORMAT = 1
#: A repeated latency outside p20..p80 of the recorded one is named only beyond this share, for
#: those are percentiles of one short session.
_LATENCY_SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Bundle:
    """One verdict with everything that stands behind it.

    The measurement holds errors per input family, flags, the share of GPU time outside the file's
    own kernels, versions and clocks.
    """

    format: int
    problem: Problem
    problem_hash: str
    kernel_source: str
    kernel_hash: str
    kernel_flags: tuple[str, ...]  # what the kernel's author declares: algebraic, ...
    kernel_small_constants: str  # what its constants are at the small workload
    contract: Contract
    device: Device
    measured: bool  # on that device; False: proved in the interpreter, with an estimated time
    seed: int  # inputs, parameters and bootstrap follow from it
    checkers: tuple[str, ...]  # further source checks that found nothing
    measurement: Measurement
    baselines: tuple[Baseline, ...]
    # by side ("candidate" or a baseline), by A B B A block
    samples_ms: Mapping[str, tuple[tuple[float, ...], ...]]
    operators: Mapping[str, int]  # what one forward dispatched
    gpu_kernels: tuple[tuple[str, float], ...]  # name and microseconds of what one forward ran
    binaries: Mapping[str, str]  # SHA-256 of the PTX by Triton kernel, where it was compiled here
    command: str
    created_at: str  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Deviation:
    """One thing that a repetition found otherwise."""

    what: str
    recorded: str
    here: str

    def __str__(self) -> str:
        return f"{self.what}: {self.recorded} recorded, {self.here} here"


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write a bundle whole or not at all. Raises BundleError: if it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(to_json(bundle) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as ex:
        raise BundleError(
            f"Cannot write the evidence to {path}: {ex.strerror or ex}; free space or choose "
            f"another place"
        ) from ex


def read_bundle(path: Path) -> Bundle:
    """Read a bundle.

    Raises BundleError: if it is missing, no bundle, of another format, or altered since it was
    written.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise BundleError(
            f"Cannot read {path}: {ex.strerror or ex}; give the path of an evidence bundle"
        ) from ex
    except ValueError as ex:
        raise BundleError(
            f"{path} is no JSON: {str(ex).splitlines()[0]}; give the path of an evidence bundle"
        ) from ex
    found = data.get("format") if isinstance(data, dict) else None
    if not isinstance(found, int):
        raise BundleError(
            f"{path} is no evidence bundle: it names no format; `kmem verify PROBLEM KERNEL` "
            f"judges files"
        )
    if found != FORMAT:
        raise BundleError(
            f"{path} is an evidence bundle of format {found}, this kmem reads format {FORMAT}; use "
            f"the kmem that wrote it"
        )
    try:
        bundle = from_data(Bundle, data)
    except ValueError as ex:
        raise BundleError(
            f"{path} is damaged: {_first_fault(ex)}; get it again from where it was written"
        ) from ex
    for name, text, recorded in (
        ("problem", bundle.problem.source, bundle.problem_hash),
        ("kernel", bundle.kernel_source, bundle.kernel_hash),
    ):
        if content_hash(text) != recorded:
            raise BundleError(
                f"{path} was altered: its {name} is not the one whose hash it gives; get it again "
                f"from where it was written"
            )
    return bundle


def _first_fault(error: ValueError) -> str:
    """pydantic's report has several lines: its heading, then a field and a reason per fault."""
    lines = [line.strip() for line in str(error).splitlines()]
    return ": ".join(lines[1:3]) if len(lines) > 2 else lines[0]


def compare_bundles(recorded: Bundle, here: Measurement, device: Device) -> list[Deviation]:
    """What differs between a recorded verdict and its repetition; empty if it holds in full.

    Errors are compared by verdict alone: they depend on the order of sums, which vendor kernels and
    devices choose.
    """
    then = recorded.measurement
    found = [
        Deviation("verdict", then.status.value, here.status.value),
        Deviation("device", recorded.device.full_name, device.full_name),
        Deviation(
            "time",
            "estimated" if then.estimated else "measured",
            "estimated" if here.estimated else "measured",
        ),
        Deviation("flags", ", ".join(then.flags) or "none", ", ".join(here.flags) or "none"),
    ]
    for name in ("kmem", "torch", "triton", "python", "driver"):
        if name in then.environment or name in here.environment:
            found.append(
                Deviation(
                    name,
                    then.environment.get(name, "unknown"),
                    here.environment.get(name, "unknown"),
                )
            )
    found = [deviation for deviation in found if deviation.recorded != deviation.here]
    if then.status is Status.PASSED and here.status is Status.PASSED:
        found += _compare_times(then, here)
    return found


def _compare_times(then: Measurement, here: Measurement) -> list[Deviation]:
    old, new = then.timing, here.timing
    found = []
    low = old.latency_ms_p20 * (1 - _LATENCY_SLACK)
    high = old.latency_ms_p80 * (1 + _LATENCY_SLACK)
    if not low <= new.latency_ms <= high:
        found.append(
            Deviation(
                "latency",
                f"{old.latency_ms:.4g} ms ({old.latency_ms_p20:.4g} to {old.latency_ms_p80:.4g})",
                f"{new.latency_ms:.4g} ms",
            )
        )
    if old.reference != new.reference:
        found.append(Deviation("best baseline", str(old.reference), str(new.reference)))
    elif (
        old.ratio is not None
        and new.ratio is not None
        and (new.ratio_high < old.ratio_low or old.ratio_high < new.ratio_low)
    ):
        found.append(
            Deviation(
                "ratio",
                _interval(old.ratio, old.ratio_low, old.ratio_high),
                _interval(new.ratio, new.ratio_low, new.ratio_high),
            )
        )
    return found


def _interval(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"
