"""Settings of scan kernels: which are worth compiling, how one is fitted, and what it costs.

The cost model adds DRAM time to the latency of steps that not enough programs hide; it ranks
settings, no more. Shares of the bandwidth are those of rows/space.py.
"""

from kmem.codegen.scans.scan import Scan
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Settings, Space
from kmem.records import DTYPE_BYTES, Device, Knob

#: Registers of a thread beside its values, and per value of the tile for the scan and for each
#: operand: 40, 51 and 64 registers at 16, 16 and 32 values of one operand, 64 at 16 of two
#: (compiled for sm_90 by Triton 3.9).
_REGISTERS, _REGISTERS_PER_VALUE = 20, 1.0
_MAX_TILE = 32768
#: Share of the DRAM peak that a copy reaches: 4.26 of 4.8 TB/s measured on an H200 (2026-11-20).
_COPY_SHARE = 0.887
#: Seconds of a step: one round trip to DRAM and one scan across warps (latencies of sm_90: about
#: 600 ns and 20 ns per shuffle or barrier), and more per value that a thread scans. Assumed, not
#: measured.
_STEP_S, _STEP_S_PER_VALUE = 8e-7, 2e-8

_SPLITS = (1, 4, 16, 64, 256, 1024)


def fit_settings(scan: Scan, settings: Settings) -> dict[str, Knob]:
    """A setting with SPLIT and SEGMENT as they must be for this scan's length.

    SEGMENT is how many positions a program takes, a multiple of BR.
    """
    block = min(int(settings["BR"]), next_power_of_two(scan.length))
    wanted = int(settings["SPLIT"]) if settings["STRATEGY"] == "split" else 1
    segment = -(-scan.length // (wanted * block)) * block
    return {**settings, "BR": block, "SPLIT": -(-scan.length // segment), "SEGMENT": segment}


def scan_space(scan: Scan, device: Device) -> Space:
    """Knobs of a scan's kernels.

    STRATEGY, BK rows and BR positions per tile, SPLIT programs per row, num_warps.
    """
    inner = scan.kept[-1] if scan.kept else 1
    widest, whole = next_power_of_two(inner), next_power_of_two(scan.length)
    if scan.is_dense:
        columns = [
            size for size in (512, 1024, 2048, 4096, 8192, 16384, 32768) if size <= whole
        ] or [whole]
        short = min(widest, max(1, 2048 // columns[0]))
        rows = (
            [1]
            if columns[0] >= 512
            else [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= short]
        )
    else:  # bursts run along the densest kept axis
        rows = [size for size in (32, 64, 128, 256, 512) if size <= widest] or [widest]
        columns = [size for size in (8, 16, 32, 64, 128) if size <= whole] or [whole]
    strategies = (
        ("carry", "split")
        if _row_blocks(scan, max(rows)) < 4 * device.sm_count and whole > min(columns)
        else ("carry",)
    )
    smallest = min(512, max(rows) * max(columns))

    def is_legal(settings: Settings) -> bool:
        split, tile = int(settings["SPLIT"]), int(settings["BK"]) * int(settings["BR"])
        threads = int(settings["num_warps"]) * device.warp_size
        if settings["STRATEGY"] == "carry":
            is_split_well = split == 1
        else:
            programs = _row_blocks(scan, int(settings["BK"])) * split
            fills = device.sm_count <= programs <= 32 * device.sm_count
            # which each program of the second kernel loads at once
            holds_totals = split * int(settings["BK"]) <= 32 * threads
            is_split_well = (
                split > 1
                and (split - 1) * int(settings["BR"]) < scan.length
                and fills
                and holds_totals
            )
        fits = smallest <= tile <= _MAX_TILE and _registers(scan, tile / threads) <= min(
            255.0, device.registers_per_sm / threads
        )
        return is_split_well and fits and (tile >= 4 * threads or threads == device.warp_size)

    knobs = {
        "STRATEGY": strategies,
        "BK": tuple(rows),
        "BR": tuple(columns),
        "SPLIT": _SPLITS,
        "num_warps": (1, 2, 4, 8, 16, 32),
    }
    return Space(knobs, is_legal)


def _row_blocks(scan: Scan, block_rows: int) -> int:
    inner = scan.kept[-1] if scan.kept else 1
    return scan.rows // inner * -(-inner // block_rows)


def _registers(scan: Scan, per_thread: float) -> float:
    return _REGISTERS + _REGISTERS_PER_VALUE * per_thread * (1 + max(1, len(scan.loads)))


def scan_cost_ms(scan: Scan, settings: Settings, device: Device) -> float:
    """The time of a setting.

    That is bytes at the bandwidth that its bursts reach, joined with the latency of its steps;
    "split" reads twice.
    """
    fitted = fit_settings(scan, settings)
    threads = int(fitted["num_warps"]) * device.warp_size
    per_thread = int(fitted["BK"]) * int(fitted["BR"]) / threads
    by_registers = int(device.registers_per_sm / (_registers(scan, per_thread) * threads))
    resident = max(
        1, min(by_registers, device.max_threads_per_sm // threads, device.max_blocks_per_sm)
    )
    programs = _row_blocks(scan, int(fitted["BK"])) * int(fitted["SPLIT"])
    steps = -(-int(fitted["SEGMENT"]) // int(fitted["BR"]))
    waves = -(-programs // (resident * device.sm_count))
    # no second program reads while one scans, as measured for softmax rows (rows/space.py)
    exposed = 3.0 if resident == 1 else 1.0
    latency = exposed * waves * steps * (_STEP_S + _STEP_S_PER_VALUE * per_thread)
    width = min(DTYPE_BYTES[operand.spec.dtype] for operand in (*scan.inputs, scan.output))
    burst = int(fitted["BR"] if scan.is_dense else fitted["BK"]) * width
    reach = min(1.0, burst / 256) ** 0.13  # as measured for row norms over channels
    read, written = sum(operand.spec.bytes for operand in scan.inputs), scan.output.spec.bytes
    copy = (read + written) / (_COPY_SHARE * device.dram_bytes_per_s) / reach
    seconds = (copy**2 + latency**2) ** 0.5
    launches = 1
    if fitted["STRATEGY"] == "split":
        first = read / (_COPY_SHARE * device.dram_bytes_per_s) / reach
        # of the second read, what L2 no longer holds
        again = min(1.0, read / (0.6 * device.l2_bytes))
        seconds = (first**2 + latency**2) ** 0.5 + (
            (copy - first * (1.0 - again)) ** 2 + latency**2
        ) ** 0.5
        launches = 2
    return 1e3 * seconds + launches * device.launch_ms
