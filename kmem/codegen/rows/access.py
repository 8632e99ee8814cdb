"""Loads and stores of row kernels, 16 bytes at a time even where lines do not start at 16 bytes.

A row of 65535 fp32 values starts up to 3 values before a multiple of 16 bytes; those are its head.
Loads from its start would move 4 bytes each, with an address and a mask for every value.
`_RotatedAccess` numbers the elements of a row from the first aligned one, those of the head last:
slot s is element s + head, or s + head - R from there on. Tiles of slots are then whole aligned
vectors up to `bound`, and the elements beyond, fewer than a vector's on either side of the row's
end, go one by one.

Where rows run across memory, element r of 4095 neighbouring rows is a line of 4095 values, and
lines start at 4 places beside 16 bytes, in turn. Lines of one class, r % 4, start alike.
`_ClassedAccess` lets a part reduce one class: it numbers the rows from the last aligned place
before a line, slot s being row s - shift, and tiles of slots are whole aligned vectors. Those that
two lines share are read for both; what they hold of the other line goes to slots before row 0 or
after the last, which are not stored, so that loads need no mask for it.

A row over several axes, as the channels of a group and their pixels, is a row of lines. Where a
tile would cross from one line to the next, each of its elements would need a division, an address
and a value of its own of whatever changes from line to line. `_LinedAccess` cuts lines into parts
instead, so that no program sees two of them.
"""

from collections.abc import Sequence
from math import gcd, prod

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Load, Reduce, Region, Store
from kmem.codegen.rows.launching import OffsetWriter
from kmem.recipes import Settings
from kmem.records import DTYPE_BYTES

#: Bytes of the widest load of a thread.
_VECTOR_BYTES = 16


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


