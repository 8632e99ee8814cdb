"""What a launch did to the hardware, derived from its binary, its IR, its arguments and its time.

For profilers that read no counters. Each figure becomes a counter `derived__...` of the launch
(kmem/counters.py), and only where it follows: what cannot be told is left out and stays unknown.

Told: bytes of device memory where nothing is read twice, or where a first launch's arguments fit
L2; else how many they are at least; hit rates where nothing is read twice; full sectors where each
load takes 16 bytes, which Triton does along a contiguous axis alone, and their share where Triton's
IR says how far lanes are apart; the lanes of loads and stores that masks leave out at least; how
much of what keeps device memory busy is asked for at once; pipes and issue slots from the counts of
instructions where the binary's loops can be multiplied out. Not told: stalls, L2's throughput, bank
conflicts, hit rates where something is read again, and anything about a vendor's kernel but the
bytes that it moves at least. Source: Nsight Compute's counters of kernels like these on an H200
(tests/recordings/ncu_pointwise_triton.csv: L1 hits 0%, L2 hits 51% of equal reads and writes,
sectors 100%, barrier stalls 0%).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.profile.estimate import (
    FMA_LANES,
    ISSUE_PER_CLOCK,
    L1_BYTES_PER_CLOCK,
    MEMORY_LATENCY_S,
    SPECIAL_LANES,
    bytes_in_flight,
    flop_passes,
    infer_work,
    sm_clock_hz,
)
from kmem.records import Bound, Device, Launch

#: Bytes that programs access over those of the arguments where each counts as accessed once.
#: Source: chosen; what masks leave out at the edge of an array is less.
_ONCE = 1.05
#: Arguments of at most this share of L2 stay in it. Source: Nvidia H100 whitepaper: L2 is two
#: partitions, and what the far one holds is kept in the near one too.
_STAYS_IN_L2 = 0.5
#: Arguments this many times L2 come from device memory even where a launch before left them in L2.
_FAR_BEYOND_L2 = 8.0
#: What a lane loads or stores at once at most. Source: PTX ISA, ld, .v4.b32.
WIDEST_ACCESS_BYTES = 16.0
#: Source: Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018:
#: an instruction has 128 bits since Volta.
INSTRUCTION_BYTES = 16.0
#: Predicated instructions of at most this share leave the lanes as good as full; of more it is not
#: known how many lanes they switch off.
_FEW_PREDICATED = 0.1


def add_derived(
    launches: Sequence[Launch], bound: Bound | None, device: Device
) -> tuple[Launch, ...]:
    """The launches of one forward with what follows of them, in order.

    Args:
        launches: with their durations, and `static__` metrics where their binary was read.
        bound: of the whole graph; None if it is not known.
    """
    passes = flop_passes(launches, bound, device)
    return tuple(
        replace(
            launch,
            metrics={
                **launch.metrics,
                **_memory(launch, device, is_first=place == 0),
                **_from_binary(launch, device, passes),
            },
        )
        for place, launch in enumerate(launches)
    )


def _memory(launch: Launch, device: Device, *, is_first: bool) -> dict[str, float]:
    """Bytes of device memory, exactly or at least, and the hits that go with them."""
    metrics = launch.metrics
    moved = metrics.get("static__argument_bytes")
    if moved is None:
        return {}
    # what launches before may have left in L2
    least = moved if is_first else max(0.0, moved - device.l2_bytes)
    accessed = _accessed_bytes(launch)
    if accessed is None:
        # a vendor's operator needs each argument once
        return {"derived__least_dram_bytes": least} if "static__library" in metrics else {}
    loaded, stored = accessed
    if loaded + stored < moved / _ONCE:
        return {}  # it reads parts of its arguments, once or often
    reuse = {"derived__reuse_ratio": (loaded + stored) / moved} if moved else {}
    is_read_once = loaded + stored <= _ONCE * moved
    fits = is_first and moved <= _STAYS_IN_L2 * device.l2_bytes
    comes_from_far = is_first or moved >= _FAR_BEYOND_L2 * device.l2_bytes
    if not (fits or (is_read_once and comes_from_far)):
        return {"derived__least_dram_bytes": least, **reuse}
    found = {"derived__dram_bytes": moved, **reuse}
    seconds = _seconds(launch)
    if seconds is not None:
        found["derived__dram_throughput_pct"] = _percent(moved / device.dram_bytes_per_s / seconds)
    if is_read_once and loaded + stored > 0:
        found["derived__l2_hit_pct"] = 100.0 * stored / (loaded + stored)  # a write is a hit
        if _loads_are_wide(metrics):
            found["derived__l1_hit_pct"] = 0.0
    return found


def _from_binary(launch: Launch, device: Device, passes: float) -> dict[str, float]:
    """Busy pipes and what the instructions tell, where the binary was read."""
    metrics = launch.metrics
    if "static__instructions" not in metrics or launch.grid is None or launch.block is None:
        return {}
    found = {}
    used = _used_of_sectors(metrics)
    if used is not None:
        found["derived__sector_efficiency_pct"] = 100.0 * used
    accesses = _total(metrics, "global_loads") + _total(metrics, "global_stores")
    if accesses:
        moved = _total(metrics, "global_load_bytes") + _total(metrics, "global_store_bytes")
        found["derived__access_bytes"] = moved / accesses
    found["derived__code_bytes"] = INSTRUCTION_BYTES * _total(metrics, "instructions")
    masked_out = _masked_out(launch)
    if masked_out is not None:
        found["derived__masked_out_pct"] = 100.0 * masked_out
    if in_flight := bytes_in_flight(launch, device):
        needed = device.dram_bytes_per_s * MEMORY_LATENCY_S  # Little's law
        found["derived__bytes_in_flight_pct"] = _percent(in_flight / needed)
    if not metrics.get("static__barriers", 0.0) + metrics.get("static__loop_barriers", 0.0):
        found["derived__barrier_stall_pct"] = 0.0
    if not _trips_are_known(metrics):
        return found
    work = infer_work(launch, device.warp_size, passes)
    predicated = work.predicated_warps / work.warp_instructions
    if predicated <= _FEW_PREDICATED:
        found["derived__branch_divergence_pct"] = 100.0 * predicated
    found["derived__fp32_flops"] = work.fma_flops
    seconds = _seconds(launch)
    if seconds is None:
        return found
    cycles = seconds * sm_clock_hz(device) * device.sm_count
    unit = (
        "tf32"
        if metrics.get("static__tf32_tensor_flops") or metrics.get("static__loop_tf32_tensor_flops")
        else "bf16"
    )
    pipes = {
        "fma": _percent(work.fma_warps * device.warp_size / FMA_LANES / cycles),
        "xu": _percent(work.special_warps * device.warp_size / SPECIAL_LANES / cycles),
        "tensor": _percent(work.tensor_flops / device.peak_flops_per_s[unit] / seconds),
    }
    issue = _percent(work.warp_instructions / ISSUE_PER_CLOCK / cycles)
    found |= {f"derived__{name}_pipe_pct": busy for name, busy in pipes.items()}
    found["derived__sm_throughput_pct"] = max(issue, *pipes.values())
    if _accessed_bytes(launch) is not None:
        found["derived__l1_throughput_pct"] = _percent(
            work.loaded_bytes / L1_BYTES_PER_CLOCK / cycles
        )
    return found


def _accessed_bytes(launch: Launch) -> tuple[float, float] | None:
    """Bytes that all programs load and store; None where Triton's IR does not say."""
    names = ("static__program_load_bytes", "static__program_store_bytes")
    if launch.grid is None or any(name not in launch.metrics for name in names):
        return None
    blocks = math.prod(launch.grid)
    return blocks * launch.metrics[names[0]], blocks * launch.metrics[names[1]]


