"""Knobs and a rough time for the strip kernels of stencil.py, shared by the pooling and depthwise
recipes.
"""

from collections.abc import Sequence
from math import log2, prod

from kmem.codegen.windows import (
    MIN_GROUPS,
    Axis,
    Tile,
    column_taps,
    gather_groups,
    is_writable,
    lanes_in,
    loads_per_strip,
    row_starts,
)
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Settings, Site, Space
from kmem.records import DTYPE_BYTES, Device

VECTOR_BYTES = 16  # widest global load of one thread. Source: PTX ISA, ld: .v4.b32
MAX_GATHER_COLUMNS = 4096
MAX_LOAD_GROUPS = 256
# accumulators and loaded columns of one thread that still leave registers for addresses
MAX_THREAD_VALUES = 96
# SM clock of an H200 under load, rounded; it scales both costs below alike, so ranks do not hang on
# it
CLOCK_HZ = 1.7e9
# Source: CUDA C++ Best Practices Guide and Hopper tuning guide, L1/shared bandwidth of one SM
L1_BYTES_PER_CLOCK = 128
# rows of neighbouring blocks, some of them found in L1; fitted to MaxPool3d and AvgPool3d in fp32
L2_BYTES_PER_S = 6.5e12
NARROW = 0.05  # share more time for each halving of a load below 16 bytes
HIDDEN_SHARE = 0.2  # of the costs that are not the slowest
CROWDED = 0.3  # share more time when a thread holds MAX_THREAD_VALUES
# one a clock for the whole card: 4.19M blocks of one warp took 2.54 ms, 16.8M took 10.1 ms
BLOCKS_PER_S = 1.65e9
# four schedulers per SM. Source: CUDA C++ Programming Guide, compute capability 9.0
WARP_INSTRUCTIONS_PER_CLOCK = 4


def tile_of(settings: Settings) -> Tile:
    """The tile a setting names; the remaining knob is `warps`."""
    return Tile(
        *(settings[name] for name in ("depths", "rows", "strips", "groups", "lanes", "shift"))
    )


