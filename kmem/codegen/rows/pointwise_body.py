"""What one program of a pointwise kernel does with its tile of BLOCK elements.

Operands laid out as the flat index counts use the index itself (16-byte vectors). Broadcast or
strided ones decode it into axes, whose sizes are constexpr, so that division becomes
multiplication. The index is 32-bit below 2^31 elements.

Parts that lie between each other, as the even and the odd elements of rows, are one access of
neighbouring elements at an index of its own: a tile is loaded whole and taken apart by `tl.split`,
put together by `tl.join` and stored whole, all in a thread's registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Load, Map, Region, Store
from kmem.codegen.rows.launching import stride_constants
from kmem.problem.dtypes import FLOATS
from kmem.problem.sizes import dense_strides
from kmem.records import DTYPE_BYTES

Item = TypeVar("Item", Load, Store)
#: Parts that may lie between each other.
_BETWEEN = (2, 4)


@dataclass(frozen=True)
class PointwiseBody:
    """The statements of one region; names other than those of its values end in `tag`.

    `streams` is whether loads of what is read once are marked for early eviction, `has_parts`
    whether outputs are put together from parts.
    """

    region: Region
    tag: str
    streams: bool
    has_parts: bool

    @cached_property
    def _dense(self) -> tuple[int, ...]:
        """The strides of what lies as the flat index counts."""
        return dense_strides([axis.size for axis in self.region.axes])

    @cached_property
    def _stores(self) -> list[tuple[str, Store]]:
        """Stores, and what the offset of each is named after."""
        counts: dict[str, int] = {}
        named = []
        for store in self.region.stores:
            name = f"q{store.output}{self.tag}"
            counts[name] = number = counts.get(name, 0) + 1
            named.append((name if number == 1 else f"{name}_at{number}", store))
        return named

    @cached_property
    def _steps(self) -> dict[tuple[str, tuple[int, ...]], str]:
        """By pointer and strides, what the strides are named after: the first that has them."""
        found: dict[tuple[str, tuple[int, ...]], str] = {}
        for name, item in (*((load.name, load) for load in self.region.loads), *self._stores):
            found.setdefault((_pointer(item), item.strides), name)
        return found

    def constants(self, block: int) -> dict[str, object]:
        """Every constexpr argument by name."""
        region, tag = self.region, self.tag
        constants: dict[str, object] = {f"N{tag}": region.rows}
        constants |= {f"D{axis}{tag}": each.size for axis, each in enumerate(region.axes)}
        for (_, strides), name in self._steps.items():
            if strides != self._dense:
                constants |= stride_constants(name, strides)
        for name, item in (*((load.name, load) for load in region.loads), *self._stores):
            if item.offset:
                constants[f"O_{name}"] = item.offset
        # elements of the flat index that counts most
        most = max(map(len, (*_between(region.loads), *_between(region.stores))), default=1)
        return constants | {
            "BLOCK": block,
            f"EVEN{tag}": region.rows % block == 0,
            f"WIDE{tag}": region.is_wide or most * (region.rows + block) >= 2**31,
        }

    def lines(self) -> list[str]:
        """What follows once `pid` is the program's number among those of this region."""
        tag = self.tag
        loads, stores = _between(self.region.loads), _between(self.region.stores)
        lines = [f"if WIDE{tag}:", f"    pid{tag} = pid{tag}.to(tl.int64)", *self._places(1)]
        for parts in sorted({len(group) for group in (*loads, *stores)}):
            lines += self._places(parts)
        groups = {load.name: group for group in loads for load in group}
        loaded: set[str] = set()
        for item in self.region.statements:
            if isinstance(item, Map):
                lines.append(f"{item.name} = {item.text}")
            elif isinstance(item, Load) and item.name not in loaded:
                group = groups.get(item.name, [item])
                lines += self._load_together(group) if len(group) > 1 else [self._load(item)]
                loaded.update(each.name for each in group)
        together = [store for group in stores for store in group]
        lines += [self._store(*named) for named in self._stores if named[1] not in together]
        return lines + [line for group in stores for line in self._store_together(group)]

    def _mark(self, parts: int) -> str:
        """What names end in that count elements of so many parts together."""
        return self.tag if parts == 1 else f"{self.tag}x{parts}"

    def _places(self, parts: int) -> list[str]:
        """The flat index of a tile, its mask, and its place along each axis."""
        mark, tag = self._mark(parts), self.tag
        tile, count = ("BLOCK", "N") if parts == 1 else (f"({parts} * BLOCK)", f"{parts} * N")
        lines = [
            f"i{mark} = pid{tag} * {tile} + tl.arange(0, {tile.strip('()')})",
            f"mask{mark} = None if EVEN{tag} else i{mark} < {count}{tag}",
        ]
        rest, last = f"i{mark}", len(self.region.axes) - 1
        for axis in reversed(range(last + 1)):
            size = f"D{axis}{tag}" if parts == 1 or axis < last else f"({parts} * D{axis}{tag})"
            lines.append(f"i{axis}{mark} = {rest} % {size}" if axis else f"i{axis}{mark} = {rest}")
            if axis:
                lines.append(f"rest{axis}{mark} = {rest} // {size}")
                rest = f"rest{axis}{mark}"
        return lines

    def _offset(self, name: str, item: Load | Store, parts: int = 1) -> str:
        """The offset as text; empty for an operand whose first element is all that is read."""
        mark, last = self._mark(parts), len(item.strides) - 1
        if any(item.strides) and item.strides == tuple(parts * step for step in self._dense):
            terms = [f"i{mark}"]
        else:
            named = self._steps[_pointer(item), item.strides]
            steps = [f" * S_{named}_{axis}" for axis in range(last + 1)]
            if parts > 1:
                steps[last] = ""
            terms = [
                f"i{axis}{mark}{steps[axis]}" for axis in range(last + 1) if item.strides[axis]
            ]
        return " + ".join(terms + [f"O_{name}"] * bool(item.offset))

    def _policy(self, item: Load) -> str:
        is_read_once = all(item.strides) if self.has_parts else item.strides == self._dense
        return ', eviction_policy="evict_first"' if self.streams and is_read_once else ""

    # --- loads and stores of one part

    def _load(self, item: Load) -> str:
        access, offset = _pointer(item), self._offset(item.name, item)
        if offset:
            access += f" + {offset}"
        if any(item.strides):
            access += f", mask=mask{self.tag}{self._policy(item)}"
        return f"{item.name} = tl.load({access}).to({compute_type(item.dtype)})"

    def _store(self, name: str, store: Store) -> str:
        offset = self._offset(name, store)
        if not any(store.strides):  # one element: the others of a tile are masked
            offset = " + ".join([f"i{self.tag}", *([offset] if offset else [])])
        value = self._stored(store)
        return f"tl.store({store.pointer} + {offset}, {value}, mask=mask{self.tag})"

    def _stored(self, store: Store) -> str:
        return f"tl.broadcast_to({store.value}, (BLOCK,)).to({store.pointer}.dtype.element_ty)"

    # --- of several parts together

    def _load_together(self, group: Sequence[Load]) -> list[str]:
        first, parts = group[0], len(group)
        mark, tile = self._mark(parts), f"tile_{first.name}"
        access = f"{_pointer(first)} + {self._offset(first.name, first, parts)}"
        names = [load.name for load in group]
        lines = [f"{tile} = tl.load({access}, mask=mask{mark}{self._policy(first)})"]
        lines += _take_apart(tile, names)
        return lines + [f"{name} = {name}.to({compute_type(first.dtype)})" for name in names]

    def _store_together(self, group: Sequence[Store]) -> list[str]:
        parts, name = len(group), next(name for name, store in self._stores if store is group[0])
        offset = self._offset(name, group[0], parts)
        names = [f"{name}_{number}" for number in range(parts)]
        lines = [
            f"{each} = {self._stored(store)}" for each, store in zip(names, group, strict=True)
        ]
        tile = _put_together(names)
        access = f"{group[0].pointer} + {offset}"
        return [*lines, f"tl.store({access}, {tile}, mask=mask{self._mark(parts)})"]


