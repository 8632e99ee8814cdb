"""A region: operators over one common set of dimensions, as a small program over tiles.

Owned here: the program's statements (Load, Map, Reduce, Store), the axes of its iteration space,
and how operands lie along the axes. lowering.py makes a region from a graph; rows/kernel.py and
rows/pointwise_kernel.py write it as kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from kmem.problem.operators.expressions import Helper
from kmem.recipes import Operand
from kmem.records import DTYPE_BYTES, TensorSpec


@dataclass(frozen=True, slots=True)
class RegionAxis:
    """A loop of the iteration space: `size` steps of `step` along dimension `dim`."""

    size: int
    dim: int
    step: int
    reduced: bool


@dataclass(frozen=True, slots=True)
class Load:
    """`name` = element of input `operand`.

    There is one stride, in elements, per axis, 0 where the operand broadcasts; the first element
    of the space is `offset` elements behind the operand's first.
    """

    name: str
    operand: int
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Map:
    """`name` = a Triton expression over earlier values.

    `helpers` are the jitted functions that it calls. `share_of` is a state of a softmax reduction,
    if the expression is exp(element - state); see reductions.Reduction.reuse.
    """

    name: str
    text: str
    reads: tuple[str, ...]
    helpers: tuple[Helper, ...] = ()
    share_of: str = ""


@dataclass(frozen=True, slots=True)
class Reduce:
    """`names` = the states of one reduction (reductions.REDUCTIONS[kind]) of an earlier value.

    A kind that reads a second value reads `beside`.
    """

    names: tuple[str, ...]
    kind: str
    read: str
    beside: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """What is reduced."""
        return (self.read, self.beside) if self.beside else (self.read,)

    @property
    def named(self) -> tuple[str, ...]:
        """The states, and the second value behind them: as the texts of a kind take names."""
        return (*self.names, *self.reads[1:])


@dataclass(frozen=True, slots=True)
class Store:
    """Output number `output` takes the value named `value`.

    There is one stride per axis, 0 along reduced axes of a row-level output. With `in_place`, input
    number `output` takes the value: a module's buffer, which the forward changes. Of an output that
    is put together from parts, a store writes the part that begins at `offset`.
    """

    value: str
    output: int
    strides: tuple[int, ...]
    dtype: str
    is_row: bool
    in_place: bool = False
    offset: int = 0

    @property
    def pointer(self) -> str:
        """The kernel argument through which the value is stored."""
        return f"{'p' if self.in_place else 'q'}{self.output}"


@dataclass(frozen=True, slots=True)
class Total:
    """Output number `output` takes `text`, an expression over total_0, total_1, ...

    These are the sums of row-level `values` over all rows.
    """

    values: tuple[str, ...]
    text: str
    output: int


@dataclass(frozen=True)
class Region:
    """What one kernel family computes.

    `operator` is its name in the vocabulary; `inputs` and `outputs` are in the order of the launch.
    With a `total`, one more program sums what the rows left. `beside` are regions over spaces of
    their own, with the same inputs and outputs, whose programs are of the same launch: each writes
    other parts of the outputs.
    """

    operator: str
    axes: tuple[RegionAxis, ...]
    statements: tuple[Load | Map | Reduce, ...]
    stores: tuple[Store, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    total: Total | None = None
    beside: "tuple[Region, ...]" = ()

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Positions of the kept axes, outermost first."""
        return tuple(index for index, axis in enumerate(self.axes) if not axis.reduced)

    @cached_property
    def reduced(self) -> tuple[int, ...]:
        return tuple(index for index, axis in enumerate(self.axes) if axis.reduced)

    @cached_property
    def rows(self) -> int:
        """How many rows there are: the product of the kept axes."""
        return prod(self.axes[index].size for index in self.kept)

    @cached_property
    def columns(self) -> int:
        """Elements per row: the product of the reduced axes."""
        return prod(self.axes[index].size for index in self.reduced)

    @cached_property
    def has_element_output(self) -> bool:
        return any(not store.is_row for store in self.stores)

    @cached_property
    def kinds_of_computed(self) -> set[str]:
        """Kinds of the reductions that read a computed value, not a loaded one."""
        computed = {item.name for item in self.statements if isinstance(item, Map)}
        return {
            item.kind
            for item in self.statements
            if isinstance(item, Reduce) and computed.intersection(item.reads)
        }

    @cached_property
    def changes_inputs(self) -> bool:
        return any(store.in_place for store in self.stores)

    @cached_property
    def is_wide(self) -> bool:
        """Whether an offset can exceed 32 bits."""
        return any(
            _extent(self.axes, item.strides) + item.offset >= 2**31
            for item in (*self.loads, *self.stores)
        )

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple(statement for statement in self.statements if isinstance(statement, Load))

    @cached_property
    def bytes(self) -> int:
        """Every input read once and every output written once.

        Of an input of which slices are read, these count; what two regions beside each other read,
        comes from memory twice.
        """
        written = sum(operand.spec.bytes for operand in self.outputs)
        if not self.is_of_parts:
            return written + sum(operand.spec.bytes for operand in self.inputs)
        return written + sum(region._bytes_read() for region in (self, *self.beside))

    @cached_property
    def is_of_parts(self) -> bool:
        """Whether outputs are put together from parts."""
        return bool(self.beside) or len(self.stores) > len(self.outputs)

    def _bytes_read(self) -> int:
        """What the programs of this region alone read, slices that overlap no more than once."""
        read = [0] * len(self.inputs)
        for load in self.loads:
            sizes = zip(self.axes, load.strides, strict=True)
            elements = prod(axis.size for axis, stride in sizes if stride)
            read[load.operand] += elements * DTYPE_BYTES[load.dtype]
        whole = [operand.spec.bytes for operand in self.inputs]
        return sum(map(min, read, whole))

    def is_element(self, load: Load) -> bool:
        """Whether a load changes along the row."""
        return any(load.strides[index] for index in self.reduced)

    @cached_property
    def held_loads(self) -> int:
        """How many operands that are reduced have an element of their own for every one of a tile.

        Registers must hold as many values for each element of a row until it is reduced. What is
        only read behind the last reduction, as a layer norm's weights, they hold for moments.
        """
        reduced = self._reduced_values

        def fills(load: Load) -> bool:
            return all(load.strides[index] for index in self.reduced) and (
                not self.kept or any(load.strides[index] for index in self.kept)
            )

        return max(1, sum(load.name in reduced and fills(load) for load in self.loads))

    @cached_property
    def _reduced_values(self) -> set[str]:
        """Names of what reductions read, and of what that is made of."""
        found: set[str] = set()
        for statement in reversed(self.statements):
            is_map = isinstance(statement, Map) and statement.name in found
            if is_map or isinstance(statement, Reduce):
                found.update(statement.reads)
        return found

    @cached_property
    def row_is_contiguous(self) -> bool:
        """Whether the largest load runs along the row with unit stride.

        Otherwise it runs along the innermost kept axis.
        """
        return not self.kept or any(
            load.strides[index] == 1
            for load in self.loads
            for index in self.reduced
            if self.axes[index].size > 1
        )

    def levels(self) -> dict[str, bool]:
        """Value name -> whether it changes along the row."""
        return value_levels(self.axes, self.statements)

    def passes(self) -> dict[str, int]:
        """Value name -> how many reductions, one after the other, must end before it is known."""
        found: dict[str, int] = {}
        for statement in self.statements:
            if isinstance(statement, Load):
                found[statement.name] = 0
            elif isinstance(statement, Map):
                found[statement.name] = max((found[name] for name in statement.reads), default=0)
            else:
                passed = max(found[name] for name in statement.reads)
                found.update(dict.fromkeys(statement.names, passed + 1))
        return found


