"""A time for a compiled module that never ran; the time is labelled `estimated` wherever it goes.

It serves for ranking, and is the one estimate there is: `estimate_report_ms` says how long the
module itself, a candidate and a winner take, so that what launches the same takes as long. Each
launch costs the largest of three times (its DRAM traffic, its
tensor-core work, its instruction issue), stretched where too few blocks or too few bytes in flight
keep the device from its peaks, plus the launch itself. Source: roofline with latency hiding by
Little's law; Volkov, "Understanding Latency Hiding on GPUs", UC Berkeley 2016, chapters 3-4.

A binary does not say how often its loops run. Triton's IR does where sizes are constants (ttir.py);
elsewhere a loop is taken to run as often as it must: until the blocks together have read every
argument once, or have done the FLOPs the graph needs, whichever is more.

Covered: order among knob settings of one kernel, and rough scale. Not covered: L2 re-use, bank
conflicts, divergence, clocks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kmem.problem.costs.bound import REACHED
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.records import Bound, Device, Launch

#: Warp instructions a multiprocessor issues per clock. Source: Hopper tuning guide, four schedulers
#: with one issue each.
ISSUE_PER_CLOCK = 4.0
#: Lanes per clock and multiprocessor. Source: CUDA C++ Programming Guide, "Arithmetic
#: Instructions", compute capability 9.0.
FMA_LANES, SPECIAL_LANES = 128.0, 16.0
#: Bytes a multiprocessor's L1 delivers per clock. Source: Luo et al. 2024 (below), L1 cache
#: throughput.
L1_BYTES_PER_CLOCK = 128.0
#: Time a DRAM access takes under load. Source: Luo et al., "Benchmarking and Dissecting the Nvidia
#: Hopper GPU Architecture", 2024, table of latencies.
MEMORY_LATENCY_S = 6.0e-7
#: Cycles a local-memory (spill) access costs a warp beyond its issue slot: an L1 hit, same source.
SPILL_CYCLES = 8.0
#: Share of a datasheet's peak that a good kernel sustains; measured ceilings are taken as they are.
DATASHEET_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Work:
    """Totals of a launch: counts in the binary times the inferred trip count of its loops."""

    bytes: float
    loaded_bytes: float
    warp_instructions: float
    fma_warps: float
    special_warps: float
    tensor_flops: float
    spill_warps: float
    fma_flops: float
    predicated_warps: float


def estimate_report_ms(report: CompileReport, traced: TracedProblem) -> float:
    """Estimated time of one forward of a compiled module in ms.

    It is infinite for a module that did not compile, and for one that looks at its data: that was
    compiled in part only, so its estimate would be too good.
    """
    if report.status is not CompileStatus.OK:
        return math.inf
    return estimate_kernel_ms(report.launches, traced.bound, traced.device)


def estimate_kernel_ms(launches: Sequence[Launch], bound: Bound | None, device: Device) -> float:
    """Estimated time of one forward in ms: the sum over its launches.

    It is infinite if a block of one launch cannot fit the device.
    """
    return sum(launch.duration_ms or 0.0 for launch in estimate_launches(launches, bound, device))


def estimate_launches(
    launches: Sequence[Launch], bound: Bound | None, device: Device
) -> tuple[Launch, ...]:
    """The launches with estimated durations.

    Args:
        launches: as compile/report.py reports them; vendor operators (`static__library`) are costed
            by bytes and FLOPs at what the vendor's kernels reach.
        bound: of the whole graph: its FLOPs tell how often arithmetic loops run. None for an opaque
            graph.
    """
    clock_hz = sm_clock_hz(device)
    passes = flop_passes(launches, bound, device)
    return tuple(
        replace(launch, duration_ms=_launch_ms(launch, device, clock_hz, passes))
        for launch in launches
    )


def sm_clock_hz(device: Device) -> float:
    """The clock at which a device's peak of fp32 multiply-adds is reached."""
    return device.peak_flops_per_s["fp32"] / (2.0 * FMA_LANES * device.sm_count)


def flop_passes(launches: Sequence[Launch], bound: Bound | None, device: Device) -> float:
    """How often the launches' arithmetic must run so that what the graph needs is done."""
    vendor_flops = sum(launch.metrics.get("static__flops", 0.0) for launch in launches)
    needed = 0.0
    if bound is not None:
        needed = sum(flops for unit, flops in bound.flops.items() if unit != "special")
    # FLOPs if every loop body ran once, on tensor cores if the module uses them at all, else on the
    # FMA pipe.
    once = sum(_once(launch, "tensor_flops") for launch in launches) or sum(
        device.warp_size * _once(launch, "fma_flops") for launch in launches
    )
    return max(0.0, needed - vendor_flops) / once if once else 1.0


def library_part_ms(launches: Sequence[Launch], device: Device) -> float:
    """The part of an estimate that is in launches of a vendor's kernels, in ms."""
    return sum(
        _vendor_ms(launch.metrics, device)
        for launch in launches
        if "static__library" in launch.metrics
    )


