"""Turn a profile's raw counters into the metrics that a diagnosis is made of.

Metrics are weighted by time over launches; a missing one stays absent, and so does one that was
derived, not counted, for less than half of the time.
"""

from collections.abc import Mapping

from kmem.counters import derived_quantities, read_quantities
from kmem.records import Bound, Device, Launch, Profile, Signature
from kmem.vocabulary import BINARY_METRICS, SIGNATURE_METRICS

SECTOR_BYTES = 32.0  # Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"
LOCAL_WORD_BYTES = 4.0  # one register

#: fp32 instructions that threads execute, and the FLOPs of each.
_FLOPS = {"fp32_additions": 1.0, "fp32_products": 1.0, "fp32_multiply_adds": 2.0}
_AS_THEY_STAND = frozenset(
    {"registers_per_thread", "shared_bytes_per_block", "waves"} | BINARY_METRICS
)
#: Quantities that are metrics as they stand and are averaged over time.
_AVERAGED = tuple(
    name for name in SIGNATURE_METRICS if name.endswith("_pct") or name in _AS_THEY_STAND
)


def make_signature(
    profile: Profile, device: Device, bound: Bound | None, *, host_ms: float | None = None
) -> Signature:
    """The signature of a profile.

    Args:
        profile: launches with raw counters; a launch without a duration weighs as the average one.
        bound: of the problem, for ratios to what is needed; without it they stay absent.
        host_ms: time of one whole forward in ms; what no kernel covers of it is host overhead.
    """
    launches = profile.launches
    weights = _weights(launches)
    quantities = [_derive(read_quantities(launch.metrics), launch, device) for launch in launches]
    derived = set().union(*(derived_quantities(launch.metrics) for launch in launches))
    values: dict[str, float] = {"launches": float(len(launches))}
    for name in (*_AVERAGED, "spill_bytes_per_thread"):
        known = [
            (weight, entry[name])
            for weight, entry in zip(weights, quantities, strict=True)
            if name in entry
        ]
        total = sum(weight for weight, _ in known)
        needed = sum(weights) / 2.0 if name in derived else 0.0
        if total > 0 and total >= needed:
            values[name] = sum(weight * value for weight, value in known) / total
    values.update(_ratios(launches, quantities, bound))
    busy_ms = [launch.duration_ms for launch in launches]
    if None not in busy_ms and busy_ms:
        if host_ms and not profile.estimated:  # estimates say nothing about the host
            values["host_overhead_pct"] = max(0.0, 100.0 * (1.0 - sum(busy_ms) / host_ms))
        if bound is not None:
            values["speed_of_light"] = bound.time_ms / (host_ms or sum(busy_ms))
    ratios = {"dram_bytes": "traffic_ratio", "fp32_flops": "work_ratio"}
    derived |= {metric for quantity, metric in ratios.items() if quantity in derived}
    if profile.estimated:
        derived.add("speed_of_light")
    return Signature(values, tuple(sorted(derived & values.keys())) or None)


def least_dram_bytes(profile: Profile) -> float | None:
    """How many bytes of device memory a forward moves at least, where nothing counted them.

    None if nothing is known of any launch.
    """
    found = [
        moved
        for launch in profile.launches
        for name in ("dram_bytes", "least_dram_bytes")
        if (moved := read_quantities(launch.metrics).get(name)) is not None
    ]
    return sum(found) if found else None


def hottest_launch(profile: Profile) -> Launch | None:
    """The launch that takes most time; the first one if no durations are known."""
    return max(profile.launches, key=lambda launch: launch.duration_ms or 0.0, default=None)


def _weights(launches: tuple[Launch, ...]) -> list[float]:
    known = [launch.duration_ms for launch in launches if launch.duration_ms]
    average = sum(known) / len(known) if known else 1.0
    return [launch.duration_ms or average for launch in launches]


def _derive(quantities: dict[str, float], launch: Launch, device: Device) -> dict[str, float]:
    """Metrics of one launch that are made of several counters.

    A counter that is missing leaves its metric out.
    """
    found = dict(quantities)
    warp_cycles = quantities.get("warp_cycles")
    if warp_cycles:
        if "stall_long_scoreboard" in quantities:
            memory = quantities["stall_long_scoreboard"] + quantities.get("stall_lg_throttle", 0.0)
            found["memory_stall_pct"] = min(100.0, 100.0 * memory / warp_cycles)
        if "stall_barrier" in quantities:
            found["barrier_stall_pct"] = min(
                100.0, 100.0 * quantities["stall_barrier"] / warp_cycles
            )
    # 0 says that the kernel has no such loads (it uses TMA), not that they are bad
    if quantities.get("load_bytes_per_sector"):
        found["sector_efficiency_pct"] = min(
            100.0, 100.0 * quantities["load_bytes_per_sector"] / SECTOR_BYTES
        )
    if "threads_per_instruction" in quantities:
        found["branch_divergence_pct"] = max(
            0.0, 100.0 * (1.0 - quantities["threads_per_instruction"] / device.warp_size)
        )
    if "local_store_instructions" in quantities and quantities.get("threads"):
        stores_per_thread = (
            quantities["local_store_instructions"] * device.warp_size / quantities["threads"]
        )
        found["spill_bytes_per_thread"] = LOCAL_WORD_BYTES * stores_per_thread
    if quantities.get("waves") == 0.0 and launch.grid is not None:
        # ncu rounds waves to two digits, which is zero for a few blocks; this is the least they can
        # be.
        found["waves"] = (
            launch.grid[0]
            * launch.grid[1]
            * launch.grid[2]
            / (device.sm_count * device.max_blocks_per_sm)
        )
    if "dram_read_bytes" in quantities and "dram_write_bytes" in quantities:
        found["dram_bytes"] = quantities["dram_read_bytes"] + quantities["dram_write_bytes"]
    if all(name in quantities for name in _FLOPS):
        found["fp32_flops"] = sum(flops * quantities[name] for name, flops in _FLOPS.items())
    return found


def _ratios(
    launches: tuple[Launch, ...], quantities: list[dict[str, float]], bound: Bound | None
) -> Mapping[str, float]:
    """Sums over the whole forward against what it needs."""
    if bound is None or not quantities:
        return {}
    found = {}
    if bound.bytes and all("dram_bytes" in entry for entry in quantities):
        found["traffic_ratio"] = sum(entry["dram_bytes"] for entry in quantities) / bound.bytes
    # Tensor-core operations have no counter that is the same on every GPU, so only fp32 arithmetic
    # is compared, where it is what limits.
    if bound.limiter == "fp32" and all("fp32_flops" in entry for entry in quantities):
        found["work_ratio"] = sum(entry["fp32_flops"] for entry in quantities) / bound.flops["fp32"]
    return found
