"""Writes embedding bags: rows of a table picked by an index, and added up or averaged.

What eager picks first and then adds up, (bags, entries, width), is never written. Sites, knobs and
times are here; what a bag is, is in bags.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch, write_launch_function
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device

from .bags import Bags, find_bags

_KERNELS = (
    (
        "kmem_embedding_bag",
        '''
@triton.jit
def kmem_embedding_bag(
    table, indices, offsets, weights, out,
    BAGS: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    LENGTH: tl.constexpr, ENDS: tl.constexpr, PADDING: tl.constexpr, WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """BLOCK columns of one bag: the sum or mean of the table's rows that it names, ROWS at once.

    Bags of LENGTH entries follow one another; where that is 0, offsets say where each begins, and,
    if ENDS, where the last one ends. An entry that is PADDING counts as none.
    """
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    bag = tl.program_id(0) // blocks
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    if LENGTH > 0:
        begin = bag.to(tl.int64) * LENGTH
        end = begin + LENGTH
    else:
        begin = tl.load(offsets + bag).to(tl.int64)
        last = bag + 1 < BAGS or ENDS
        end = tl.load(offsets + bag + 1, mask=last, other=ENTRIES).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    count = 0
    for first in range(begin, end, ROWS):
        places = first + tl.arange(0, ROWS)
        named = places < end
        index = tl.load(indices + places, mask=named, other=0).to(tl.int64)
        if PADDING >= 0:
            named = named & (index != PADDING)
        rows = tl.load(
            table + index[:, None] * STEP + columns[None, :],
            mask=named[:, None] & (columns < WIDTH)[None, :],
            other=0.0,
        ).to(tl.float32)
        if WEIGHTED:
            weight = tl.load(weights + places, mask=named, other=0.0).to(tl.float32)
            rows = tl.where(named[:, None], rows * weight[:, None], 0.0)
        total += tl.sum(rows, axis=0)
        count += tl.sum(named.to(tl.int32), axis=0)
    if MEAN:
        total = total / tl.maximum(count, 1)
    place = bag.to(tl.int64) * WIDTH + columns
    tl.store(out + place, total.to(out.dtype.element_ty), mask=columns < WIDTH)
''',
    ),
)
#: Bytes on their way at which rows arrive at half the bandwidth, at 4.37e12 bytes/s. Source: H200,
#: 2026-11-22, rows of a matrix that is multiplied with a vector (skills/matvec-rows-per-program).
_HALF_SPEED_BYTES, _HALF_SPEED_BYTES_PER_S = 1.3e6, 4.37e12
#: Bytes of a tile that a thread keeps in registers, at most: 32 registers.
_MOST_BYTES = 128


@dataclass(frozen=True, slots=True)
class BagSettings:
    """The knobs: rows and columns of a tile."""

    rows: int
    block: int
    warps: int


class GatherWholeRows(Recipe):
    """Sums and means of picked rows, in fp32, without a copy of what is picked."""

    operators = ("embedding",)
    roles = {
        "rows": (Role("rows"), Role("depth")),
        "block": (Role("tile"),),
        "warps": (Role("warps"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return find_bags(graph)

    def space(self, site: Site, device: Device) -> Space:
        bags: Bags = site.detail
        widest, longest = next_power_of_two(bags.width), next_power_of_two(bags.longest)

        def is_legal(settings: Settings) -> bool:
            knobs = read_settings(BagSettings, settings)
            threads = knobs.warps * device.warp_size
            held = knobs.rows * knobs.block * 4 / threads
            # a warp has at least one column for each of its threads, where there are so many
            return held <= _MOST_BYTES and knobs.block >= min(threads, widest)

        knobs = {
            "rows": tuple(sorted({min(value, longest) for value in (1, 4, 8, 16)})),
            "block": tuple(sorted({min(value, widest) for value in (64, 128, 256, 512, 1024)})),
            "warps": (1, 2, 4, 8),
        }
        return Space(knobs, is_legal)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        bags: Bags = site.detail
        knobs = read_settings(BagSettings, settings)
        programs = bags.count * ceil_div(bags.width, knobs.block)
        resident = min(
            programs,
            device.sm_count
            * min(device.max_blocks_per_sm, device.max_threads_per_sm // (32 * knobs.warps)),
        )
        on_their_way = resident * knobs.rows * knobs.block * DTYPE_BYTES[bags.table.dtype]
        needed = _HALF_SPEED_BYTES * device.read_bytes_per_s / _HALF_SPEED_BYTES_PER_S
        read_ms = site.bytes / device.read_bytes_per_s * 1e3
        # columns and rows of a tile that are no one's
        idle = ceil_div(bags.width, knobs.block) * knobs.block / bags.width
        idle *= ceil_div(bags.longest, knobs.rows) * knobs.rows / bags.longest
        return read_ms * (1.0 + idle * needed / on_their_way) + device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        bags: Bags = site.detail
        knobs = read_settings(BagSettings, settings)
        given = ["table", "indices"]
        given += ["offsets"] if bags.length == 0 else []
        given += ["weights"] if bags.is_weighted else []
        others = [name if name in given else "indices" for name in ("offsets", "weights")]
        launch = write_launch(
            "kmem_embedding_bag",
            bags.count * ceil_div(bags.width, knobs.block),
            f"table, indices, {', '.join(others)}, out",
            f"BAGS={bags.count}, ENTRIES={bags.entries}, WIDTH={bags.width}, "
            f"STEP={bags.table.stride[0]}, LENGTH={bags.length}, ENDS={bags.has_ends}",
            f"PADDING={bags.padding}, WEIGHTED={bags.is_weighted}, MEAN={bags.is_mean}, "
            f"ROWS={knobs.rows}, BLOCK={knobs.block}, num_warps={knobs.warps}",
        )
        made = write_allocation("out", site.outputs[0].spec, "table")
        return Emission(_KERNELS, write_launch_function(given, [made, launch, "return out"]))


RECIPE = GatherWholeRows()
