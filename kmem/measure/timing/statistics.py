"""What samples mean: medians, paired ratios with bootstrap intervals, and times that cannot be.

Pure functions. The samples themselves are taken in the workers (clocks.py) on the judge's orders
(gpu_clock.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kmem.records import Bound, Device, Timing

RESAMPLES = 2000
#: What an interval is widened by on either side, as a share of the ratio: two processes that run
#: the same kernel differ by so much for as long as they live, which resampling their blocks cannot
#: see. Source:
#: tools/judge_statistics.py on an H200, 20 pairings of a kernel with itself: bootstrap alone
#: covered 1 in 15, and 1 was at most 0.14% outside.
CLOCK_RESOLUTION = 0.002
#: A median below this share of the physical floor is a failure, not a record; the 5% are for the
#: floor's own measurement.
FLOOR_SHARE = 0.95
#: The host's time may exceed the device's by launches and synchronisation; above this ratio and an
#: offset per launch, work ran outside the timed region.
HOST_RATIO = 1.3
HOST_OFFSET_MS = 0.1
#: For a short call the offset may also be what the host took to issue it, so often and at most so
#: much: a forward of many small steps in Python on a busy host is no work elsewhere.
ISSUE_RATIO, ISSUE_OFFSET_MS = 2.0, 0.5
#: Work also ran outside the timed region if the kernels of one call, as the profiler saw them, take
#: more together than this ratio and offset allow. The profiler's call may find lower clocks, but
#: warmer caches.
KERNELS_RATIO = 2.0
KERNELS_OFFSET_MS = 0.02
#: Below this a call is also timed as a CUDA graph, so that host overhead can be told apart.
GRAPH_BELOW_MS = 0.05


#: Times that spread as a busy host's do are taken again, so often in all.
_BATCHES = 4


def take_steady(take: Callable[[], Sequence[float]]) -> Sequence[float]:
    """Samples, taken again until a batch of them is steady: those of the quickest batch.

    For ranking, and for baselines: a verdict is timed in pairs, and takes no batch again for its
    times. A batch that fails is empty; it is the last, and none but empty ones make no samples.
    """
    batches: list[Sequence[float]] = []
    while len(batches) < _BATCHES and (batch := take()):
        batches.append(batch)
        if summarize_samples(batch).is_steady:
            break
    return min(batches, key=lambda batch: float(np.median(batch)), default=())


def summarize_samples(samples_ms: Sequence[float]) -> Timing:
    """Median, p20 and p80 of unpaired samples. Raises ValueError: if there are none."""
    if not samples_ms:
        raise ValueError("no samples")
    percentiles = np.percentile(np.asarray(samples_ms, dtype=float), [50, 20, 80])
    return Timing(*map(float, percentiles), len(samples_ms))


def estimated_timing(latency_ms: float) -> Timing:
    """A predicted latency: no samples."""
    return Timing(latency_ms, latency_ms, latency_ms, 0)


def pair_samples(
    candidate_ms: Sequence[Sequence[float]],
    reference_ms: Sequence[Sequence[float]],
    reference: str,
    *,
    seed: int,
) -> Timing:
    """Timing of a candidate with its paired ratio: the median of one ratio per A B B A block.

    The interval is a 95% bootstrap interval of that median, widened by `CLOCK_RESOLUTION`. Source:
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13 (percentile
    interval).

    Args:
        candidate_ms: samples by block.
        reference_ms: those of the baseline, equally many blocks.
        reference: the baseline's name.
        seed: of the bootstrap.
    """
    ratios = np.array(
        [
            float(np.median(theirs)) / float(np.median(ours))
            for ours, theirs in zip(candidate_ms, reference_ms, strict=True)
        ]
    )
    generator = np.random.default_rng(seed)
    medians = np.median(generator.choice(ratios, size=(RESAMPLES, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    ratio = float(np.median(ratios))
    ours = summarize_samples([sample for block in candidate_ms for sample in block])
    theirs = summarize_samples([sample for block in reference_ms for sample in block])
    return replace(
        ours,
        reference=reference,
        reference_ms=theirs.latency_ms,
        ratio=ratio,
        ratio_low=float(low) - CLOCK_RESOLUTION * ratio,
        ratio_high=float(high) + CLOCK_RESOLUTION * ratio,
    )


def physical_floor_ms(
    bound: Bound | None, device: Device, *, algebraic: bool = False, parameter_bytes: int = 0
) -> float | None:
    """The least time a call can take, in ms; None if unknown.

    That is the bound, less what of its bytes may still lie in L2, unwritten, when the clock stops.

    Args:
        algebraic: exact algebra takes work away (the kernel's recipe says so), so that only the
            bytes remain a floor.
        parameter_bytes: those of them that are parameters: where algebra takes work away, little
            may be left of these, and that made before the call.
    """
    if bound is None:
        return None
    if bound.limiter != "bytes" and not algebraic:
        return bound.time_ms
    fastest = max(device.read_bytes_per_s, device.dram_bytes_per_s)
    bytes_ms = bound.time_ms if bound.limiter == "bytes" else bound.bytes / fastest * 1e3
    moved = bound.bytes - device.l2_bytes - (parameter_bytes if algebraic else 0)
    return bytes_ms * max(moved, 0) / bound.bytes if bound.bytes else 0.0


def implausible_reason(
    latency_ms: float,
    host_ms: float | None,
    floor_ms: float | None,
    kernels_ms: Sequence[float] = (),
    issue_ms: float = 0.0,
) -> str | None:
    """Why a time cannot be, or None.

    Args:
        host_ms: the host's clock around the call and a device-wide synchronisation; the least of
            some.
        floor_ms: see `physical_floor_ms`; at measured ceilings.
        kernels_ms: times of every kernel, copy and fill of one call on whatever stream; none if
            unknown.
        issue_ms: what the host takes to issue a call while the device is busy.
    """
    if floor_ms is not None and latency_ms < FLOOR_SHARE * floor_ms:
        return f"{latency_ms:.4f} ms is below the physical floor of {floor_ms:.4f} ms"
    if sum(kernels_ms) > KERNELS_RATIO * latency_ms + KERNELS_OFFSET_MS:
        return (
            f"events say {latency_ms:.4f} ms, the kernels of one call take {sum(kernels_ms):.4f} "
            f"ms: work ran outside the timed region"
        )
    offset_ms = HOST_OFFSET_MS * max(1, len(kernels_ms))
    if latency_ms < GRAPH_BELOW_MS:
        offset_ms = max(offset_ms, min(ISSUE_RATIO * issue_ms, ISSUE_OFFSET_MS))
    if host_ms is not None and host_ms > HOST_RATIO * latency_ms + offset_ms:
        return (
            f"events say {latency_ms:.4f} ms, the host's clock {host_ms:.4f} ms: work ran outside "
            f"the timed region"
        )
    return None
