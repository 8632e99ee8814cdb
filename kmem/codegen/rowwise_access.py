"""Loads and stores of row kernels, and how rows that do not start at 16 bytes are still read and written 16 bytes at a time.

A row of 65535 fp32 values starts up to 3 values before a multiple of 16 bytes; those are its head. Loads from its start would move 4 bytes
each, with an address and a mask for every value. `_RotatedAccess` numbers the elements of a row from the first aligned one, those of the
head last: slot s is element s + head, or s + head - R from there on. Tiles of slots are then whole aligned vectors up to `bound`, and the
elements beyond, fewer than a vector's on either side of the row's end, go one by one.
"""

from collections.abc import Sequence

from kmem.codegen.launching import OffsetWriter
from kmem.codegen.pointwise import compute_type
from kmem.codegen.region import Load, Reduce, Region, Store
from kmem.recipes import Settings
from kmem.records import DTYPE_BYTES

#: Bytes of the widest load of a thread.
_VECTOR_BYTES = 16


def vector_lanes(region: Region) -> int:
    """Elements of an aligned vector, if rows start beside them and programs of one row should rotate theirs; otherwise 1.

    Every operand as large as the tile must lie alike: unit stride along the row, and the same distance from a multiple of 16 bytes.
    """
    if not region.kept or len(region.reduced) != 1 or any(isinstance(item, Reduce) and item.kind == "argmax" for item in region.statements):
        return 1  # argmax takes the first of equals, in the order of slots
    items = [(load.strides, load.dtype) for load in region.loads if _covers(region, load.strides)]
    items += [(store.strides, store.dtype) for store in region.stores if not store.is_row]
    lanes = max((_VECTOR_BYTES // DTYPE_BYTES[dtype] for _, dtype in items), default=1)
    places = {tuple(strides[axis] % lanes for axis in region.kept) for strides, _ in items}
    is_alike = len(places) == 1 and all(strides[region.reduced[0]] == 1 and min(strides) >= 0 for strides, _ in items)
    return lanes if is_alike and any(*places) and region.columns >= 4 * lanes else 1


def row_access(region: Region, single: bool) -> "RowAccess":
    """What writes the loads and stores of programs that hold one row (`single`) or several."""
    return _RotatedAccess(region) if single and vector_lanes(region) > 1 else RowAccess(region)


def _covers(region: Region, strides: Sequence[int]) -> bool:
    return all(strides[axis] for axis in (*region.kept[-1:], *region.reduced))


class RowAccess(OffsetWriter):
    """Loads and stores of a tile at (k, r) under the masks of OffsetWriter.

    `width` is the tile's, and `rest`, if any, writes a tile of its own for the elements that `store` leaves out.
    """

    width = "BR"
    rest: "RowAccess | None" = None

    def load(self, item: Load, policy: str) -> list[str]:
        """The value of a load; `policy` is further arguments of tl.load."""
        offset, mask = self.offset(item.name, item.strides), self.mask(item.strides)
        return [f"{item.name} = tl.load(p{item.operand} + {offset}, mask={mask}{policy}).to({compute_type(item.dtype)})"]

    def store(self, store: Store, policy: str) -> str:
        """A row-level or an element-level store; `policy` is further arguments of tl.store."""
        mask = self.mask(store.strides, is_store=True, is_row=store.is_row)
        width, place = ("1", "k0") if store.is_row else (self.width, "tile0")
        return self._store_at(store, f"{self.offset(f'{store.pointer}_out', store.strides)} + {place}", width, f"{mask}{policy}")

    def _store_at(self, store: Store, offset: str, width: str, mask: str) -> str:
        value = f"tl.broadcast_to({store.value}, (BK, {width})).to({store.pointer}.dtype.element_ty)"
        return f"tl.store({store.pointer} + {offset}, {value}, mask={mask})"


class _RotatedAccess(RowAccess):
    """One row a program, rotated to its first aligned element (see the module's docstring). LANES is `vector_lanes`."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.covering = {f"{store.pointer}_out": store.strides for store in region.stores if not store.is_row}
        self.covering |= {load.name: load.strides for load in region.loads if _covers(region, load.strides)}
        self.rest = _LeftOverAccess(region)

    def constants(self, settings: Settings) -> dict[str, object]:
        return super().constants(settings) | {"LANES": vector_lanes(self.region)}

    def rows(self) -> list[str]:
        first = self._first(next(iter(self.covering)), "tile")  # BK is 1; a number, as branches need it, where k is a tensor
        return [*super().rows(), f"head = (-({first})).to(tl.int32) & (LANES - 1)", "bound = (R - head) // LANES * LANES"]

    def columns(self, start: str, end: str) -> list[str]:
        lines = [f"slot = {start} + tl.arange(0, BR)[None, :]", f"valid = slot < {end}", "whole = slot < bound", *_elements("r", "slot")]
        lines += [f"group = ({start} - bound) // LANES + tl.arange(0, BR // LANES)[None, :, None]"]
        for number in range(2):  # the vectors of slots from `bound` on, whose elements lie apart
            lines += [f"slot{number} = bound + tl.arange({number} * LANES, {number + 1} * LANES)[None, None, :]"]
            lines += [f"valid{number} = (slot{number} < R) & (slot{number} < {start} + BR)", *_elements(f"r{number}", f"slot{number}")]
        return lines

    def load(self, item: Load, policy: str) -> list[str]:
        if item.name not in self.covering:
            return super().load(item, policy)
        name, cast = item.name, f".to({compute_type(item.dtype)})"
        lines = [f"{name} = tl.load(p{item.operand} + {self._slots(name)}, mask=whole{policy}){cast}"]
        lines += [f"{name}_3d = tl.reshape({name}, (1, BR // LANES, LANES))"]
        for number in range(2):
            place = f"p{item.operand} + {self._first(name, 'k')} + r{number}"
            lines += [f"{name}_3d = tl.where(group == {number}, tl.load({place}, mask=valid{number}){cast}, {name}_3d)"]
        return [*lines, f"{name} = tl.reshape({name}_3d, (1, BR))"]

    def store(self, store: Store, policy: str) -> str:
        if store.is_row:
            return super().store(store, policy)
        return self._store_at(store, self._slots(f"{store.pointer}_out"), self.width, f"whole{policy}")

    def _first(self, name: str, inner: str) -> str:
        """Offset of a row's first element."""
        strides = self.covering[name]
        return " + ".join(
            [*(f"o{place} * S_{name}_{axis}" for place, axis in enumerate(self.outer) if strides[axis]), f"{inner} * S_{name}_{self.inner}"]
        )

    def _slots(self, name: str) -> str:
        """Offsets of slots below `bound`, written so that a compiler sees a multiple of LANES and a run."""
        return f"({self._first(name, 'k')} + LANES - 1) // LANES * LANES + slot"


class _LeftOverAccess(RowAccess):
    """The elements of a rotated row among slots start..end that are in no whole vector."""

    width = "2 * LANES"

    def columns(self, start: str, end: str) -> list[str]:
        lines = [f"slot = bound + tl.arange(0, {self.width})[None, :]", f"valid = (slot >= {start}) & (slot < {end})"]
        return [*lines, *_elements("r", "slot"), f"tile0 = tl.zeros((BK, {self.width}), tl.int32)"]

    def mask(self, strides: tuple[int, ...], *, is_store: bool = False, is_row: bool = False) -> str:
        return "valid" if is_store or strides[self.reduced[0]] else "None"


def _elements(name: str, slot: str) -> list[str]:
    """`name` = which element of a rotated row each slot is."""
    return [f"{name} = {slot} + head - tl.where({slot} < R - head, 0, R)", "if WIDE:", f"    {name} = {name}.to(tl.int64)"]
