"""Knobs and a rough time of stencils as strips, shared by the pooling and depthwise recipes.

Source of the constants: tools/gpu_stencils.py on one H200 (torch 2.11, Triton 3.6, 2026-11-21), 11
cases of 14 settings each.
"""

from collections.abc import Sequence
from math import log2

from kmem.codegen.convolutions.stencil import Stencil, StripSettings, read_strips, strip_count
from kmem.codegen.convolutions.windows import (
    MIN_GROUPS,
    Tile,
    WindowAxis,
    column_taps,
    gather_groups,
    is_writable,
    lanes_in,
    loads_per_strip,
    row_starts,
)
from kmem.codegen.rates import by_card, by_clock, issues_per_s, l1_bytes_per_s
from kmem.codegen.settings import VECTOR_BYTES, WARP_THREADS
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Role, Rule, Site, Space
from kmem.records import DTYPE_BYTES, Device

MAX_GATHER_COLUMNS = 4096
MAX_LOAD_GROUPS = 256
#: Accumulators and loaded columns of one thread that still leave registers for addresses.
MAX_THREAD_VALUES = 96
#: Rows of neighbouring blocks, some of them found in L1; fitted to MaxPool3d and AvgPool3d in fp32.
L2_BYTES_PER_S = 6.5e12
NARROW = 0.05  # share more time for each halving of a load below 16 bytes
HIDDEN_SHARE = 0.2  # of the costs that are not the slowest
CROWDED = 0.3  # share more time when a thread holds MAX_THREAD_VALUES
#: Share more time for each strip beside the first and for each warp, where a program has several
#: warps: their strips have vectors of rows, planes and weights where one strip has scalars.
BESIDE, BESIDE_WARP = 0.1, 0.003
#: Share more time for each distance at which values change threads through shared memory.
EXCHANGED = 0.15
#: One a clock for the whole card: 4.19M blocks of one warp took 2.54 ms, 16.8M took 10.1 ms.
BLOCKS_PER_S = 1.65e9
#: Instructions of a load (predicate, address, load) and of a value that changes threads.
LOAD_INSTRUCTIONS, MOVE_INSTRUCTIONS = 3, 3
#: Warps of an SM below which it idles in part.
BUSY_WARPS = 8
#: What the knobs of `strip_space` change.
STRIP_ROLES = {
    "shift": (Role("exchange", (("load",), ("gather",))),),
    "lanes": (Role("vector"),),
    "rows": (Role("rows"),),
    "depths": (Role("rows"),),
    "groups": (Role("tile"),),
    "strips": (Role("tile"),),
    "warps": (Role("warps"),),
}


def start_s(blocks: float, device: Device) -> float:
    """Time in which so many programs are started."""
    return blocks / by_clock(BLOCKS_PER_S, device)


def idle_factor(blocks: float, warps: int, device: Device) -> float:
    """How much longer programs take that are too few to keep every SM busy."""
    return max(1.0, device.sm_count * BUSY_WARPS / max(1.0, blocks * warps))


def overlapped_s(seconds: Sequence[float]) -> float:
    """The slowest of what runs at the same time, plus a share of the others."""
    return max(seconds) + HIDDEN_SHARE * (sum(seconds) - max(seconds))


