"""Loads and stores of row kernels, 16 bytes at a time even where lines do not start at 16 bytes.

rotated.py has rows that start beside 16 bytes.

Where rows run across memory, element r of 4095 neighbouring rows is a line of 4095 values, and
lines start at 4 places beside 16 bytes, in turn. Lines of one class, r % 4, start alike.
`ClassedAccess` lets a part reduce one class: it numbers the rows from the last aligned place
before a line, slot s being row s - shift, and tiles of slots are whole aligned vectors. Those that
two lines share are read for both; what they hold of the other line goes to slots before row 0 or
after the last, which are not stored, so that loads need no mask for it.

A row over several axes, as the channels of a group and their pixels, is a row of lines. Where a
tile would cross from one line to the next, each of its elements would need a division, an address
and a value of its own of whatever changes from line to line. `LinedAccess` cuts lines into parts
instead, so that no program sees two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Load, Reduce, Region, Store
from kmem.codegen.rows.launching import OffsetWriter
from kmem.codegen.settings import VECTOR_BYTES, WARP_THREADS
from kmem.recipes import Settings
from kmem.records import DTYPE_BYTES


def vector_lanes(region: Region) -> int:
    """Elements of an aligned vector, if programs that take one row should rotate it; otherwise 1.

    They should where rows start beside 16 bytes. Every operand as large as the tile must lie alike:
    unit stride along the row, and the same distance from a multiple of 16 bytes.
    """
    if (
        not region.kept
        or len(region.reduced) != 1
        or any(isinstance(item, Reduce) and item.kind == "argmax" for item in region.statements)
    ):
        return 1  # argmax takes the first of equals, in the order of slots
    items = [(load.strides, load.dtype) for load in region.loads if _covers(region, load.strides)]
    items += [(store.strides, store.dtype) for store in region.stores if not store.is_row]
    lanes = _lanes_if_alike(items, region.kept, region.reduced[0])
    is_beside = any(strides[axis] % lanes for strides, _ in items for axis in region.kept)
    return lanes if is_beside and region.columns >= 4 * lanes else 1


def line_classes(region: Region) -> int:
    """Classes of lines by where they start beside 16 bytes; 1 if parts should not take one each.

    Every operand as large as the tile must lie alike, with unit stride along the innermost kept
    axis, and must end at 16 bytes, so that whole vectors end within it.
    """
    if not region.kept or len(region.reduced) != 1 or region.has_element_output:
        return 1
    inner, step = region.kept[-1], region.reduced[0]
    items = [(load.strides, load.dtype) for load in region.loads if _covers(region, load.strides)]
    lanes = _lanes_if_alike(items, (*region.kept[:-1], step), inner)
    ends = [
        1 + sum((axis.size - 1) * stride for axis, stride in zip(region.axes, strides, strict=True))
        for strides, _ in items
    ]
    classes = lanes // gcd(lanes, *(strides[step] for strides, _ in items))
    is_worthwhile = region.axes[inner].size >= 4 * lanes and region.columns >= classes
    return classes if is_worthwhile and not any(end % lanes for end in ends) else 1


def run_elements(region: Region, tile: int, warps: int) -> int:
    """Neighbours along the row of a tile of so many elements that one thread loads as a vector.

    1 where rows run across memory, or over several axes.
    """
    loads = [load for load in region.loads if _covers(region, load.strides)]
    if len(region.reduced) != 1 or any(load.strides[region.reduced[0]] != 1 for load in loads):
        return 1
    lanes = min((VECTOR_BYTES // DTYPE_BYTES[load.dtype] for load in loads), default=1)
    return max(1, min(lanes, tile // (WARP_THREADS * warps)))


def _lanes_if_alike(
    items: Sequence[tuple[Sequence[int], str]], others: Sequence[int], unit: int
) -> int:
    """Elements of an aligned vector, if operands lie alike; otherwise 1.

    Args:
        items: (strides, dtype) of each operand.
        others: axes along which all must start alike.
        unit: the axis along which all must have unit stride.
    """
    lanes = max((VECTOR_BYTES // DTYPE_BYTES[dtype] for _, dtype in items), default=1)
    places = {tuple(strides[axis] % lanes for axis in others) for strides, _ in items}
    has_unit_stride = all(strides[unit] == 1 and min(strides) >= 0 for strides, _ in items)
    return lanes if len(places) == 1 and has_unit_stride else 1


def _covers(region: Region, strides: Sequence[int]) -> bool:
    return all(strides[axis] for axis in (*region.kept[-1:], *region.reduced))


def covering_loads(region: Region) -> dict[str, tuple[int, ...]]:
    """Strides of the loads that have an element of their own for every element of a tile."""
    return {load.name: load.strides for load in region.loads if _covers(region, load.strides)}


@dataclass(frozen=True, slots=True)
class InnerTiles:
    """Tiles of a row that need less care than its last ones.

    `end` is where they end, from `begin` on, as an expression that is a multiple of BR away from
    it; `access` writes them.
    """

    end: str
    access: "RowAccess"


class RowAccess(OffsetWriter):
    """Loads and stores of a tile at (k, r) under the masks of OffsetWriter.

    `width` is the tile's. `rest`, if there is one, writes a tile of its own for the elements that
    `store` leaves out, and `inner_tiles` loads a row's first tiles otherwise. `left` is how many
    elements the row has from the first one of part `part_index` on, none where that is not one
    (`part_valid`).
    """

    width = "BR"
    rest: "RowAccess | None" = None
    inner_tiles: "InnerTiles | None" = None
    left = "R - part_index * SEGMENT"

    def segment(self) -> list[str]:
        """begin..end, what the program's part takes of the row."""
        return ["begin = part * SEGMENT", "end = tl.minimum(begin + SEGMENT, R)"]

    def load(self, item: Load, policy: str) -> list[str]:
        """The value of a load; `policy` is further arguments of tl.load."""
        offset, mask = self.offset(item.name, item.strides), self.mask(item.strides)
        return [load_line(item, offset, f"{mask}{policy}")]

    def store(self, store: Store, policy: str) -> str:
        """A row-level or an element-level store; `policy` is further arguments of tl.store."""
        mask = self.mask(store.strides, is_store=True, is_row=store.is_row)
        width, place = ("1", "k0") if store.is_row else (self.width, "tile0")
        offset = f"{self.offset(f'{store.pointer}_out', store.strides)} + {place}"
        return self._store_at(store, offset, width, f"{mask}{policy}")

    def _store_at(self, store: Store, offset: str, width: str, mask: str) -> str:
        value = f"tl.broadcast_to({store.value}, (BK, {width}))"
        cast = f".to({store.pointer}.dtype.element_ty)"
        return f"tl.store({store.pointer} + {offset}, {value}{cast}, mask={mask})"


