"""A verdict of the judge as text for people."""

import math

from kmem.measure.verdicts import REFUSED_FAMILIES
from kmem.records import Baseline, ErrorReport, Measurement, Timing


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
    for baseline in baselines:
        time = f"{baseline.timing.latency_ms:.4g} ms" if baseline.timing else "failed"
        lines.append(f"{baseline.name}: {time}")
    if REFUSED_FAMILIES in measurement.environment:
        lines.append(
            f"left out, for the module itself raises: {measurement.environment[REFUSED_FAMILIES]}"
        )
    if measurement.library_share is not None:
        lines.append(f"{measurement.library_share:.1%} of GPU time in library kernels")
    if measurement.flags:
        lines.append("flags: " + ", ".join(measurement.flags))
    return "\n".join(lines)


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
    lines = [f"{timing.latency_ms:.4g} ms ({'estimated' if estimated else kind})"]
    if timing.ratio is not None:
        lines.append(
            f"{timing.ratio:.3f}x {timing.reference} (95% interval {timing.ratio_low:.3f} to "
            f"{timing.ratio_high:.3f})"
        )
    return lines