def strip_space(stencil: Stencil) -> Space:
    """Tiles worth trying.

    They fill at least one warp, keep a thread's values in registers, and have an unrolled text that
    stays short.
    """
    depth, height = stencil.axes[:2]
    width = stencil.axes[2]
    size = DTYPE_BYTES[stencil.dtype]
    per_vector = max(1, VECTOR_BYTES // size // (width.stride & -width.stride))
    wanted = {1, 2, per_vector, 2 * per_vector}
    lanes = sorted(lane for lane in wanted if lane == 1 or lane < 2 * width.out)
    groups = {gather_groups(width, lane) for lane in lanes}
    for lane in lanes:
        most = max(MIN_GROUPS, next_power_of_two(ceil_div(width.out, lane)))
        groups |= {min(count, most) for count in (32, 64, 128, 256)}
    rows_in_all = next_power_of_two(stencil.planes * height.out * depth.out)
    strips = tuple(count for count in (1, 2, 4, 8, 16, 32) if count < 2 * rows_in_all)
    return Space(
        {
            "shift": ("load", "gather"),
            "lanes": tuple(lanes),
            "rows": tuple(count for count in (1, 2, 4, 8) if count < 2 * height.out),
            "depths": tuple(count for count in (1, 2) if count < 2 * depth.out),
            "groups": tuple(sorted(groups)),
            "strips": strips,
            "warps": (1, 2, 4, 8),
        },
        lambda settings: _is_legal(stencil, read_strips(settings)),
        rules=(
            Rule(
                ("shift", "lanes", "groups"),
                lambda shift, lanes, groups: (
                    _fits_row(width, groups, lanes)
                    if shift == "gather"
                    else groups <= MAX_LOAD_GROUPS
                ),
            ),
            Rule(
                ("groups", "strips", "warps"),
                lambda groups, count, warps: _fills_threads(groups, count, warps, strips[-1]),
            ),
        ),
    )


def _fills_threads(groups: int, strips: int, warps: int, most_strips: int) -> bool:
    threads = WARP_THREADS * warps
    if strips * groups < threads and strips < most_strips:
        return False  # idle threads, while more strips would fill them
    # strips side by side serve to fill a warp, not to make a program longer
    return strips == 1 or strips // 2 * groups < threads


def _fits_row(width: WindowAxis, groups: int, lanes: int) -> bool:
    """Whether a program that gathers holds whole rows."""
    is_whole = groups == gather_groups(width, lanes)
    return is_whole and groups * lanes_in(width, lanes) <= MAX_GATHER_COLUMNS


def _is_legal(stencil: Stencil, knobs: StripSettings) -> bool:
    width = stencil.axes[2]
    if knobs.shift == "gather" and not _gathers_within_warps(width, knobs):
        return False
    fits = thread_values(width, knobs, knobs.warps) <= MAX_THREAD_VALUES
    return fits and is_writable(stencil.axes, knobs)


def _gathers_within_warps(width: WindowAxis, knobs: StripSettings) -> bool:
    """Whether a program that gathers moves nothing between warps.

    A row over several warps is gathered through shared memory: measured 3 to 8 times slower than
    loads.
    """
    if knobs.warps == 1 or knobs.groups <= WARP_THREADS:
        return True
    return lanes_in(width, knobs.lanes) == 1 and _distances(width, knobs.lanes) == {0}


def _distances(width: WindowAxis, lanes: int) -> set[int]:
    """How far, in groups, the taps along a row reach."""
    return {distance for distance, _ in column_taps(width, lanes).values()}


def thread_positions(tile: Tile, warps: int) -> float:
    """Groups of columns that one thread holds."""
    return max(1.0, tile.strips * tile.groups / (WARP_THREADS * warps))


def thread_values(width: WindowAxis, tile: Tile, warps: int) -> float:
    """Accumulators and columns in flight of one thread, in registers."""
    outputs = tile.depths * tile.rows * tile.lanes
    return thread_positions(tile, warps) * (outputs + 2 * lanes_in(width, tile.lanes))


def strip_cost_ms(site: Site, stencil: Stencil, knobs: StripSettings, device: Device) -> float:
    """Time of a setting.

    It is the slowest of DRAM, L2, L1, issue slots and starting blocks, as if each were alone, plus
    a share of the others.
    """
    size, axes = DTYPE_BYTES[stencil.dtype], stencil.axes
    width = axes[2]
    strips, columns = strip_count(stencil, knobs), _columns(width, knobs)
    fetched = lanes_in(width, knobs.lanes)
    loads = strips * columns * loads_per_strip(axes, knobs)
    outputs = strips * columns * knobs.lanes * knobs.rows * knobs.depths
    vector = _vector_bytes(width, knobs, size)
    # a 16-bit value takes one instruction more to widen; every load instruction brings its
    # predicate and address
    per_load = fetched * size / vector * LOAD_INSTRUCTIONS + fetched * (size < 4)
    instructions = _arithmetic(stencil, knobs, strips * columns) + loads * per_load + outputs
    l2_bytes = (strips * _input_rows(stencil, knobs) * width.size + outputs) * size
    seconds = (
        site.bytes / device.dram_bytes_per_s,
        l2_bytes / by_card(L2_BYTES_PER_S, device),
        loads * fetched * size * tile_spread(width, knobs) / l1_bytes_per_s(device),
        instructions / device.warp_size / issues_per_s(device),
    )
    blocks = strips / knobs.strips * columns / knobs.groups
    penalty = 1 + NARROW * log2(VECTOR_BYTES / vector)
    penalty *= _crowding(stencil, knobs) * _side_by_side(knobs) * _exchange(width, knobs, size)
    running_s = max(overlapped_s(seconds), start_s(blocks, device))
    return 1e3 * idle_factor(blocks, knobs.warps, device) * penalty * running_s


def _columns(width: WindowAxis, tile: Tile) -> int:
    """Groups of columns in the programs of one strip."""
    if tile.shift == "gather":
        return tile.groups
    return ceil_div(width.out, tile.groups * tile.lanes) * tile.groups


def _input_rows(stencil: Stencil, tile: Tile) -> int:
    """Input rows that a strip reads."""
    depth, height = stencil.axes[:2]
    return len(row_starts(depth, tile.depths)) * len(row_starts(height, tile.rows))


def _vector_bytes(width: WindowAxis, tile: Tile, size: int) -> int:
    """Bytes that a thread loads at once."""
    fetched = lanes_in(width, tile.lanes)
    if tile.shift == "gather" and fetched == 1:
        # one-column groups of a whole row are neighbours, which the compiler loads together
        return VECTOR_BYTES
    return min(VECTOR_BYTES, fetched * size) if width.size % fetched == 0 else size


def _arithmetic(stencil: Stencil, knobs: StripSettings, groups: int) -> float:
    """Instructions on values, for so many groups of columns in all strips."""
    width = stencil.axes[2]
    positions = knobs.rows * knobs.depths
    outputs = groups * knobs.lanes * positions
    if stencil.is_separable:
        along_row = _input_rows(stencil, knobs) / positions * (width.kernel + 1)
        arithmetic = outputs * (along_row + stencil.axes[1].kernel)
    else:
        arithmetic = outputs * stencil.taps
    if knobs.shift == "gather":
        moved = len(set(column_taps(width, knobs.lanes).values()))
        per_thread = thread_positions(knobs, knobs.warps)
        arithmetic += groups * positions * moved * MOVE_INSTRUCTIONS * per_thread
    return arithmetic


def tile_spread(width: WindowAxis, tile: Tile) -> float:
    """How many times the useful bytes one load instruction touches.

    It is a group's step over its width when loads skip columns.
    """
    if tile.shift == "gather":
        return 1.0
    return width.stride * tile.lanes / lanes_in(width, tile.lanes)


def _crowding(stencil: Stencil, knobs: StripSettings) -> float:
    """How much slower it is that fewer warps fit beside each other when each holds more.

    Gathered pooling keeps whole input rows until it splits them.
    """
    width = stencil.axes[2]
    values = thread_values(width, knobs, knobs.warps)
    if stencil.is_separable and knobs.shift == "gather":
        kept = knobs.depths * knobs.rows * (lanes_in(width, knobs.lanes) - knobs.lanes)
        values += thread_positions(knobs, knobs.warps) * kept
    return 1 + CROWDED * (values / MAX_THREAD_VALUES) ** 2


def _side_by_side(knobs: StripSettings) -> float:
    """What strips beside each other cost in programs of several warps."""
    if knobs.warps == 1:
        return 1.0
    return 1 + BESIDE * (knobs.strips - 1) + BESIDE_WARP * knobs.warps


def _exchange(width: WindowAxis, knobs: StripSettings, size: int) -> float:
    """How much slower values that change threads make a program.

    They do it by shuffles in one warp, by shared memory and barriers in several.
    """
    # groups wider than a vector are split over several threads first
    if knobs.warps == 1 or lanes_in(width, knobs.lanes) * size <= VECTOR_BYTES:
        return 1.0
    distances = _distances(width, knobs.lanes) if knobs.shift == "load" else {0}
    return 1 + EXCHANGED * len(distances)