def value_levels(
    axes: Sequence[RegionAxis], statements: Sequence[Load | Map | Reduce]
) -> dict[str, bool]:
    """Value name -> whether it changes along the row, for statements in order."""
    found: dict[str, bool] = {}
    for statement in statements:
        if isinstance(statement, Load):
            found[statement.name] = any(
                stride and axis.reduced
                for axis, stride in zip(axes, statement.strides, strict=True)
            )
        elif isinstance(statement, Map):
            found[statement.name] = any(found[name] for name in statement.reads)
        else:
            found.update(dict.fromkeys(statement.names, False))
    return found


def _extent(axes: tuple[RegionAxis, ...], strides: tuple[int, ...]) -> int:
    return sum((axis.size - 1) * stride for axis, stride in zip(axes, strides, strict=True)) + 1


def axis_strides(
    axes: tuple[RegionAxis, ...], shape: tuple[int, ...], spec: TensorSpec
) -> tuple[int, ...]:
    """Strides of an operand along the axes of a space of `shape`.

    The operand is aligned from the right, as broadcasting does.
    """
    missing = len(shape) - len(spec.shape)
    strides = []
    for axis in axes:
        place = axis.dim - missing
        strides.append(
            spec.stride[place] * axis.step if place >= 0 and spec.shape[place] != 1 else 0
        )
    return tuple(strides)


def simplify_axes(region: Region) -> Region:
    """The same region with axes of size 1 dropped and neighbours merged.

    Axes are ordered by falling stride within kept and reduced ones. Two neighbours merge when every
    load and store steps over them as over one axis. Where a reduction names positions in the row
    (argmax), reduced axes may merge, and keep their order.
    """
    items = (*region.loads, *region.stores)
    merged = [
        neighbours
        for reduced in (False, True)
        for neighbours in _merge_neighbours(region.axes, _order_axes(region, reduced), items)
    ]
    axes = tuple(
        replace(region.axes[group[-1]], size=prod(region.axes[index].size for index in group))
        for group in merged
    )

    def narrow(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[group[-1]] for group in merged)

    statements = tuple(
        replace(item, strides=narrow(item.strides)) if isinstance(item, Load) else item
        for item in region.statements
    )
    stores = tuple(replace(item, strides=narrow(item.strides)) for item in region.stores)
    return replace(region, axes=axes, statements=statements, stores=stores)


def _order_axes(region: Region, reduced: bool) -> list[int]:
    """Positions of the kept or the reduced axes of more than one step, largest stride first."""
    group = [
        index for index, axis in enumerate(region.axes) if axis.reduced is reduced and axis.size > 1
    ]
    names_positions = any(
        isinstance(statement, Reduce) and statement.kind == "argmax"
        for statement in region.statements
    )
    if not (reduced and names_positions):
        items = (*region.loads, *region.stores)
        lead = max(items, key=lambda item: _extent(region.axes, item.strides))
        # stable: broadcast axes stay in place
        group.sort(key=lambda index: -lead.strides[index])
    return group


def _merge_neighbours(
    axes: Sequence[RegionAxis], group: Sequence[int], items: Sequence[Load | Store]
) -> list[list[int]]:
    """Runs of axes that every load and store steps over as over one."""
    merged: list[list[int]] = []
    for index in group:
        size = axes[index].size
        if merged and all(
            item.strides[merged[-1][-1]] == item.strides[index] * size for item in items
        ):
            merged[-1].append(index)
        else:
            merged.append([index])
    return merged