def _launch_ms(launch: Launch, device: Device, clock_hz: float, passes: float) -> float:
    metrics = launch.metrics
    if "static__library" in metrics:
        return _vendor_ms(metrics, device)
    share = 1.0 if device.measured else DATASHEET_SHARE
    work = infer_work(launch, device.warp_size, passes)
    blocks = float(launch.grid[0] * launch.grid[1] * launch.grid[2])
    if metrics["static__blocks_per_sm"] == 0:
        return float("inf")  # one block does not fit a multiprocessor
    busy_sms = min(float(device.sm_count), blocks)
    # Blocks are dealt whole: the busiest multiprocessor has ceil(blocks / SMs) of them, the average
    # one fewer.
    imbalance = 1.0
    if blocks > device.sm_count:
        imbalance = -(-blocks // device.sm_count) * device.sm_count / blocks
    in_flight = bytes_in_flight(launch, device)
    bandwidth = device.dram_bytes_per_s * share
    if in_flight:
        bandwidth = min(bandwidth, in_flight / MEMORY_LATENCY_S)
    memory_s = work.bytes / bandwidth
    sm_cycles = max(
        (work.warp_instructions + SPILL_CYCLES * work.spill_warps) / ISSUE_PER_CLOCK,
        work.fma_warps * device.warp_size / FMA_LANES,
        work.special_warps * device.warp_size / SPECIAL_LANES,
        work.loaded_bytes / L1_BYTES_PER_CLOCK,
    )
    issue_s = sm_cycles / busy_sms / clock_hz
    tensor_unit = "tf32" if _once(launch, "tf32_tensor_flops") else "bf16"
    tensor_s = work.tensor_flops / (
        device.peak_flops_per_s[tensor_unit] * share * busy_sms / device.sm_count
    )
    return device.launch_ms + 1e3 * (max(memory_s, imbalance * max(issue_s, tensor_s)))


def _vendor_ms(metrics: Mapping[str, float], device: Device) -> float:
    """One operator of a vendor: its bytes, or its FLOPs on the unit that it uses.

    Either at the share of it that the vendor's kernel reaches (vendor.py).
    """
    reached = {} if device.measured else REACHED
    unit = "tf32" if "static__tf32" in metrics else "fp32"
    if metrics.get("static__item_bytes", 4.0) == 2.0:
        unit = "bf16"
    moved_s = metrics["static__argument_bytes"] / device.dram_bytes_per_s
    done_s = metrics.get("static__flops", 0.0) / device.peak_flops_per_s[unit]
    seconds = max(moved_s / reached.get("bytes", 1.0), done_s / reached.get(unit, 1.0))
    return device.launch_ms + 1e3 * seconds / metrics.get("static__vendor_share", 1.0)


def _once(launch: Launch, kind: str) -> float:
    """A count summed over all warps of a launch, as if every loop body ran once.

    It is 0 for vendor operators.
    """
    if launch.grid is None or launch.block is None:
        return 0.0
    warps = launch.grid[0] * launch.grid[1] * launch.grid[2] * launch.block[0] / 32
    return warps * (
        launch.metrics.get(f"static__{kind}", 0.0) + launch.metrics.get(f"static__loop_{kind}", 0.0)
    )


def infer_work(launch: Launch, warp_size: int, passes: float) -> Work:
    """What a launch of a compiled kernel does in all."""

    def count(kind: str) -> tuple[float, float]:
        return launch.metrics.get(f"static__{kind}", 0.0), launch.metrics.get(
            f"static__loop_{kind}", 0.0
        )

    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    warps = blocks * launch.block[0] / warp_size
    argument_bytes = launch.metrics["static__argument_bytes"]
    loaded_bytes = blocks * launch.metrics.get(
        "static__program_load_bytes", argument_bytes / blocks
    )
    straight_loads, loop_loads = count("global_load_bytes")
    straight_flops, loop_flops = count("tensor_flops")
    if not straight_flops + loop_flops:
        straight_flops, loop_flops = (warp_size * flops for flops in count("fma_flops"))
    trips = 1.0
    if loop_loads:
        trips = max(trips, (loaded_bytes / (warps * warp_size) - straight_loads) / loop_loads)
    if loop_flops and "static__program_flops" in launch.metrics:
        trips = max(
            trips,
            (blocks * launch.metrics["static__program_flops"] / warps - straight_flops)
            / loop_flops,
        )
    elif loop_flops and not loop_loads and "static__program_vector_flops" in launch.metrics:
        vector_flops = blocks * launch.metrics["static__program_vector_flops"] / warps
        trips = max(trips, (vector_flops - straight_flops) / loop_flops)
    elif loop_flops and "static__program_load_bytes" not in launch.metrics:
        trips = max(trips, passes)

    def total(kind: str) -> float:
        straight, looped = count(kind)
        return warps * (straight + trips * looped)

    accessed = ("static__program_load_bytes", "static__program_store_bytes")
    moved_bytes = blocks * sum(launch.metrics.get(name, argument_bytes) for name in accessed)
    return Work(
        # Each argument once: what is read again comes from a cache, as far as statics can tell. Or
        # less: a launch that combines partial results is given the inputs too, and reads next to
        # nothing of them.
        bytes=min(argument_bytes, moved_bytes),
        loaded_bytes=loaded_bytes,
        warp_instructions=total("instructions"),
        fma_warps=total("fma"),
        special_warps=total("special"),
        tensor_flops=total("tensor_flops"),
        spill_warps=total("local_accesses"),
        fma_flops=warp_size * total("fma_flops"),
        predicated_warps=total("predicated"),
    )


def bytes_in_flight(launch: Launch, device: Device) -> float:
    """The bytes that the loads of all resident warps wait for at once, each warp's issued in a row.

    A loop's loads count once. 0 where the binary has none, or nothing is resident.
    """
    blocks = float(math.prod(launch.grid))
    resident = min(launch.metrics["static__blocks_per_sm"], max(1.0, blocks / device.sm_count))
    threads = resident * launch.block[0] * min(float(device.sm_count), blocks)
    names = ("static__global_load_bytes", "static__loop_global_load_bytes")
    return threads * sum(launch.metrics.get(name, 0.0) for name in names)
