"""Writes sums and means of whole rows: embedding bags, and rows added up by where they go.

What eager picks first and then adds up, (bags, entries, width), is never written. Rows that go
somewhere are sorted by that, so that each result is a bag: no two programs add to one number, and
the sum is the same each time. Knobs, times and kernels are here; the sites are in bags.py and
segments.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch, write_launch_function
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device, Purity

from .bags import Bags, find_bags
from .segments import Segments, find_segments

_BAG = (
    "kmem_embedding_bag",
    '''
@triton.jit
def kmem_embedding_bag(
    table, indices, offsets, weights, through, out,
    BAGS: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    LENGTH: tl.constexpr, ENDS: tl.constexpr, PADDING: tl.constexpr, WEIGHTED: tl.constexpr,
    THROUGH: tl.constexpr, MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """BLOCK columns of one bag: the sum or mean of the table's rows that it names, ROWS at once.

    Bags of LENGTH entries follow one another; where that is 0, offsets say where each begins, and,
    if ENDS, where the last one ends. An entry that is PADDING counts as none. With THROUGH an entry
    names a place of another index, which names the row.
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
        if THROUGH:
            index = tl.load(through + index, mask=named, other=0).to(tl.int64)
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
)
_BEGINS = (
    "kmem_segment_begins",
    '''
@triton.jit
def kmem_segment_begins(
    keys, begins,
    ENTRIES: tl.constexpr, SEGMENTS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):
    """For each segment, and behind the last, how many of the sorted keys are below its number."""
    segments = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.full((BLOCK,), ENTRIES, tl.int32)
    for _ in range(STEPS):
        is_open = low < high
        middle = (low + high) // 2
        is_below = tl.load(keys + middle, mask=is_open, other=0) < segments
        low = tl.where(is_open & is_below, middle + 1, low)
        high = tl.where(is_open & (is_below == 0), middle, high)
    tl.store(begins + segments, low, mask=segments <= SEGMENTS)
''',
)
#: Segments that a program of the second kernel looks up at once.
_LOOKED_UP = 256
#: What sorting takes: launches, and how often it moves keys of 8 bytes and places of 8. A radix
#: sort of 8 bits a pass over keys of 64 (CUB); not measured here.
_SORT_LAUNCHES, _SORT_PASSES = 4, 8
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
    """Sums and means of rows that are picked, or that go to one place, in fp32, without copies."""

    operators = ("embedding",)
    roles = {
        "rows": (Role("rows"), Role("depth")),
        "block": (Role("tile"),),
        "warps": (Role("warps"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        # which sorts, as the library does it
        segments = find_segments(graph) if contract.purity is not Purity.TRITON else []
        found = [*find_bags(graph), *segments]
        return sorted(found, key=lambda site: graph.place(site.name))

    def space(self, site: Site, device: Device) -> Space:
        bags: Bags | Segments = site.detail
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
        bags: Bags | Segments = site.detail
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
        whole_ms = read_ms * (1.0 + idle * needed / on_their_way) + device.launch_ms
        if isinstance(bags, Segments):
            sorted_bytes = 2 * 16 * bags.entries * _SORT_PASSES
            whole_ms += sorted_bytes / device.read_bytes_per_s * 1e3
            whole_ms += (1 + _SORT_LAUNCHES) * device.launch_ms
        return whole_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        knobs = read_settings(BagSettings, settings)
        made = write_allocation("out", site.outputs[0].spec, "table")
        if isinstance(site.detail, Segments):
            return _emit_segments(site.detail, knobs, made)
        bags: Bags = site.detail
        given = ["table", "indices"]
        given += ["offsets"] if bags.length == 0 else []
        given += ["weights"] if bags.is_weighted else []
        launch = _write_launch(bags, knobs, given)
        return Emission((_BAG,), write_launch_function(given, [made, launch, "return out"]))


def _emit_segments(segments: Segments, knobs: BagSettings, made: str) -> Emission:
    """Sort the rows by where they go, look up where each result's begin, and add up bags."""
    given = ["table", "targets", *(["through"] if segments.is_picked else [])]
    bags = Bags(
        segments.table, segments.count, segments.entries, 0, segments.is_mean, has_ends=True
    )
    begins = segments.count + 1
    statements = [
        "keys, indices = torch.sort(targets, stable=True)",
        f"offsets = torch.empty(({begins},), dtype=torch.int32, device=table.device)",
        write_launch(
            "kmem_segment_begins",
            ceil_div(begins, _LOOKED_UP),
            "keys, offsets",
            f"ENTRIES={segments.entries}, SEGMENTS={segments.count}, "
            f"STEPS={segments.entries.bit_length()}, BLOCK={_LOOKED_UP}",
        ),
        made,
        _write_launch(bags, knobs, ["table", "indices", "offsets", *given[2:]]),
        "return out",
    ]
    return Emission((_BEGINS, _BAG), write_launch_function(given, statements))


def _write_launch(bags: Bags, knobs: BagSettings, given: list[str]) -> str:
    """The launch of the bags' kernel; what is not given, the kernel does not read."""
    others = [name if name in given else "indices" for name in ("offsets", "weights", "through")]
    return write_launch(
        "kmem_embedding_bag",
        bags.count * ceil_div(bags.width, knobs.block),
        f"table, indices, {', '.join(others)}, out",
        f"BAGS={bags.count}, ENTRIES={bags.entries}, WIDTH={bags.width}, "
        f"STEP={bags.table.stride[0]}, LENGTH={bags.length}, ENDS={bags.has_ends}",
        f"PADDING={bags.padding}, WEIGHTED={bags.is_weighted}, THROUGH={'through' in given}, "
        f"MEAN={bags.is_mean}, ROWS={knobs.rows}, BLOCK={knobs.block}, num_warps={knobs.warps}",
    )


RECIPE = GatherWholeRows()