def strip_space(axes: Sequence[Axis], dtype: str, planes: int) -> Space:
    """Tiles that fill at least one warp, keep a thread's values in registers, and whose unrolled
    text stays short.
    """
    depth, height, width = axes
    size = DTYPE_BYTES[dtype]
    per_vector = max(1, VECTOR_BYTES // size // (width.stride & -width.stride))
    lanes = sorted(
        {lane for lane in (1, 2, per_vector, 2 * per_vector) if lane == 1 or lane < 2 * width.out}
    )
    whole = {lane: gather_groups(width, lane) for lane in lanes}
    groups = sorted(
        {
            min(count, max(MIN_GROUPS, next_power_of_two(-(-width.out // lane))))
            for lane in lanes
            for count in (32, 64, 128, 256)
        }
        | set(whole.values())
    )
    not_in_place = {
        lane: any(distance for distance, _ in column_taps(width, lane).values()) for lane in lanes
    }
    strips = tuple(
        count
        for count in (1, 2, 4, 8, 16, 32)
        if count < 2 * next_power_of_two(planes * height.out * depth.out)
    )

    def is_legal(settings: Settings) -> bool:
        tile, threads = tile_of(settings), 32 * settings["warps"]
        positions = tile.strips * tile.groups
        if positions < threads and tile.strips < strips[-1]:
            return False  # idle threads, while more strips would fill them
        if tile.strips > 1 and tile.strips // 2 * tile.groups >= threads:
            return False  # strips side by side serve to fill a warp, not to make a program longer
        columns = lanes_in(width, tile.lanes)
        if tile.shift == "load" and tile.groups > MAX_LOAD_GROUPS:
            return False
        if tile.shift == "gather" and (
            tile.groups != whole[tile.lanes] or tile.groups * columns > MAX_GATHER_COLUMNS
        ):
            return False
        if (
            tile.shift == "gather"
            and settings["warps"] > 1
            and tile.groups > 32
            and (columns > 1 or not_in_place[tile.lanes])
        ):
            # a row over several warps is gathered through shared memory: measured 3 to 8 times
            # slower than loads
            return False
        return thread_values(width, tile, settings["warps"]) <= MAX_THREAD_VALUES and is_writable(
            axes, tile
        )

    return Space(
        {
            "shift": ("load", "gather"),
            "lanes": tuple(lanes),
            "rows": tuple(count for count in (1, 2, 4, 8) if count < 2 * height.out),
            "depths": tuple(count for count in (1, 2) if count < 2 * depth.out),
            "groups": tuple(groups),
            "strips": strips,
            "warps": (1, 2, 4, 8),
        },
        is_legal,
    )


def thread_values(width: Axis, tile: Tile, warps: int) -> float:
    """Accumulators and columns in flight of one thread, in registers."""
    positions = max(1.0, tile.strips * tile.groups / (32 * warps))
    return positions * (tile.depths * tile.rows * tile.lanes + 2 * lanes_in(width, tile.lanes))


def strip_cost_ms(
    site: Site,
    axes: Sequence[Axis],
    settings: Settings,
    dtype: str,
    planes: int,
    device: Device,
    *,
    separable: bool,
) -> float:
    """The slowest of DRAM, L2, L1, issue slots and starting blocks, as if each were alone, plus a
    share of the others.

    Source of the constants below: tools/gpu_stencils.py on one H200 (torch 2.11, Triton 3.6,
    2026-11-21), 11 cases of 14 settings each.
    """
    tile, size = tile_of(settings), DTYPE_BYTES[dtype]
    depth, height, width = axes
    strips = planes * -(-height.out // tile.rows) * -(-depth.out // tile.depths)
    columns = (
        tile.groups
        if tile.shift == "gather"
        else -(-width.out // (tile.groups * tile.lanes)) * tile.groups
    )
    fetched_columns = lanes_in(width, tile.lanes)
    loads = strips * columns * loads_per_strip(axes, tile)
    vector = (
        min(VECTOR_BYTES, fetched_columns * size) if width.size % fetched_columns == 0 else size
    )
    if tile.shift == "gather" and fetched_columns == 1:
        # one-column groups of a whole row are neighbours, which the compiler loads together
        vector = VECTOR_BYTES
    rows = len(row_starts(depth, tile.depths)) * len(row_starts(height, tile.rows))
    outputs = strips * columns * tile.lanes * tile.rows * tile.depths
    if separable:
        arithmetic = outputs * (
            rows / (tile.rows * tile.depths) * (width.kernel + 1) + height.kernel
        )
    else:
        arithmetic = outputs * prod(axis.kernel for axis in axes)
    if tile.shift == "gather":
        moved = len(set(column_taps(width, tile.lanes).values()))
        per_thread = max(1.0, tile.groups * tile.strips / (32 * settings["warps"]))
        arithmetic += strips * columns * tile.rows * tile.depths * moved * 3 * per_thread
    # a 16-bit value takes one instruction more to widen; every load instruction brings its
    # predicate and address
    instructions = (
        arithmetic
        + loads * (fetched_columns * size / vector * 3 + fetched_columns * (size < 4))
        + outputs
    )
    blocks = strips / tile.strips * columns / tile.groups
    seconds = (
        site.bytes / device.dram_bytes_per_s,
        (strips * rows * width.size + outputs) * size / L2_BYTES_PER_S,
        loads
        * fetched_columns
        * size
        * tile_spread(width, tile)
        / (device.sm_count * L1_BYTES_PER_CLOCK * CLOCK_HZ),
        instructions / 32 / (device.sm_count * WARP_INSTRUCTIONS_PER_CLOCK * CLOCK_HZ),
    )
    idle = max(1.0, device.sm_count * 8 / max(1.0, blocks * settings["warps"]))
    warps = settings["warps"]
    penalty = 1 + NARROW * log2(VECTOR_BYTES / vector)
    penalty *= (
        _crowding(width, tile, warps, separable)
        * _side_by_side(tile, warps)
        * _exchange(width, tile, size, warps)
    )
    seconds = max(
        max(seconds) + HIDDEN_SHARE * (sum(seconds) - max(seconds)), blocks / BLOCKS_PER_S
    )
    return 1e3 * idle * penalty * seconds


def tile_spread(width: Axis, tile: Tile) -> float:
    """How many times the useful bytes one load instruction touches: a group's step over its width
    when loads skip columns.
    """
    if tile.shift == "gather":
        return 1.0
    return width.stride * tile.lanes / lanes_in(width, tile.lanes)


def _crowding(width: Axis, tile: Tile, warps: int, separable: bool) -> float:
    """Fewer warps fit beside each other when each holds more; gathered pooling keeps whole input
    rows until it splits them.
    """
    values = thread_values(width, tile, warps)
    if separable and tile.shift == "gather":
        values += (
            max(1.0, tile.strips * tile.groups / (32 * warps))
            * tile.depths
            * tile.rows
            * (lanes_in(width, tile.lanes) - tile.lanes)
        )
    return 1 + CROWDED * (values / MAX_THREAD_VALUES) ** 2


def _side_by_side(tile: Tile, warps: int) -> float:
    """Strips of several warps have vectors of rows, planes and weights where one strip has scalars."""
    return 1 + 0.1 * (tile.strips - 1) + 0.003 * warps if warps > 1 else 1.0


def _exchange(width: Axis, tile: Tile, size: int, warps: int) -> float:
    """Values that change threads do it by shuffles in one warp, by shared memory and barriers in
    several.
    """
    if warps == 1:
        return 1.0
    distances = (
        {distance for distance, _ in column_taps(width, tile.lanes).values()}
        if tile.shift == "load"
        else {0}
    )
    # groups wider than a vector are split over several threads first
    return 1 + 0.15 * len(distances) if lanes_in(width, tile.lanes) * size > VECTOR_BYTES else 1.0