def _total(metrics: Mapping[str, float], name: str) -> float:
    """A count of the binary's instructions, those in loops and those outside."""
    return metrics.get(f"static__{name}", 0.0) + metrics.get(f"static__loop_{name}", 0.0)


def _loads_are_wide(metrics: Mapping[str, float]) -> bool:
    """Whether every load from global memory takes 16 bytes a lane, and there is one."""
    loads = _total(metrics, "global_loads")
    return loads > 0 and _total(metrics, "global_load_bytes") == WIDEST_ACCESS_BYTES * loads


def _used_of_sectors(metrics: Mapping[str, float]) -> float | None:
    """The share of the sectors touched that is asked for; None where lanes lie nobody knows how.

    Stores count where it is known of all how they lie: a sector that is written in part costs as
    much as a whole one.
    """
    asked = metrics.get("static__program_load_bytes", 0.0)
    touched = metrics.get("static__program_sector_bytes")
    if _loads_are_wide(metrics):
        asked = touched = asked or 1.0
    if touched is None:
        return None
    if stored := metrics.get("static__program_store_sector_bytes"):
        asked, touched = asked + metrics["static__program_store_bytes"], touched + stored
    return asked / touched


def _masked_out(launch: Launch) -> float | None:
    """The share of lanes of stores or of loads that masks leave out, at least; None if unknown."""
    metrics, shares = launch.metrics, []
    masked = math.prod(launch.grid) * metrics.get("static__program_masked_store_bytes", 0.0)
    if masked:
        # a result is written once: what is more than all arguments was masked out
        shares.append(max(0.0, 1.0 - metrics.get("static__argument_bytes", masked) / masked))
    if left_out := metrics.get("static__program_left_out_bytes", 0.0):
        shares.append(left_out / metrics["static__program_load_bytes"])
    return max(shares, default=None)


def _trips_are_known(metrics: Mapping[str, float]) -> bool:
    """Whether Triton's IR says how often the loops of the binary run, if there are any."""
    if not metrics.get("static__loop_instructions"):
        return True
    if metrics.get("static__loop_global_load_bytes") and "static__program_load_bytes" in metrics:
        return True
    if metrics.get("static__loop_tensor_flops"):
        return "static__program_flops" in metrics
    return bool(metrics.get("static__loop_fma_flops")) and "static__program_vector_flops" in metrics


def _seconds(launch: Launch) -> float | None:
    if launch.duration_ms is None or not 0.0 < launch.duration_ms < math.inf:
        return None
    return launch.duration_ms / 1e3


def _percent(share: float) -> float:
    return 100.0 * min(1.0, share)