def vectors_between(region: Region, per_thread: float) -> float:
    """Vectors of 16 bytes that a thread moves at once of parts that lie between each other.

    It is 0 where no parts do so.
    """
    groups = [*_between(region.loads), *_between(region.stores)]
    return max(
        (len(each) * per_thread * DTYPE_BYTES[each[0].dtype] / 16 for each in groups), default=0.0
    )


def _pointer(item: Load | Store) -> str:
    """The kernel argument through which an operand is read or written."""
    return f"p{item.operand}" if isinstance(item, Load) else item.pointer


def _take_apart(tile: str, names: Sequence[str]) -> list[str]:
    """Statements that give every len(names)-th element of a tile a name."""
    half = len(names) // 2
    rows = "BLOCK" if half == 1 else f"{half} * BLOCK"
    pairs = f"tl.split(tl.reshape({tile}, ({rows}, 2)))"
    if half == 1:
        return [f"{names[0]}, {names[1]} = {pairs}"]
    halves = f"{tile}_even", f"{tile}_odd"
    lines = [f"{halves[0]}, {halves[1]} = {pairs}"]
    return lines + _take_apart(halves[0], names[::2]) + _take_apart(halves[1], names[1::2])


def _put_together(names: Sequence[str]) -> str:
    """A tile of values in turn, as text."""
    if len(names) == 1:
        return names[0]
    even, odd = _put_together(names[::2]), _put_together(names[1::2])
    return f"tl.reshape(tl.join({even}, {odd}), ({len(names)} * BLOCK,))"


def _between(items: Sequence[Item]) -> list[list[Item]]:
    """Accesses of one tensor that lie between each other without gaps, in order of their places."""
    found: dict[tuple[object, ...], dict[int, Item]] = {}
    for item in items:
        if item.strides and item.strides[-1] in _BETWEEN and item.dtype in FLOATS:
            found.setdefault((_pointer(item), item.strides), {})[item.offset] = item
    groups = []
    for (_, strides), by_offset in found.items():
        taken: set[int] = set()
        for offset in sorted(by_offset):
            places = range(offset, offset + strides[-1])
            if taken.isdisjoint(places) and all(place in by_offset for place in places):
                groups.append([by_offset[place] for place in places])
                taken.update(places)
    return groups