def _lanes_if_alike(
    items: Sequence[tuple[Sequence[int], str]], others: Sequence[int], unit: int
) -> int:
    """Elements of an aligned vector, if operands lie alike; otherwise 1.

    Args:
        items: (strides, dtype) of each operand.
        others: axes along which all must start alike.
        unit: the axis along which all must have unit stride.
    """
    lanes = max((_VECTOR_BYTES // DTYPE_BYTES[dtype] for _, dtype in items), default=1)
    places = {tuple(strides[axis] % lanes for axis in others) for strides, _ in items}
    has_unit_stride = all(strides[unit] == 1 and min(strides) >= 0 for strides, _ in items)
    return lanes if len(places) == 1 and has_unit_stride else 1


def row_access(region: Region, settings: Settings, like: Region | None = None) -> "RowAccess":
    """What writes the loads and stores of programs.

    Args:
        settings: as space.fit_settings leaves them.
        like: the region at the sizes that decide how; with vectors of one element, each way is
            right for any sizes.
    """
    if settings["STRATEGY"] == "classes":
        return _ClassedAccess(region)
    if settings["LINED"]:
        return _LinedAccess(region)
    is_rotated = settings["BK"] == 1 and vector_lanes(like or region) > 1
    return _RotatedAccess(region) if is_rotated else RowAccess(region)


def _covers(region: Region, strides: Sequence[int]) -> bool:
    return all(strides[axis] for axis in (*region.kept[-1:], *region.reduced))


def _covering(region: Region) -> dict[str, tuple[int, ...]]:
    """Strides of the loads that have an element of their own for every element of a tile."""
    return {load.name: load.strides for load in region.loads if _covers(region, load.strides)}


class RowAccess(OffsetWriter):
    """Loads and stores of a tile at (k, r) under the masks of OffsetWriter.

    `width` is the tile's. `rest`, if there is one, writes a tile of its own for the elements that
    `store` leaves out. `left` is how many elements the row has from the first one of part
    `part_index` on, none where that is not one (`part_valid`).
    """

    width = "BR"
    rest: "RowAccess | None" = None
    left = "R - part_index * SEGMENT"

    def segment(self) -> list[str]:
        """begin..end, what the program's part takes of the row."""
        return ["begin = part * SEGMENT", "end = tl.minimum(begin + SEGMENT, R)"]

    def load(self, item: Load, policy: str) -> list[str]:
        """The value of a load; `policy` is further arguments of tl.load."""
        offset, mask = self.offset(item.name, item.strides), self.mask(item.strides)
        return [_load_line(item, offset, f"{mask}{policy}")]

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


def _load_line(item: Load, offset: str, mask: str) -> str:
    cast = f".to({compute_type(item.dtype)})"
    return f"{item.name} = tl.load(p{item.operand} + {offset}, mask={mask}){cast}"


class _RotatedAccess(RowAccess):
    """One row a program, rotated to its first aligned element (see the module's docstring).

    LANES is `vector_lanes`.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.covering = {
            f"{store.pointer}_out": store.strides for store in region.stores if not store.is_row
        }
        self.covering |= _covering(region)
        self.rest = _LeftOverAccess(region)

    def constants(self, settings: Settings) -> dict[str, object]:
        return super().constants(settings) | {"LANES": vector_lanes(self.region)}

    def rows(self) -> list[str]:
        # BK is 1; a number, as branches need it, where k is a tensor
        first = self._first(next(iter(self.covering)), "tile")
        return [
            *super().rows(),
            f"head = (-({first})).to(tl.int32) & (LANES - 1)",
            "bound = (R - head) // LANES * LANES",
        ]

    def columns(self, start: str, end: str) -> list[str]:
        lines = [
            f"slot = {start} + tl.arange(0, BR)[None, :]",
            f"valid = slot < {end}",
            "whole = slot < bound",
            *_elements("r", "slot"),
        ]
        lines += [f"group = ({start} - bound) // LANES + tl.arange(0, BR // LANES)[None, :, None]"]
        for number in range(2):  # the vectors of slots from `bound` on, whose elements lie apart
            lanes = f"tl.arange({number} * LANES, {number + 1} * LANES)[None, None, :]"
            lines += [
                f"slot{number} = bound + {lanes}",
                f"valid{number} = (slot{number} < R) & (slot{number} < {start} + BR)",
                *_elements(f"r{number}", f"slot{number}"),
            ]
        return lines

    def load(self, item: Load, policy: str) -> list[str]:
        if item.name not in self.covering:
            return super().load(item, policy)
        name, cast = item.name, f".to({compute_type(item.dtype)})"
        lines = [
            f"{name} = tl.load(p{item.operand} + {self._slots(name)}, mask=whole{policy}){cast}"
        ]
        lines += [f"{name}_3d = tl.reshape({name}, (1, BR // LANES, LANES))"]
        for number in range(2):
            place = f"p{item.operand} + {self._first(name, 'k')} + r{number}"
            apart = f"tl.load({place}, mask=valid{number}){cast}"
            lines.append(f"{name}_3d = tl.where(group == {number}, {apart}, {name}_3d)")
        return [*lines, f"{name} = tl.reshape({name}_3d, (1, BR))"]

    def store(self, store: Store, policy: str) -> str:
        if store.is_row:
            return super().store(store, policy)
        offset = self._slots(f"{store.pointer}_out")
        return self._store_at(store, offset, self.width, f"whole{policy}")

    def _first(self, name: str, inner: str) -> str:
        """Offset of a row's first element."""
        strides = self.covering[name]
        terms = [
            f"o{place} * S_{name}_{axis}" for place, axis in enumerate(self.outer) if strides[axis]
        ]
        return " + ".join([*terms, f"{inner} * S_{name}_{self.inner}"])

    def _slots(self, name: str) -> str:
        """Offsets of slots below `bound`.

        The text lets a compiler see a multiple of LANES and a run.
        """
        return f"({self._first(name, 'k')} + LANES - 1) // LANES * LANES + slot"


class _LeftOverAccess(RowAccess):
    """The elements of a rotated row among slots start..end that are in no whole vector."""

    width = "2 * LANES"

    def columns(self, start: str, end: str) -> list[str]:
        lines = [
            f"slot = bound + tl.arange(0, {self.width})[None, :]",
            f"valid = (slot >= {start}) & (slot < {end})",
        ]
        return [*lines, *_elements("r", "slot"), f"tile0 = tl.zeros((BK, {self.width}), tl.int32)"]

    def mask(
        self, strides: tuple[int, ...], *, is_store: bool = False, is_row: bool = False
    ) -> str:
        return "valid" if is_store or strides[self.reduced[0]] else "None"


def _elements(name: str, slot: str) -> list[str]:
    """`name` = which element of a rotated row each slot is."""
    return [
        f"{name} = {slot} + head - tl.where({slot} < R - head, 0, R)",
        "if WIDE:",
        f"    {name} = {name}.to(tl.int64)",
    ]


class _LinedAccess(RowAccess):
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


class _ClassedAccess(RowAccess):
    """Lines of one class a part (see the module's docstring); begin..end counts those of the class.

    LANES are elements of a vector.
    """

    left = "(R - part_index % CLASSES + CLASSES - 1) // CLASSES - part_index // CLASSES * SEGMENT"

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.covering = _covering(region)
        self.classes = line_classes(region)
        self.lanes = 1
        if self.classes > 1:
            dtypes = [load.dtype for load in region.loads if load.name in self.covering]
            self.lanes = max(_VECTOR_BYTES // DTYPE_BYTES[dtype] for dtype in dtypes)

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
        return [_load_line(item, f"{first} + {line} + slot", mask)]

    def _first(self, name: str) -> str:
        """Offset of the first line of this program's class."""
        strides = self.covering[name]
        terms = [
            f"o{axis} * S_{name}_{self.outer[axis]}"
            for axis in range(len(self.outer))
            if strides[self.outer[axis]]
        ]
        return " + ".join([*terms, f"(part % CLASSES).to(tl.int64) * S_{name}_{self.reduced[0]}"])
