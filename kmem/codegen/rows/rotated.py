"""Rows that start beside 16 bytes, numbered from their first aligned element.

A row of 65535 fp32 values starts up to 3 values before a multiple of 16 bytes; those are its head.
Loads from its start would move 4 bytes each, with an address and a mask for every value.
`RotatedAccess` numbers the elements of a row from the first aligned one, those of the head last:
slot s is element s + head, or s + head - R from there on. Tiles of slots are then whole aligned
vectors up to `bound`, and the elements beyond, fewer than a vector's on either side of the row's
end, go one by one.

Such care costs more than what is computed of a value: a tile of slots that lie below `bound` in
whole is loaded without a mask and without looking for the elements beyond. Source: SASS for sm_90,
cross entropy over 50257 fp16 classes, 46 instructions an element with it and 26 without.
"""

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Load, Region, Store
from kmem.codegen.rows.access import (
    ClassedAccess,
    InnerTiles,
    LinedAccess,
    RowAccess,
    covering_loads,
    load_line,
    vector_lanes,
)
from kmem.recipes import Settings


def row_access(region: Region, settings: Settings, like: Region | None = None) -> RowAccess:
    """What writes the loads and stores of programs.

    Args:
        settings: as space.fit_settings leaves them.
        like: the region at the sizes that decide how; with vectors of one element, each way is
            right for any sizes.
    """
    if settings["STRATEGY"] == "classes":
        return ClassedAccess(region)
    if settings["LINED"]:
        return LinedAccess(region)
    is_rotated = settings["BK"] == 1 and vector_lanes(like or region) > 1
    return RotatedAccess(region) if is_rotated else RowAccess(region)


class RotatedAccess(RowAccess):
    """One row a program, rotated to its first aligned element (see the module's docstring).

    LANES is `vector_lanes`.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.covering = {
            f"{store.pointer}_out": store.strides for store in region.stores if not store.is_row
        }
        self.covering |= covering_loads(region)
        self.rest = _LeftOverAccess(region)
        whole = "begin + tl.maximum(tl.minimum(end, bound) - begin, 0) // BR * BR"
        self.inner_tiles = InnerTiles(whole, _WholeVectorAccess(self))

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
        lines = [load_line(item, self.slots(name), f"whole{policy}")]
        lines += [f"{name}_3d = tl.reshape({name}, (1, BR // LANES, LANES))"]
        for number in range(2):
            place = f"p{item.operand} + {self._first(name, 'k')} + r{number}"
            apart = f"tl.load({place}, mask=valid{number}){cast}"
            lines.append(f"{name}_3d = tl.where(group == {number}, {apart}, {name}_3d)")
        return [*lines, f"{name} = tl.reshape({name}_3d, (1, BR))"]

    def store(self, store: Store, policy: str) -> str:
        if store.is_row:
            return super().store(store, policy)
        offset = self.slots(f"{store.pointer}_out")
        return self._store_at(store, offset, self.width, f"whole{policy}")

    def _first(self, name: str, inner: str) -> str:
        """Offset of a row's first element."""
        strides = self.covering[name]
        terms = [
            f"o{place} * S_{name}_{axis}" for place, axis in enumerate(self.outer) if strides[axis]
        ]
        return " + ".join([*terms, f"{inner} * S_{name}_{self.inner}"])

    def slots(self, name: str) -> str:
        """Offsets of slots below `bound`.

        The text lets a compiler see a multiple of LANES and a run.
        """
        return f"({self._first(name, 'k')} + LANES - 1) // LANES * LANES + slot"


class _WholeVectorAccess(RowAccess):
    """Tiles of a rotated row that hold whole vectors alone."""

    def __init__(self, around: RotatedAccess) -> None:
        super().__init__(around.region)
        self.around = around

    def columns(self, start: str, end: str) -> list[str]:
        return [
            f"slot = {start} + tl.arange(0, BR)[None, :]",
            "valid = tl.full((1, BR), True, tl.int1)",
            "r = slot + head",
            "if WIDE:",
            "    r = r.to(tl.int64)",
        ]

    def load(self, item: Load, policy: str) -> list[str]:
        if item.name not in self.around.covering:
            return super().load(item, policy)
        return [load_line(item, self.around.slots(item.name), f"None{policy}")]


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
