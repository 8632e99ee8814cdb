"""What a setting of a row kernel should cost.

The cost model adds DRAM time to what waves of programs wait; it ranks settings, no more. Its
constants come from one H200: the pairs of setting and time that tools/gpu_rowwise.py measured on
2026-11-21 (torch 2.11, Triton 3.6), and the ceilings of devices.py.
"""

from dataclasses import dataclass
from functools import cached_property

from kmem.codegen.chains.approximate import issue_s
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Map, Reduce, Region
from kmem.codegen.rows.access import line_classes, vector_lanes
from kmem.codegen.rows.space import (
    LOOPS,
    RowKnobs,
    fit_settings,
    is_compensated,
    read_knobs,
    row_blocks,
)
from kmem.codegen.rows.total import PER_THREAD, TILE
from kmem.problem.sizes import ceil_div
from kmem.recipes import Operand, Settings
from kmem.records import DTYPE_BYTES, Device

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
#: That share of programs that each reduce lines of one class: see space.CLASSED_TILE.
_TAIL_OF_CLASSES = 0.05
#: The same share where all programs start at once (layer norm of 16 rows, 1024 against 8192
#: programs: 0.230 and 0.223 ms).
_TAIL_OF_ONE_WAVE = 0.05
#: Least seconds from the start to the end of a program that reduces contiguous rows, which it holds
#: or loops over. Assumed: what the time seemed to be where lanes lie across rows; not measured.
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
#: How much longer DRAM bytes take where lines start beside 16 bytes and loads are of one element
#: (the same sums, maxima and argmax at 46 settings of "split" and "loop").
_BESIDE = 1.05
#: Seconds of a wave of programs that share rows, beyond their bytes (log-softmax of 393216 columns:
#: 1.3 to 2.1 us at seven settings), and the programs per multiprocessor above which the polls of
#: one hinder the others (L1 norm of 65535 columns: 3.4 us at 5, 9 us at 21).
_WAIT_S, _QUIET_WAITERS = 1.9e-6, 6
#: Where arithmetic is the limit, the share of all else that still shows, so that settings are told
#: apart. Assumed.
_EXPOSED = 0.05
#: Times the time where sums are compensated: four additions more, which memory hides. Not measured.
_COMPENSATED = 1.01