def load_line(item: Load, offset: str, mask: str) -> str:
    cast = f".to({compute_type(item.dtype)})"
    return f"{item.name} = tl.load(p{item.operand} + {offset}, mask={mask}){cast}"


class LinedAccess(RowAccess):
    """A part of a line a program, of a row over several axes (see the module's docstring).

    begin..end and the innermost place count within the line.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.last = len(self.reduced) - 1
        within = f"R{self.last} - part_index % LINE_PARTS * SEGMENT"
        self.left = f"tl.where(part_valid, {within}, 0)"

    def constants(self, settings: Settings) -> dict[str, object]:
        constants = super().constants(settings)
        return constants | {"LINE_PARTS": int(settings["SPLIT"]) // region_lines(self.region)}

    def segment(self) -> list[str]:
        return [
            "line = part // LINE_PARTS + tl.zeros((1, 1), tl.int32)",
            "if WIDE:",
            "    line = line.to(tl.int64)",
            "begin = part % LINE_PARTS * SEGMENT",
            f"end = tl.minimum(begin + SEGMENT, R{self.last})",
            *self._outer_places("line"),
        ]

    def columns(self, start: str, end: str) -> list[str]:
        place = f"r{self.last}"
        return [
            f"{place} = {start} + tl.arange(0, BR)[None, :]",
            f"valid = {place} < {end}",
            "if WIDE:",
            f"    {place} = {place}.to(tl.int64)",
            f"r = line * R{self.last} + {place}",
        ]

    def _changes_within_tile(self, strides: tuple[int, ...]) -> bool:
        return bool(strides[self.reduced[-1]])


def region_lines(region: Region) -> int:
    """Lines of a row: the steps of all its axes but the innermost."""
    return prod(region.axes[axis].size for axis in region.reduced[:-1])


class ClassedAccess(RowAccess):
    """Lines of one class a part (see the module's docstring); begin..end counts those of the class.

    LANES are elements of a vector.
    """

    left = "(R - part_index % CLASSES + CLASSES - 1) // CLASSES - part_index // CLASSES * SEGMENT"

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.covering = covering_loads(region)
        self.classes = line_classes(region)
        self.lanes = 1
        if self.classes > 1:
            dtypes = [load.dtype for load in region.loads if load.name in self.covering]
            self.lanes = max(VECTOR_BYTES // DTYPE_BYTES[dtype] for dtype in dtypes)

    def constants(self, settings: Settings) -> dict[str, object]:
        constants = super().constants(settings)
        blocks = -(-(self.region.axes[self.inner].size + self.lanes - 1) // int(settings["BK"]))
        constants |= {
            "INNER_BLOCKS": blocks,
            "BLOCKS": constants["BLOCKS"] // constants["INNER_BLOCKS"] * blocks,
            "EVEN_K": False,
        }
        return constants | {"LANES": self.lanes, "CLASSES": self.classes}

    def rows(self) -> list[str]:
        return [
            *super().rows(),
            "slot = k",
            f"shift = (({self._first(next(iter(self.covering)))}) % LANES).to(tl.int32)",
            "whole = slot < (KI + shift + LANES - 1) // LANES * LANES",
            "k = slot - shift",
            "k_valid = (k >= 0) & (k < KI)",
            "row = outer * KI + k",
        ]

    def segment(self) -> list[str]:
        return [
            "begin = part // CLASSES * SEGMENT",
            "end = tl.minimum(begin + SEGMENT, (R - part % CLASSES + CLASSES - 1) // CLASSES)",
        ]

    def columns(self, start: str, end: str) -> list[str]:
        lines = [
            f"place = {start} + tl.arange(0, BR)[None, :]",
            f"valid = place < {end}",
            "if WIDE:",
            "    place = place.to(tl.int64)",
        ]
        return [*lines, "r = place * CLASSES + part % CLASSES"]

    def load(self, item: Load, policy: str) -> list[str]:
        if item.name not in self.covering:
            return super().load(item, policy)
        # written so that a compiler sees a multiple of LANES and a run
        first = f"({self._first(item.name)}) // LANES * LANES"
        line = f"place * (CLASSES * S_{item.name}_{self.reduced[0]})"
        mask = f"whole if EVEN_R else whole & valid{policy}"
        return [load_line(item, f"{first} + {line} + slot", mask)]

    def _first(self, name: str) -> str:
        """Offset of the first line of this program's class."""
        strides = self.covering[name]
        terms = [
            f"o{axis} * S_{name}_{self.outer[axis]}"
            for axis in range(len(self.outer))
            if strides[self.outer[axis]]
        ]
        return " + ".join([*terms, f"(part % CLASSES).to(tl.int64) * S_{name}_{self.reduced[0]}"])
