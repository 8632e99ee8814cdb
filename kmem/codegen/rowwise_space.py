"""Settings of row kernels: which are worth compiling, how one is fitted to another size of the same
problem, and what it should cost.

The cost model adds DRAM time to what waves of programs wait; it ranks settings, no more. Its
constants come from one H200: the pairs of setting and time that tools/gpu_rowwise.py measured on
2026-11-21 (torch 2.11, Triton 3.6), and the ceilings of devices.py.
"""

from dataclasses import dataclass

from kmem.codegen.launching import next_power_of_two
from kmem.codegen.reductions import REDUCTIONS
from kmem.codegen.region import Reduce, Region
from kmem.codegen.rowwise_access import line_classes, vector_lanes
from kmem.recipes import Operand, Settings, Space
from kmem.records import DTYPE_BYTES, Device, Knob

#: Most fp32 values one thread should hold of a tile before registers run out (255 per thread,
#: several tiles and addresses live), and most where programs share a row: 128 take 152 to 160
#: registers (instance norm, L1 norm, compiled for sm_90 by Triton 3.6).
_MAX_VALUES_PER_THREAD, _MAX_VALUES_SHARED = 64, 128
#: Programs that may share a row where a multiprocessor holds one: twice as many must fit a device
#: (see rowwise.py), and those this project targets have 128 or more multiprocessors.
_MAX_SHARING = 64
#: Threads for which a multiprocessor has registers when each takes the most it can: 65536 of 256
#: (NVIDIA), 131072 of 512 (AMD).
_THREADS_AT_MOST_REGISTERS = 256
#: Largest tile of one program that still fits registers with 32 warps.
_MAX_TILE = 32768
#: Shares of the datasheet's DRAM peak that reads alone and a copy reach, where they have not been
#: measured (4.44 and 4.26 of 4.8 TB/s).
_READ_SHARE, _COPY_SHARE = 0.925, 0.887
#: Exponent of what bursts below 512 bytes lose (sums over columns, 256 against 512 bytes: 2.25 and
#: 2.14 ms).
_BURST_LOSS = 0.05
#: How much longer a loop's steps take where a multiprocessor holds one program, and the share of
#: the time of one program's run that is lost at the end (sums over columns: 2.40, 2.24, 2.18 and
#: 2.15 ms where programs run for 0.54, 0.27, 0.13 and 0.07 ms).
_LONE, _TAIL = 1.5, 0.5
#: The same share where all programs start at once (layer norm of 16 rows, 1024 against 8192
#: programs: 0.230 and 0.223 ms).
_TAIL_OF_ONE_WAVE = 0.05
#: Least seconds from the start of a program that reduces the tile of contiguous rows it holds, or
#: loops over, to its end (assumed to be what it seemed to be where lanes lie across rows; not
#: measured for these).
_HELD_S = 5.3e-6
#: Seconds that one row, one warp that shares it and one reduction cost where lanes lie across rows,
#: and warps tell each other what they reduced: 2.4 cycles of one of 132 multiprocessors. Source:
#: H200, 2026-11-22: RMS norm over 64 channels, fp32 and bf16, 18 settings in which 4 to 32 warps
#: share a row (4.81 and 5.37 ms for 16, 9.03 for 32; in bf16 2.45 to 3.07, 4.5 to 5.6 and 9.6 for
#: 8, 16 and 32), and argmax (four reductions, 2.94 ms for 32 warps and four parts).
_HAND_OVER_S = 1.05e-11
#: Seconds of one step of a loop over tiles, and more per value that a thread holds (hinge, MSE and
#: Frobenius loops, 8 to 16 values).
_STEP_S, _STEP_S_PER_VALUE = 1e-7, 5e-8
#: Seconds of a program with one tile that overlap with nothing, and more per value of a thread
#: (softmax of 64 and 8192 columns).
_TILE_S, _TILE_S_PER_VALUE = 1e-7, 2e-8
#: Seconds of a pipelined program beyond its steps: a ticket, an announcement or a poll, and the
#: partial states, each a round trip to L2 of 0.7 us (assumed; not yet measured), and what its
#: second read from L2 adds to the time of the DRAM bytes.
_TURN_S, _SECOND_READ = 3e-6, 1.06
#: Share of L2 at which rows read but not yet written are all read again from DRAM (instance norm of
#: 512 x 512 on H200: 4.59 ms with 16 MB in flight, 5.35 with 33, 5.41 with 66, where ncu counts 15
#: GB read for 7.5 GB of inputs).
_KEPT_BY_L2 = 0.5
#: Elements of a tile whose lines are of one class, and the share of the time of one of its programs
#: that is lost at the end. Source: a prototype on H200, sums over dim 1 of (128, 4096, 4095):
#: 2.002, 2.009 and 2.016 ms for tiles of 128 x 32 (32 warps, 8) and 256 x 16 (8), 2.101 for 128 x
#: 64 (16). The programs written here were not measured.
_CLASSED_TILE, _TAIL_OF_CLASSES = 4096, 0.05
#: How much longer DRAM bytes take where lines start beside 16 bytes and loads are of one element
#: (the same sums, maxima and argmax at 46 settings of "split" and "loop").
_BESIDE = 1.05
#: Programs of one warp that run at once on the devices this project targets: 132 multiprocessors of
#: 2048 threads at half occupancy. Half of them reduce, so a writer that many programs behind finds
#: its states ready; a tile of 16 values a thread in 4 steps keeps 17 MB in L2.
_REDUCING_WARPS = 132 * 32 // 2
#: Seconds of a wave of programs that share rows, beyond their bytes (log-softmax of 393216 columns:
#: 1.3 to 2.1 us at seven settings), and the programs per multiprocessor above which their polls
#: hinder each other (L1 norm of 65535 columns: 3.4 us at 5, 9 us at 21).
_WAIT_S, _QUIET_WAITERS = 1.9e-6, 6