@dataclass(frozen=True)
class _Cost:
    """Times of one setting's kernels on one device."""

    region: Region
    device: Device
    knobs: RowKnobs  # as fit_settings leaves them
    compensated: bool = False  # its sums
    lined: bool = False  # parts keep within lines

    # --- what a program takes

    @cached_property
    def threads(self) -> int:
        """Threads of a program."""
        return self.knobs.warps * self.device.warp_size

    @cached_property
    def per_thread(self) -> float:
        """Values of the tile, over all operands that fill it, that a thread holds."""
        return self.knobs.tile * self.region.held_loads / self.threads

    @cached_property
    def registers(self) -> float:
        """Registers that a thread needs.

        Source: kernels compiled for sm_90 by Triton 3.6: softmax, instance, group and L1 norms;
        sums, argmax.
        """
        if self.knobs.strategy in LOOPS:
            states = sum(len(REDUCTIONS[item.kind].states) for item in self.reduces)
            states *= 2 if self.compensated else 1  # beside each what it lost
            # a tile and the lanes of each state
            return 16 + 1.15 * (1 + states) * self.per_thread + self.crossing
        is_rotated = self.knobs.rows == 1 and vector_lanes(self.region) > 1
        is_masked = (
            self.region.row_is_contiguous
            and self.region.columns % self.knobs.columns != 0
            and not is_rotated
        )
        return 24 + (2.2 if is_masked else 1.12) * self.per_thread + self.crossing

    @cached_property
    def crossing(self) -> float:
        """Registers of a thread for what is an element's own where tiles cross lines of a row.

        Its places, and what changes from line to line. Source: group norms of 126 x 126 images
        compiled for sm_90: 5 for each of 16 elements a thread, with a weight and a bias.
        """
        region = self.region
        if len(region.reduced) == 1 or self.lined:
            return 0.0
        *outer, last = region.reduced
        if region.axes[last].size % self.knobs.columns == 0:
            return 0.0
        own = sum(
            any(load.strides[axis] for axis in outer) and not load.strides[last]
            for load in region.loads
        )
        return (1 + len(region.reduced) + own) * self.knobs.tile / self.threads

    @cached_property
    def reduces(self) -> list[Reduce]:
        """The reductions of the region."""
        return [item for item in self.region.statements if isinstance(item, Reduce)]

    @cached_property
    def spilled(self) -> float:
        """The share of the registers needed that a thread cannot have."""
        available = min(255.0, self.device.registers_per_sm / self.threads)
        return max(0.0, 1.0 - available / self.registers)

    @cached_property
    def resident(self) -> int:
        """Programs that a multiprocessor holds."""
        needed = min(255.0, self.registers) * self.threads
        places = (
            int(self.device.registers_per_sm / needed),
            self.device.max_threads_per_sm // self.threads,
            self.device.max_blocks_per_sm,
        )
        return max(1, min(places))

    @cached_property
    def exposed(self) -> float:
        """How much longer the latency of a program shows when no second one overlaps with it.

        Source: softmax of 32768-wide tiles, 3.0 times.
        """
        return 3.0 if self.resident == 1 else 1.0

    def waves(self, programs: int) -> int:
        """How often the device fills with programs until all have run."""
        return -(-programs // (self.resident * self.device.sm_count))

    # --- bytes

    @cached_property
    def is_beside(self) -> bool:
        """Whether lines start beside 16 bytes and are read as they come."""
        return self.knobs.strategy != "classes" and line_classes(self.region) > 1

    @cached_property
    def width(self) -> int:
        """Bytes of an element of the widest input."""
        return max((DTYPE_BYTES[operand.spec.dtype] for operand in self.region.inputs), default=4)

    @cached_property
    def read(self) -> int:
        """Bytes of all inputs."""
        return sum(operand.spec.bytes for operand in self.region.inputs)

    @cached_property
    def written(self) -> int:
        """Bytes of all outputs."""
        return sum(operand.spec.bytes for operand in self.region.outputs)

    @cached_property
    def common(self) -> int:
        """Bytes of inputs that do not change from row to row, as a layer norm's weights."""
        moving = {
            load.operand
            for load in self.region.loads
            if any(load.strides[axis] for axis in self.region.kept)
        }
        still: list[Operand] = [
            operand for index, operand in enumerate(self.region.inputs) if index not in moving
        ]
        return sum(operand.spec.bytes for operand in still)

    def dram_s(self, read: float, written: float) -> float:
        """Bytes over the bandwidth that they reach; bursts below 512 bytes reach less.

        Source: RMS norm over channels, sums over columns.
        """
        read_rate, copy_rate = self.device.read_bytes_per_s, self.device.dram_bytes_per_s
        if not self.device.measured:
            read_rate, copy_rate = _READ_SHARE * read_rate, _COPY_SHARE * copy_rate
        along = self.knobs.columns if self.region.row_is_contiguous else self.knobs.rows
        reached = min(1.0, along * self.width / 512) ** _BURST_LOSS
        # a copy reads and writes a byte each
        seconds = read / read_rate + written * (2 / copy_rate - 1 / read_rate)
        return seconds * (_BESIDE if self.is_beside else 1.0) / reached

    # --- what programs tell each other

    @cached_property
    def sharing_warps(self) -> float:
        """Warps of a program that reduce the same rows.

        Triton lays lanes, then warps along what is contiguous first.
        """
        vector = max(1, min(16 // self.width, self.knobs.tile // self.threads))
        across_rows = max(1, self.knobs.rows // (vector * self.device.warp_size))
        return min(self.knobs.columns, max(1.0, self.knobs.warps / across_rows))

    def hand_over_s(self) -> float:
        """What warps of one program tell each other about rows that lanes lie across."""
        if self.region.row_is_contiguous or self.sharing_warps == 1:
            return 0.0
        handed = sum(REDUCTIONS[item.kind].across_lanes for item in self.reduces)
        rows = self.region.rows * self.knobs.split
        return rows * self.sharing_warps * handed * _HAND_OVER_S * 132 / self.device.sm_count

    # --- kernels

    def tiles_s(self, programs: int, read: float, written: float) -> float:
        """A kernel of programs with one tile each.

        The start and end of a wave leave the memory idle, unless programs overlap.
        """
        step = _TILE_S + _TILE_S_PER_VALUE * self.per_thread
        latency = self.waves(programs) * self.exposed * step
        if self.region.row_is_contiguous:
            return self.dram_s(read, written) + latency
        return _join(self.dram_s(read, written), latency)

    def held_s(self, programs: int, seconds: float) -> float:
        """`seconds` of programs that reduce whole rows, with what reducing takes beside it."""
        if self.region.row_is_contiguous:
            return max(seconds, self.waves(programs) * _HELD_S)
        return _join(seconds, self.hand_over_s())

    def shared_s(self, programs: int) -> float:
        """A kernel of programs that hold a row together and wait once per reduction."""
        waits = self.waves(programs) * _WAIT_S * len(self.reduces)
        hindered = max(self.exposed, self.resident / _QUIET_WAITERS)
        seconds = self.dram_s(self.read, self.written) + waits * hindered
        if self.region.row_is_contiguous:  # a share of a row is held as a row is
            return max(seconds, self.waves(programs) * _HELD_S)
        return seconds

    def pipelined_s(self, programs: int, steps: int, reread: float) -> float:
        """A kernel of programs that reduce and programs that write; the second read is from L2."""
        step = _STEP_S + _STEP_S_PER_VALUE * self.per_thread
        is_softmax = any(item.kind == "softmax" for item in self.reduces)
        elements = self.region.rows * self.region.columns
        exponentials = 3.0 * elements * is_softmax / self.device.peak_flops_per_s["special"]
        latency = self.waves(2 * programs) * (steps * step + _TURN_S) + exponentials
        moved = self.dram_s(self.read + reread, self.written) * _SECOND_READ
        return (moved**2 + latency**2) ** 0.5

    def loop_s(self, programs: int, steps: int, read: float, written: float) -> float:
        """A kernel of programs that loop over tiles.

        It runs at the bandwidth where enough programs run, otherwise one step's latency after the
        other. Programs end one by one, so that for half of one's time half of the device is idle.
        """
        step = (_STEP_S + _STEP_S_PER_VALUE * self.per_thread) * (
            _LONE if self.resident == 1 else 1.0
        )
        latency = self.waves(programs) * steps * step
        running = min(programs, self.resident * self.device.sm_count)
        share = _TAIL_OF_CLASSES if self.knobs.strategy == "classes" else _TAIL
        tail = share * running / programs if programs > running else _TAIL_OF_ONE_WAVE
        return _join(self.dram_s(read, written), latency) * (1.0 + tail)


def _join(bandwidth_s: float, latency_s: float) -> float:
    """The time of two limits that overlap: hardly more than the larger one."""
    return (bandwidth_s**4 + latency_s**4) ** 0.25


def row_cost_ms(region: Region, settings: Settings, device: Device) -> float:
    """The time of a setting.

    That is DRAM bytes at the bandwidth that its access reaches, the latency of its steps or waves,
    its arithmetic where memory does not hide it, its waits and launches.
    """
    fitted = fit_settings(region, settings)
    cost = _Cost(
        region,
        device,
        read_knobs(fitted),
        compensated=is_compensated(region, fitted),
        lined=bool(fitted["LINED"]),
    )
    blocks = row_blocks(region, cost.knobs.rows)
    steps = -(-int(fitted["SEGMENT"]) // cost.knobs.columns)
    if cost.knobs.strategy == "registers":
        seconds, launches = _in_registers(cost), 1
    elif cost.knobs.strategy == "shared":
        seconds, launches = cost.shared_s(blocks * cost.knobs.split), 2  # to clear the counters
    elif cost.knobs.strategy == "pipelined":
        seconds, launches = _pipelined(cost, steps, int(fitted["LEAD"])), 2
    elif cost.knobs.strategy == "loop":
        seconds, launches = _in_loop(cost, steps), 1
    else:
        seconds, launches = _in_parts(cost, steps)
    if region.total is not None:
        launches += 1
        seconds += (ceil_div(blocks, TILE) - 1) * (_STEP_S + _STEP_S_PER_VALUE * PER_THREAD)
    computing = (1 - _EXPOSED) * _arithmetic_s(region, device) + _EXPOSED * seconds
    seconds = max(seconds, computing)
    # what is spilled is written and read once more
    seconds *= _COMPENSATED if cost.compensated else 1.0
    return 1e3 * seconds * (1.0 + 2.0 * cost.spilled) + launches * device.launch_ms


def _arithmetic_s(region: Region, device: Device) -> float:
    """What each element's own statements take, by the instructions that can be issued.

    Memory hides it, but for a gelu or a mish of every element that is only read: of level 2's 67
    (conv, gelu, mean), of which two kernels took 2.16 ms on an H200 where 1.61 was predicted, the
    second reads 2.1 GB in 0.49 ms and issues for 0.7.
    """
    maps = tuple((item.name, item.text) for item in region.statements if isinstance(item, Map))
    return issue_s(maps, region.rows * region.columns, device)


def _in_registers(cost: _Cost) -> float:
    blocks = row_blocks(cost.region, cost.knobs.rows)
    return cost.held_s(blocks, cost.tiles_s(blocks, cost.read, cost.written))


def _pipelined(cost: _Cost, steps: int, lead: int) -> float:
    blocks, l2_bytes = row_blocks(cost.region, cost.knobs.rows), cost.device.l2_bytes
    # what does not change from row to row is read anew for each, after a row's worth of other bytes
    reread = (blocks - 1) * cost.common if cost.common > 0.1 * l2_bytes else 0
    in_flight = lead * cost.read / blocks
    reread += cost.read * min(1.0, in_flight / (_KEPT_BY_L2 * l2_bytes))
    return cost.pipelined_s(blocks * cost.knobs.split, steps, reread)


def _in_loop(cost: _Cost, steps: int) -> float:
    blocks = row_blocks(cost.region, cost.knobs.rows)
    sweeps = _passes(cost.region) + int(cost.region.has_element_output)
    running = min(blocks, cost.resident * cost.device.sm_count)
    # share of a second sweep that L2 no longer holds
    again = min(1.0, running / blocks * cost.read / (0.6 * cost.device.l2_bytes))
    read = cost.read * (1 + (sweeps - 1) * again)
    return cost.held_s(blocks, cost.loop_s(blocks, steps * sweeps, read, cost.written))


def _in_parts(cost: _Cost, steps: int) -> tuple[float, int]:
    """Seconds and launches."""
    programs = row_blocks(cost.region, cost.knobs.rows) * cost.knobs.split
    passes = _passes(cost.region)
    again = cost.read * min(1.0, cost.read / (0.6 * cost.device.l2_bytes))
    seconds = _join(cost.loop_s(programs, steps, cost.read, 0), cost.hand_over_s())
    seconds += (passes - 1) * cost.loop_s(programs, steps, again, 0)
    if not cost.region.has_element_output:
        return seconds, 2 * passes
    return seconds + cost.tiles_s(programs * steps, again, cost.written), 2 * passes + 1


def _passes(region: Region) -> int:
    return max(region.passes().values())
