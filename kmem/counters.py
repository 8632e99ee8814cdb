"""Profiler counters: their names, the quantities of a signature that they give, and their sources.

One table serves every profiler: it has ncu's own names, and those that kmem gives to figures from
CUPTI traces (`cupti__`) and from compiled binaries (`static__`), or derives from both
(`derived__`). A quantity may have several counters; the first one that is present counts.
profile/ncu.py asks ncu for exactly its own, diagnose/signature.py reads them. The table was checked
against reports of Nsight Compute 2025.x on an H200 (tests/recordings).
"""

from collections.abc import Mapping
from dataclasses import dataclass

_GUIDE = "Nsight Compute Documentation, Kernel Profiling Guide"
_METRICS_GUIDE = f"{_GUIDE}, Metrics Reference"
_LAUNCH = f"{_GUIDE}, Launch Metrics"
_SOURCE = f"{_GUIDE}, Instructions Per Opcode and Source Metrics"
_WARP_STATES = f"{_GUIDE}, Warp Stall Reasons"
_CUPTI = "PyTorch profiler chrome trace (libkineto), fields of a kernel event"
_BINARY = (
    "cuobjdump -res-usage and nvdisasm on the cubin; occupancy by profile/compile/occupancy.py"
)


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of a profiler."""

    name: str
    quantity: str  # a metric of vocabulary.SIGNATURE_METRICS, or an ingredient of one
    unit: str  # after conversion to base units: byte, ns, %, inst, ratio
    meaning: str
    source: str
    label: str | None = None  # what ncu calls the counter on its details page


_DERIVED = "kmem/profile/derive.py, from the binary, Triton's IR, the arguments and the time"

_PEAK = ".avg.pct_of_peak_sustained_elapsed"

COUNTERS: tuple[Counter, ...] = (
    Counter("gpu__time_duration.sum", "duration_ns", "ns",
        "time between start and end of the kernel", _METRICS_GUIDE, "Duration"),
    Counter("dram__bytes_read.sum", "dram_read_bytes", "byte",
        "bytes read from device memory", _METRICS_GUIDE),
    Counter("dram__bytes_write.sum", "dram_write_bytes", "byte",
        "bytes written to device memory", _METRICS_GUIDE),
    Counter("gpu__dram_throughput" + _PEAK, "dram_throughput_pct", "%",
        "busiest DRAM unit over its peak", _METRICS_GUIDE, "DRAM Throughput"),
    Counter("dram__throughput" + _PEAK, "dram_throughput_pct", "%",
        "busiest DRAM unit over its peak", _METRICS_GUIDE),
    Counter("lts__throughput" + _PEAK, "l2_throughput_pct", "%",
        "busiest L2 slice unit over its peak", _METRICS_GUIDE, "L2 Cache Throughput"),
    Counter("l1tex__throughput" + _PEAK, "l1_throughput_pct", "%",
        "busiest L1/TEX unit over its peak", _METRICS_GUIDE),
    Counter("l1tex__throughput.avg.pct_of_peak_sustained_active", "l1_throughput_pct", "%",
        "the same while an SM is active", _METRICS_GUIDE, "L1/TEX Cache Throughput"),
    Counter("lts__t_sector_hit_rate.pct", "l2_hit_pct", "%",
        "L2 sector hits over lookups", _METRICS_GUIDE, "L2 Hit Rate"),
    Counter("l1tex__t_sector_hit_rate.pct", "l1_hit_pct", "%",
        "L1 sector hits over lookups", _METRICS_GUIDE, "L1/TEX Hit Rate"),
    Counter("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
        "load_bytes_per_sector", "byte",
        "bytes threads use of each 32-byte sector a global load fetches", _SOURCE),
    Counter("sm__throughput" + _PEAK, "sm_throughput_pct", "%",
        "busiest SM pipe or issue slot over its peak", _METRICS_GUIDE, "Compute (SM) Throughput"),
    Counter("sm__pipe_tensor_cycles_active" + _PEAK, "tensor_pipe_pct", "%",
        "tensor-core pipe active", _METRICS_GUIDE),
    Counter("sm__inst_executed_pipe_tensor" + _PEAK, "tensor_pipe_pct", "%",
        "tensor-core instructions over the pipe's peak", _METRICS_GUIDE),
    Counter("sm__pipe_fma_cycles_active" + _PEAK, "fma_pipe_pct", "%",
        "fp32 FMA pipe active", _METRICS_GUIDE),
    Counter("sm__inst_executed_pipe_fma" + _PEAK, "fma_pipe_pct", "%",
        "FMA instructions over the pipe's peak", _METRICS_GUIDE),
    Counter("sm__inst_executed_pipe_xu" + _PEAK, "xu_pipe_pct", "%",
        "special-function and conversion instructions over the pipe's peak", _METRICS_GUIDE),
    Counter("sm__warps_active.avg.pct_of_peak_sustained_active", "occupancy_pct", "%",
        "resident warps over the maximum, while active", _METRICS_GUIDE, "Achieved Occupancy"),
    Counter("cupti__achieved_occupancy_pct", "occupancy_pct", "%",
        "occupancy estimated by CUPTI from grid and resources", _CUPTI),
    Counter("static__occupancy_pct", "occupancy_pct", "%", "theoretical occupancy", _BINARY),
    Counter("launch__registers_per_thread", "registers_per_thread", "register",
        "registers allotted to a thread", _LAUNCH, "Registers Per Thread"),
    Counter("cupti__registers_per_thread", "registers_per_thread", "register",
        "registers allotted to a thread", _CUPTI),
    Counter("static__registers_per_thread", "registers_per_thread", "register",
        "registers allotted to a thread", _BINARY),
    Counter("static__stack_bytes_per_thread", "spill_bytes_per_thread", "byte",
        "stack ptxas reserves; Triton uses it for spills only", _BINARY),
    Counter("smsp__sass_inst_executed_op_local_st.sum", "local_store_instructions", "inst",
        "warp instructions that store to local memory", _SOURCE),
    Counter("launch__thread_count", "threads", "thread", "threads of the grid", _LAUNCH, "Threads"),
    Counter("launch__grid_size", "blocks", "block", "blocks of the grid", _LAUNCH, "Grid Size"),
    Counter("launch__shared_mem_per_block", "shared_bytes_per_block", "byte",
        "shared memory of a block", _LAUNCH),
    Counter("cupti__shared_bytes_per_block", "shared_bytes_per_block", "byte",
        "shared memory of a block", _CUPTI),
    Counter("static__shared_bytes_per_block", "shared_bytes_per_block", "byte",
        "shared memory of a block", _BINARY),
    Counter("launch__waves_per_multiprocessor", "waves", "wave",
        "grid over the blocks resident at once", _LAUNCH, "Waves Per SM"),
    Counter("static__waves", "waves", "wave", "grid over the blocks resident at once", _BINARY),
    Counter("launch__occupancy_limit_registers", "blocks_by_registers", "block",
        "blocks per SM that registers allow", _LAUNCH, "Block Limit Registers"),
    Counter("launch__occupancy_limit_shared_mem", "blocks_by_shared", "block",
        "blocks per SM that shared memory allows", _LAUNCH, "Block Limit Shared Mem"),
    Counter("smsp__average_warp_latency_per_inst_issued.ratio", "warp_cycles", "cycle",
        "cycles a warp waits per instruction issued", _WARP_STATES),
    Counter("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        "stall_long_scoreboard", "cycle", "of those, for global or local memory", _WARP_STATES),
    Counter("smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
        "stall_lg_throttle", "cycle", "of those, for the load/store queue", _WARP_STATES),
    Counter("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
        "stall_barrier", "cycle", "of those, at a block barrier", _WARP_STATES),
    Counter("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "threads_per_instruction", "thread",
        "threads of 32 that an instruction really acts for", _SOURCE),
    Counter("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "fp32_additions", "inst",
        "fp32 additions threads executed", _SOURCE),
    Counter("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "fp32_products", "inst",
        "fp32 products threads executed", _SOURCE),
    Counter("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "fp32_multiply_adds", "inst",
        "fp32 multiply-adds threads executed", _SOURCE),
    Counter("derived__dram_bytes", "dram_bytes", "byte",
        "bytes read from and written to device memory", _DERIVED),
    Counter("derived__least_dram_bytes", "least_dram_bytes", "byte",
        "of these, how many there are at least", _DERIVED),
    Counter("derived__dram_throughput_pct", "dram_throughput_pct", "%",
        "bytes per second of device memory over its peak", _DERIVED),
    Counter("derived__l1_throughput_pct", "l1_throughput_pct", "%",
        "bytes that L1 hands out over its peak", _DERIVED),
    Counter("derived__l2_hit_pct", "l2_hit_pct", "%",
        "L2 sector hits over lookups, where nothing is read twice", _DERIVED),
    Counter("derived__l1_hit_pct", "l1_hit_pct", "%",
        "0 where nothing is read twice", _DERIVED),
    Counter("derived__sector_efficiency_pct", "sector_efficiency_pct", "%",
        "bytes asked for over those of their sectors", _DERIVED),
    Counter("derived__access_bytes", "access_bytes", "byte",
        "bytes of global memory that an access of a lane is about, on average", _DERIVED),
    Counter("derived__reuse_ratio", "reuse_ratio", "ratio",
        "bytes that programs access over those of the arguments", _DERIVED),
    Counter("derived__code_bytes", "code_bytes", "byte",
        "bytes of a kernel's instructions", _DERIVED),
    Counter("derived__sm_throughput_pct", "sm_throughput_pct", "%",
        "busiest pipe or issue slot over its peak", _DERIVED),
    Counter("derived__tensor_pipe_pct", "tensor_pipe_pct", "%",
        "products on tensor cores over their peak", _DERIVED),
    Counter("derived__fma_pipe_pct", "fma_pipe_pct", "%",
        "fp32 arithmetic over the pipe's peak", _DERIVED),
    Counter("derived__xu_pipe_pct", "xu_pipe_pct", "%",
        "special functions over the pipe's peak", _DERIVED),
    Counter("derived__barrier_stall_pct", "barrier_stall_pct", "%",
        "0 where the binary has no barrier", _DERIVED),
    Counter("derived__branch_divergence_pct", "branch_divergence_pct", "%",
        "predicated instructions, where they are few", _DERIVED),
    Counter("derived__masked_out_pct", "masked_out_pct", "%",
        "lanes of accesses that masks leave out, at least", _DERIVED),
    Counter("derived__bytes_in_flight_pct", "bytes_in_flight_pct", "%",
        "bytes that loads wait for at once, of those that keep device memory busy", _DERIVED),
    Counter("derived__fp32_flops", "fp32_flops", "FLOP",
        "fp32 operations that threads execute", _DERIVED),
)  # fmt: skip

#: Prefixes of the counters that nothing measured or read: the figure follows from others.
DERIVED_PREFIXES = ("derived__", "static__occupancy_pct")

BY_NAME: Mapping[str, Counter] = {counter.name: counter for counter in COUNTERS}
#: ncu's details page names metrics by label; where counters share a label, the first has it.
BY_LABEL: Mapping[str, Counter] = {
    counter.label: counter for counter in reversed(COUNTERS) if counter.label
}
#: What profile/ncu.py collects: every counter that is ncu's own.
NCU_COUNTERS: tuple[str, ...] = tuple(
    counter.name
    for counter in COUNTERS
    if not counter.name.startswith(("static__", "cupti__", "derived__"))
)


#: Metrics that are made of other quantities than themselves.
_INGREDIENTS: Mapping[str, tuple[str, ...]] = {
    "traffic_ratio": ("dram_read_bytes", "dram_write_bytes"),
    "work_ratio": ("fp32_additions", "fp32_products", "fp32_multiply_adds"),
    "sector_efficiency_pct": ("load_bytes_per_sector",),
    "memory_stall_pct": ("warp_cycles", "stall_long_scoreboard", "stall_lg_throttle"),
    "barrier_stall_pct": ("warp_cycles", "stall_barrier"),
    "branch_divergence_pct": ("threads_per_instruction",),
    "spill_bytes_per_thread": ("local_store_instructions", "threads"),
}


def counters_of_metric(metric: str) -> tuple[str, ...]:
    """Nsight Compute's counters from which a metric of a signature is read; () if it has none."""
    ingredients = _INGREDIENTS.get(metric, (metric,))
    by_quantity = {
        quantity: next((name for name in NCU_COUNTERS if BY_NAME[name].quantity == quantity), None)
        for quantity in ingredients
    }
    return tuple(name for name in by_quantity.values() if name is not None)


def derived_quantities(metrics: Mapping[str, float]) -> set[str]:
    """Those quantities of one launch that were derived, not measured or read."""
    sources: dict[str, str] = {}
    for counter in COUNTERS:
        if counter.name in metrics:
            sources.setdefault(counter.quantity, counter.name)
    return {name for name, source in sources.items() if source.startswith(DERIVED_PREFIXES)}


def read_quantities(metrics: Mapping[str, float]) -> dict[str, float]:
    """Quantities of one launch from its raw counters; a missing counter leaves its quantity out."""
    found: dict[str, float] = {}
    for counter in COUNTERS:
        if counter.name in metrics:
            found.setdefault(counter.quantity, metrics[counter.name])
    return found