#: Strategies whose SPLIT knob cuts rows into parts.
_PARTED = ("split", "classes", "pipelined")
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def sharing_places(warps: int, warp_size: int = 32) -> int:
    """Programs of so many warps that a multiprocessor holds whatever registers they take: programs
    that wait for each other count on it.
    """
    return max(1, _THREADS_AT_MOST_REGISTERS // (warps * warp_size))


def waiting(warps: int) -> list[str]:
    """Launcher lines that set `wait`: whether two launches of programs that wait for each other fit
    the device (see rowwise.py).
    """
    places = f"max(1, {_THREADS_AT_MOST_REGISTERS} // ({warps} * device.warp_size))"
    return [
        "interpreted = triton.knobs.runtime.interpret",
        # a meta tensor asks for compilation alone: no device to hold the programs
        "device = torch.cuda.get_device_properties(p0.device) if p0.is_cuda else None",
        f"places = device.multi_processor_count * {places} if device else 2 * SPLIT",
        "wait = not interpreted and 2 * SPLIT <= places",
    ]


def fit_settings(region: Region, settings: Settings) -> dict[str, Knob]:
    """A setting with SPLIT, SEGMENT (elements of a row per program) and BR as they must be for this
    region's sizes.

    A setting found at one size stays correct at another: "registers" always takes the whole row,
    falling back to "loop" above the largest tile; "shared" widens its tile until at most 64
    programs share a row (more if several fit a multiprocessor), falling back to "split", as
    "classes" does where lines have none. SPLIT counts the parts of all classes together.
    """
    fitted = {**settings, "SPLIT": 1, "SEGMENT": region.columns}
    columns = region.columns
    if settings["STRATEGY"] == "registers":
        fitted["BR"] = fitted["SEGMENT"] = next_power_of_two(columns)
        if fitted["BR"] * int(settings["BK"]) > 2 * _MAX_TILE:
            fitted |= {"STRATEGY": "loop", "BR": 1024, "SEGMENT": columns}
        else:
            fitted["SEGMENT"] = columns if fitted["BR"] == columns else fitted["BR"]
    # without waiting it would run more than once, which a buffer must not see
    elif settings["STRATEGY"] == "shared":
        sharing = _MAX_SHARING * sharing_places(int(settings["num_warps"]))
        share = max(int(settings["BR"]), next_power_of_two(-(-columns // sharing)))
        if share * int(settings["BK"]) > _MAX_TILE or region.changes_inputs:
            fitted |= {"STRATEGY": "split", "SPLIT": _MAX_SHARING, "BR": 1024}
        else:
            fitted |= {"BR": share, "SPLIT": -(-columns // share), "SEGMENT": share}
    if settings["STRATEGY"] == "pipelined" and max(region.passes().values()) > 1:
        fitted["STRATEGY"] = "split"  # a second pass would have to wait for the first
    classes = line_classes(region) if settings["STRATEGY"] == "classes" else 1
    if settings["STRATEGY"] == "classes" and classes == 1:
        fitted["STRATEGY"] = "split"
    if fitted["STRATEGY"] in _PARTED:
        wanted = int(settings["SPLIT"]) if settings["STRATEGY"] in _PARTED else _MAX_SHARING
        block, share = int(fitted["BR"]), -(-columns // classes)
        segment = -(-share // (max(1, wanted // classes) * block)) * block
        fitted |= {"SEGMENT": segment, "SPLIT": classes * -(-share // segment)}
    if fitted["STRATEGY"] == "pipelined":
        fitted["LEAD"] = max(
            1, round(_REDUCING_WARPS / int(settings["num_warps"]) / int(fitted["SPLIT"]))
        )
    return fitted


def row_space(region: Region, device: Device) -> Space:
    """Knobs of a region's kernels: STRATEGY, BK rows per program, BR elements of the row per tile,
    SPLIT programs per row, num_warps.
    """
    inner = region.axes[region.kept[-1]].size if region.kept else 1
    whole = next_power_of_two(region.columns)
    widest = min(next_power_of_two(inner), 256)
    if region.row_is_contiguous:
        rows = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= widest]
        columns = [size for size in (1024, 2048, 4096, 8192, 16384, 32768) if size <= whole] or [
            whole
        ]
    else:  # bursts run along the rows' axis, so a tile is at least 16 rows wide
        rows = [size for size in (16, 32, 64, 128, 256) if size <= widest] or [widest]
        columns = [size for size in (4, 8, 16, 32, 64, 128, 256, 512) if size <= whole] or [whole]
    strategies = _strategies(region, whole, min(rows), max(columns))
    tiles = {
        "registers": (rows, [whole]),
        "loop": ([1] if region.row_is_contiguous else rows, columns),
    }

    def is_legal(settings: Settings) -> bool:
        strategy, split = settings["STRATEGY"], int(settings["SPLIT"])
        block_rows, block = int(settings["BK"]), int(settings["BR"])
        allowed_rows, allowed_columns = tiles.get(strategy, tiles["loop"])
        if block_rows not in allowed_rows or (strategy not in _PARTED and split != 1):
            return False
        if strategy == "registers":
            if block != columns[0]:  # the tile is the whole row whatever BR says
                return False
            block = whole
        if strategy == "pipelined" and not _is_worth_pipelining(region, settings, device):
            return False
        if strategy == "split" and not _is_worth_splitting(
            region, block_rows, block, split, device
        ):
            return False
        if strategy == "classes" and not _is_worth_classing(region, settings, device):
            return False
        warps = int(settings["num_warps"])
        if strategy == "shared" and not _fits_sharing(-(-region.columns // block), warps, device):
            return False
        if (
            strategy == "loop"
            and _row_blocks(region, block_rows) < device.sm_count // 4
            and "split" in strategies
        ):
            return False
        tile, threads = block_rows * block, warps * device.warp_size
        held = tile * region.held_loads
        smallest = min(512, max(allowed_rows) * max(allowed_columns))
        return (
            smallest <= tile <= _MAX_TILE
            and held
            <= threads
            * (
                _MAX_VALUES_SHARED
                if strategy == "shared" and warps <= 4
                else _MAX_VALUES_PER_THREAD
            )
            and (tile >= 4 * threads or threads == device.warp_size)
        )

    names = {
        "STRATEGY": tuple(strategies),
        "BK": tuple(rows),
        "BR": tuple(columns),
        "SPLIT": _SPLITS,
        "num_warps": (1, 2, 4, 8, 16, 32),
    }
    return Space(names, is_legal)


def _strategies(region: Region, whole: int, fewest_rows: int, longest_tile: int) -> list[str]:
    found = ["registers"] if whole * fewest_rows * region.held_loads <= _MAX_TILE else []
    if region.columns > longest_tile // 2 or region.columns > 1024 or not found:
        found += ["loop", "split"]
    if "split" in found and line_classes(region) > 1:
        found.append("classes")
    if region.has_element_output and region.columns > 2048:
        found += ["shared"] if not region.changes_inputs else []
        if max(region.passes().values()) == 1 and "split" in found:
            found.append("pipelined")
    return found


def _fits_sharing(programs: int, warps: int, device: Device) -> bool:
    places = device.sm_count * sharing_places(warps, device.warp_size)
    return 2 <= programs <= min(_MAX_SHARING * sharing_places(warps), places // 2)


def _is_worth_splitting(
    region: Region, block_rows: int, block: int, split: int, device: Device
) -> bool:
    programs = _row_blocks(region, block_rows) * split
    return (
        split > 1
        and split * block < region.columns * 2
        and 2 * device.sm_count <= programs <= 64 * device.sm_count
    )


def _is_worth_classing(region: Region, settings: Settings, device: Device) -> bool:
    """Tiles of the size that was measured, at least 128 rows wide; more parts than classes only
    where that fills the device.
    """
    rows, block, split = (int(settings[name]) for name in ("BK", "BR", "SPLIT"))
    classes = line_classes(region)
    is_filled = (
        split == classes
        or split % classes == 0
        and _is_worth_splitting(region, rows, block, split, device)
    )
    return rows >= 128 and rows * block == _CLASSED_TILE and is_filled


def _is_worth_pipelining(region: Region, settings: Settings, device: Device) -> bool:
    """Segments of 4 to 16 small tiles, enough of them to fill the device, and rows of which a few
    fit L2.
    """
    rows, block, split, warps = (int(settings[name]) for name in ("BK", "BR", "SPLIT", "num_warps"))
    blocks = _row_blocks(region, rows)
    row_bytes = rows * sum(operand.spec.bytes for operand in region.inputs) / region.rows
    is_small = (
        warps in (4, 8) and 8 <= rows * block * region.held_loads / (warps * device.warp_size) <= 16
    )
    is_filled = blocks >= 8 and blocks * split >= 8 * device.sm_count
    return (
        is_small
        and is_filled
        and 4 <= -(-region.columns // (split * block)) <= 16
        and row_bytes <= 0.4 * device.l2_bytes
    )


def _row_blocks(region: Region, block_rows: int) -> int:
    """Groups of at most `block_rows` rows along the innermost kept axis."""
    inner = region.axes[region.kept[-1]].size if region.kept else 1
    return region.rows // inner * -(-inner // block_rows)


@dataclass(frozen=True, slots=True)
class _Cost:
    """Times of one setting's kernels on one device."""

    region: Region
    device: Device
    settings: Settings  # as fit_settings leaves them

    @property
    def per_thread(self) -> float:
        """Values of the tile, over all operands that fill it, that a thread holds."""
        return (
            int(self.settings["BK"])
            * int(self.settings["BR"])
            * self.region.held_loads
            / self.threads
        )

    @property
    def threads(self) -> int:
        return int(self.settings["num_warps"]) * self.device.warp_size

    @property
    def registers(self) -> float:
        """Registers a thread needs, as kernels compiled for sm_90 by Triton 3.6 do: softmax,
        instance, group and L1 norms; sums, argmax.
        """
        statements = self.region.statements
        if self.settings["STRATEGY"] in ("loop", *_PARTED):
            states = sum(
                len(REDUCTIONS[item.kind].states) for item in statements if isinstance(item, Reduce)
            )
            return 16 + 1.15 * (1 + states) * self.per_thread  # a tile and the lanes of each state
        is_rotated = self.settings["BK"] == 1 and vector_lanes(self.region) > 1
        is_masked = (
            self.region.row_is_contiguous
            and self.region.columns % int(self.settings["BR"]) != 0
            and not is_rotated
        )
        return 24 + (2.2 if is_masked else 1.12) * self.per_thread

    @property
    def is_beside(self) -> bool:
        """Whether lines start beside 16 bytes and are read as they come."""
        return self.settings["STRATEGY"] != "classes" and line_classes(self.region) > 1

    @property
    def spilled(self) -> float:
        """The share of the registers needed that a thread cannot have."""
        return max(
            0.0, 1.0 - min(255.0, self.device.registers_per_sm / self.threads) / self.registers
        )

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds."""
        by_registers = int(
            self.device.registers_per_sm / (min(255.0, self.registers) * self.threads)
        )
        return max(
            1,
            min(
                by_registers,
                self.device.max_threads_per_sm // self.threads,
                self.device.max_blocks_per_sm,
            ),
        )

    @property
    def exposed(self) -> float:
        """How much longer the latency of a program shows when no second one overlaps with it
        (softmax of 32768-wide tiles, 3.0 times).
        """
        return 3.0 if self.resident == 1 else 1.0

    @property
    def width(self) -> int:
        """Bytes of an element of the widest input."""
        return max((DTYPE_BYTES[operand.spec.dtype] for operand in self.region.inputs), default=4)

    @property
    def read(self) -> int:
        return sum(operand.spec.bytes for operand in self.region.inputs)

    def operands(self) -> list[tuple[Operand, bool]]:
        """(input, whether it changes along a kept axis)."""
        moving = {
            load.operand
            for load in self.region.loads
            if any(load.strides[axis] for axis in self.region.kept)
        }
        return [(operand, index in moving) for index, operand in enumerate(self.region.inputs)]

    @property
    def written(self) -> int:
        return sum(operand.spec.bytes for operand in self.region.outputs)

    def dram_s(self, read: float, written: float) -> float:
        """Bytes over the bandwidth they reach; bursts below 512 bytes reach less (RMS norm over
        channels, sums over columns).
        """
        read_rate, copy_rate = self.device.read_bytes_per_s, self.device.dram_bytes_per_s
        if not self.device.measured:
            read_rate, copy_rate = _READ_SHARE * read_rate, _COPY_SHARE * copy_rate
        burst = (
            int(self.settings["BR"] if self.region.row_is_contiguous else self.settings["BK"])
            * self.width
        )
        # a copy reads and writes a byte each
        seconds = read / read_rate + written * (2 / copy_rate - 1 / read_rate)
        return seconds * (_BESIDE if self.is_beside else 1.0) / min(1.0, burst / 512) ** _BURST_LOSS

    def waves(self, programs: int) -> int:
        return -(-programs // (self.resident * self.device.sm_count))

    @property
    def sharing_warps(self) -> float:
        """Warps of a program that reduce the same rows; Triton lays lanes, then warps along what is
        contiguous first.
        """
        tile = int(self.settings["BK"]) * int(self.settings["BR"])
        vector = max(1, min(16 // self.width, tile // self.threads))
        across_rows = max(1, int(self.settings["BK"]) // (vector * self.device.warp_size))
        return min(
            int(self.settings["BR"]), max(1.0, int(self.settings["num_warps"]) / across_rows)
        )

    def hand_over_s(self) -> float:
        """What warps of one program tell each other about rows that lanes lie across."""
        if self.region.row_is_contiguous or self.sharing_warps == 1:
            return 0.0
        reductions = [
            REDUCTIONS[item.kind] for item in self.region.statements if isinstance(item, Reduce)
        ]
        handed = sum("".join(each.finish(each.states)).count("keep_dims") for each in reductions)
        rows = self.region.rows * int(self.settings["SPLIT"])
        return rows * self.sharing_warps * handed * _HAND_OVER_S * 132 / self.device.sm_count

    def tiles_s(self, programs: int, read: float, written: float) -> float:
        """A kernel of programs with one tile each: the start and end of a wave leave the memory
        idle, unless programs overlap.
        """
        latency = (
            self.waves(programs) * self.exposed * (_TILE_S + _TILE_S_PER_VALUE * self.per_thread)
        )
        if self.region.row_is_contiguous:
            return self.dram_s(read, written) + latency
        return (self.dram_s(read, written) ** 4 + latency**4) ** 0.25

    def held_s(self, programs: int, seconds: float) -> float:
        """`seconds` of a kernel whose programs reduce a tile, or loop over tiles, of whole rows,
        and what its reductions take beside it.
        """
        if self.region.row_is_contiguous:
            return max(seconds, self.waves(programs) * _HELD_S)
        return (seconds**4 + self.hand_over_s() ** 4) ** 0.25

    def shared_s(self, programs: int) -> float:
        """A kernel of programs that hold a row together and wait for each other once per reduction."""
        waits = _WAIT_S * sum(isinstance(item, Reduce) for item in self.region.statements)
        return self.dram_s(self.read, self.written) + self.waves(programs) * waits * max(
            self.exposed, self.resident / _QUIET_WAITERS
        )

    def pipelined_s(self, programs: int, steps: int, reread: float) -> float:
        """A kernel of programs that reduce and programs that write, the second read coming from L2."""
        step = _STEP_S + _STEP_S_PER_VALUE * self.per_thread
        is_softmax = any(
            isinstance(item, Reduce) and item.kind == "softmax" for item in self.region.statements
        )
        exponentials = (
            3.0
            * self.region.rows
            * self.region.columns
            * is_softmax
            / self.device.peak_flops_per_s["special"]
        )
        latency = self.waves(2 * programs) * (steps * step + _TURN_S) + exponentials
        return (
            (self.dram_s(self.read + reread, self.written) * _SECOND_READ) ** 2 + latency**2
        ) ** 0.5

    def loop_s(self, programs: int, steps: int, read: float, written: float) -> float:
        """A kernel of programs that loop over tiles: bandwidth where enough run, otherwise one
        step's latency after the other.

        Programs end one by one, so that for half of one's time half of the device is idle.
        """
        latency = (
            self.waves(programs)
            * steps
            * (_STEP_S + _STEP_S_PER_VALUE * self.per_thread)
            * (_LONE if self.resident == 1 else 1.0)
        )
        running = min(programs, self.resident * self.device.sm_count)
        share = _TAIL_OF_CLASSES if self.settings["STRATEGY"] == "classes" else _TAIL
        tail = share * running / programs if programs > running else _TAIL_OF_ONE_WAVE
        return (self.dram_s(read, written) ** 4 + latency**4) ** 0.25 * (1.0 + tail)


def row_cost_ms(region: Region, settings: Settings, device: Device) -> float:
    """Time of a setting: DRAM bytes at the bandwidth its access reaches, the latency of its steps
    or waves, its waits and launches.
    """
    fitted = fit_settings(region, settings)
    cost = _Cost(region, device, fitted)
    strategy = fitted["STRATEGY"]
    split = int(fitted["SPLIT"])
    block = int(fitted["BR"])
    blocks = _row_blocks(region, int(fitted["BK"]))
    passes = max(region.passes().values())
    steps = -(-int(fitted["SEGMENT"]) // block)
    launches = 1
    if strategy == "registers":
        seconds = cost.held_s(blocks, cost.tiles_s(blocks, cost.read, cost.written))
    elif strategy == "shared":
        seconds, launches = cost.shared_s(blocks * split), 2  # the counters are cleared first
    elif strategy == "pipelined":
        # what does not change from row to row (a layer norm's weights) is read anew for each, after
        # a row's worth of other bytes
        common = sum(operand.spec.bytes for operand, moves in cost.operands() if not moves)
        reread = (blocks - 1) * common if common > 0.1 * device.l2_bytes else 0
        in_flight = int(fitted["LEAD"]) * cost.read / blocks
        reread += cost.read * min(1.0, in_flight / (_KEPT_BY_L2 * device.l2_bytes))
        # the counters are cleared first
        seconds, launches = cost.pipelined_s(blocks * split, steps, reread), 2
    elif strategy == "loop":
        sweeps = passes + int(region.has_element_output)
        running = min(blocks, cost.resident * device.sm_count)
        # share of a second sweep that L2 no longer holds
        kept = min(1.0, running / blocks * cost.read / (0.6 * device.l2_bytes))
        seconds = cost.loop_s(
            blocks, steps * sweeps, cost.read * (1 + (sweeps - 1) * kept), cost.written
        )
        seconds = cost.held_s(blocks, seconds)
    else:
        again = cost.read * min(1.0, cost.read / (0.6 * device.l2_bytes))
        seconds = (
            cost.loop_s(blocks * split, steps, cost.read, 0) ** 4 + cost.hand_over_s() ** 4
        ) ** 0.25
        seconds += (passes - 1) * cost.loop_s(blocks * split, steps, again, 0)
        launches = 2 * passes
        if region.has_element_output:
            seconds += cost.tiles_s(blocks * split * steps, again, cost.written)
            launches += 1
    launches += region.total is not None
    # what is spilled is written and read once more
    return 1e3 * seconds * (1.0 + 2.0 * cost.spilled) + launches * device.launch_ms
