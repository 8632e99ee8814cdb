"""A verdict of the judge as text for people."""

import math

from kmem.measure.verdicts import REFUSED_FAMILIES
from kmem.records import Baseline, ErrorReport, Measurement, Timing, fastest_baseline
from kmem.run.evaluation.compiling import TRITON_LAUNCHES
from kmem.run.report.first_screen import FLAGS

#: What an estimate is made of here: that of a run for the same kernel may be another.
_ESTIMATED = (
    "estimated from the compiled file alone; a run holds its own to its recipes' cost models too, "
    "and to what memory has measured of them"
)
#: Share of the GPU's time in library kernels from which on there is nothing else.
_ALL_OF_IT = 0.9999


def describe_verdict(measurement: Measurement, baselines: tuple[Baseline, ...]) -> str:
    """Status, log, the closest error, times and flags, a line each."""
    lines = [measurement.status.value]
    if measurement.log:
        lines.append(measurement.log.strip())
    if measurement.errors:
        lines.append(_describe_errors(measurement.errors))
    timing = measurement.timing
    if timing is not None and math.isfinite(timing.latency_ms):
        lines += _describe_timing(timing, estimated=measurement.estimated)
        lines += _describe_gain(timing, baselines)
    for baseline in baselines:
        time = f"{baseline.timing.latency_ms:.4g} ms" if baseline.timing else "failed"
        lines.append(f"{baseline.name}: {time}{' (estimated)' if baseline.estimated else ''}")
    if _is_library_alone(measurement):
        lines.append("it launches no Triton kernel: all the work is the library's")
    if REFUSED_FAMILIES in measurement.environment:
        lines.append(
            f"left out, for the module itself raises: {measurement.environment[REFUSED_FAMILIES]}"
        )
    if measurement.library_share is not None:
        lines.append(f"{measurement.library_share:.1%} of GPU time in library kernels")
    lines += [f"{flag}: {FLAGS.get(flag, 'a flag of the judge')}" for flag in measurement.flags]
    return "\n".join(lines)


def _describe_gain(timing: Timing, baselines: tuple[Baseline, ...]) -> list[str]:
    """How much faster than the module it is, where the two were not timed in pairs."""
    reference = fastest_baseline(baselines)
    if timing.ratio is not None or reference is None:
        return []
    speedup = reference.timing.latency_ms / timing.latency_ms
    return [f"{speedup:.2f}x {reference.name}"]


def _is_library_alone(measurement: Measurement) -> bool:
    """Whether nothing that ran was compiled from the file."""
    if measurement.library_share is not None:
        return measurement.library_share >= _ALL_OF_IT
    return measurement.environment.get(TRITON_LAUNCHES) == "0"


def _describe_errors(errors: tuple[ErrorReport, ...]) -> str:
    worst = max(
        errors, key=lambda report: report.relative_error / max(report.allowed_error, 1e-300)
    )
    return (
        f"{len(errors)} comparisons; closest to its limit: {worst.family}, error "
        f"{worst.relative_error:.1e}, allowed {worst.allowed_error:.1e}, eager "
        f"{worst.reference_error:.1e}"
    )


def _describe_timing(timing: Timing, *, estimated: bool) -> list[str]:
    kind = f"p20 {timing.latency_ms_p20:.4g}, p80 {timing.latency_ms_p80:.4g}"
    lines = [f"{timing.latency_ms:.4g} ms ({_ESTIMATED if estimated else kind})"]
    if timing.ratio is not None:
        lines.append(
            f"{timing.ratio:.3f}x {timing.reference} (95% interval {timing.ratio_low:.3f} to "
            f"{timing.ratio_high:.3f})"
        )
    return lines
