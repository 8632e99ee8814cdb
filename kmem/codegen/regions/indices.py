"""Where an element of a value comes from: its index, taken back through views and concatenations.

A result that is put together from parts is computed box by box. An element of a box is named by its
place along each axis of the box; an index says where that is along each dimension of a value, as an
offset and one step per axis. `step_back` makes of an index into a view that into its source: a
slice scales it, a transposition orders it anew, a reshape takes it apart and puts it together. What
no such index can say needs smaller boxes, which `NeedsCut` says; what no box can, is `NotAffine`.

Example: of x[..., ::2], place a along the last axis is element 2 a of x; of cat((-right, left), -1)
places 0 to D/2 - 1 are elements of -right, and the others of left, each less D/2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Call, Layout
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import TensorSpec

#: Parts of one value that are told apart.
MOST_PARTS = 16


class NotAffine(Exception):
    """An index cannot be said by an offset and one step per axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a box has to be cut along an axis: into ranges from these `starts` on, or into runs.

    With `inner` the axis becomes two: runs of so many elements, and the places in a run.
    """

    axis: int
    starts: tuple[int, ...] = ()
    inner: int = 0


class NeedsCut(Exception):
    """A box is to be cut before an index can be said."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.cut = cut


@dataclass(frozen=True, slots=True)
class Place:
    """Where along one dimension: `offset` plus the place along each axis of a box times its step.

    Along axes of one element, steps are 0.
    """

    offset: int
    steps: tuple[int, ...]

    def last(self, sizes: Sequence[int]) -> int:
        """The largest place of a box of these sizes."""
        return self.offset + sum(
            step * (size - 1) for step, size in zip(self.steps, sizes, strict=True)
        )

    def moved(self, by: int, factor: int = 1) -> "Place":
        """by + factor times this place."""
        steps = tuple(factor * step for step in self.steps)
        return Place(by + factor * self.offset, steps)


#: One place per dimension of a value.
Index: TypeAlias = tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Elements of a value: how many along each axis, and where each of them is."""

    sizes: tuple[int, ...]
    index: Index

    def cut(self, cut: Cut) -> "list[Box]":
        """The boxes that this one falls into."""
        if cut.inner:
            return [self._cut_into_runs(cut.axis, cut.inner)]
        ends = (*cut.starts, self.sizes[cut.axis])
        return [
            self._range(cut.axis, start, end)
            for start, end in zip((0, *cut.starts), ends, strict=True)
        ]

    def without_single_axes(self) -> "Box":
        """The same elements, without axes of one element."""
        axes = [axis for axis, size in enumerate(self.sizes) if size > 1]

        def narrow(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[axis] for axis in axes)

        index = tuple(replace(place, steps=narrow(place.steps)) for place in self.index)
        return Box(narrow(self.sizes), index)

    def _range(self, axis: int, start: int, end: int) -> "Box":
        sizes = (*self.sizes[:axis], end - start, *self.sizes[axis + 1 :])
        moved = tuple(place.moved(place.steps[axis] * start) for place in self.index)
        if end - start == 1:
            moved = tuple(
                replace(place, steps=(*place.steps[:axis], 0, *place.steps[axis + 1 :]))
                for place in moved
            )
        return Box(sizes, moved)

    def _cut_into_runs(self, axis: int, inner: int) -> "Box":
        runs = self.sizes[axis] // inner
        sizes = (*self.sizes[:axis], runs, inner, *self.sizes[axis + 1 :])

        def parted(place: Place) -> Place:
            step = place.steps[axis]
            steps = step * inner if runs > 1 else 0, step
            return replace(place, steps=(*place.steps[:axis], *steps, *place.steps[axis + 1 :]))

        return Box(sizes, tuple(map(parted, self.index)))


def whole_box(shape: Sequence[int]) -> Box:
    """All elements of a value, with an axis for each of its dimensions."""
    places = [
        Place(0, tuple(int(size > 1 and axis == dim) for axis in range(len(shape))))
        for dim, size in enumerate(shape)
    ]
    return Box(tuple(shape), tuple(places))


def broadcast(index: Index, shape: Sequence[int], sizes: Sequence[int]) -> Index:
    """The index into an operand of a shape that broadcasts from the right."""
    nowhere = Place(0, (0,) * len(sizes))
    dims = index[len(index) - len(shape) :] if shape else ()
    return tuple(nowhere if size == 1 else place for place, size in zip(dims, shape, strict=True))


def moves_elements(graph: OpGraph, node: Node) -> bool:
    """Whether a node is one that `step_back` knows: each of its elements is one of its inputs'.

    Of an operator with several results, their getitems count with it.
    """
    lowering = lowering_of(graph, node)
    if lowering is Layout.TAKE:
        maker = graph.node(node.args[0].name)
        return maker is not None and lowering_of(graph, maker) in _TAKEN
    if lowering in (Layout.CONCATENATE, Layout.STACK):
        return 0 < len(parts_of(graph, node)) <= MOST_PARTS
    # a reduction that reduces nothing may have several results, too
    return lowering in _TAKEN or (lowering in _BACK and isinstance(node.output, TensorSpec))


def puts_together(graph: OpGraph, node: Node) -> bool:
    """Whether a node makes one value of several parts."""
    return lowering_of(graph, node) in (Layout.CONCATENATE, Layout.STACK) and moves_elements(
        graph, node
    )


def parts_of(graph: OpGraph, node: Node) -> list[str]:
    """What a concatenation or a stack puts together, without parts that have no elements."""
    tensors = find_operator(node.target).call(graph, node)["tensors"]
    if not isinstance(tensors, tuple):
        return []
    parts = [part.name for part in tensors if isinstance(part, Ref)]
    return [name for name in parts if graph.spec(name).numel > 0]


def step_back(graph: OpGraph, node: Node, index: Index, sizes: Sequence[int]) -> tuple[str, Index]:
    """The value that elements of a node are elements of, and the index into it.

    Args:
        node: one that `moves_elements`.
        index: into the node's result, of a box of these sizes.
    Raises NeedsCut: if not all elements of the box come from one part, or in steps.
    Raises NotAffine: if no cut helps.
    """
    lowering = lowering_of(graph, node)
    if lowering in (Layout.CONCATENATE, Layout.STACK):
        return _into_part(graph, node, index, sizes)
    if lowering is Layout.TAKE:
        return _into_taken(graph, node, index, sizes)
    call = find_operator(node.target).call(graph, node)
    source = call.value("x")
    assert source is not None, "layout operators have a tensor"
    return source, _BACK[lowering](call, index, sizes)


# --- one source


def _through_identity(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    made, source = call.node.spec, call.spec("x")
    if made.numel == source.numel:  # dimensions of one element may come or go
        return _through_reshape(call, index, sizes)
    return broadcast(index, source.shape, sizes)


def _through_reshape(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    """Dimensions that one side has merged, and the other has apart, are taken group by group."""
    made, source = call.node.spec.shape, call.spec("x").shape
    found: list[Place] = []
    left, right = 0, 0
    while left < len(made) or right < len(source):
        first, second = left, right
        left, right = min(left + 1, len(made)), min(right + 1, len(source))
        while prod(made[first:left]) != prod(source[second:right]):
            if prod(made[first:left]) < prod(source[second:right]):
                left += 1
            else:
                right += 1
        group = made[first:left], source[second:right]
        if group[0] == group[1]:
            found += index[first:left]
        else:
            found += _reshaped(index[first:left], *group, sizes)
    return tuple(found)


def _reshaped(
    index: Index, made: Sequence[int], source: Sequence[int], sizes: Sequence[int]
) -> list[Place]:
    """Places along other dimensions of as many elements."""
    rest = Place(0, (0,) * len(sizes))
    for place, size in zip(index, made, strict=True):
        scaled = rest.moved(place.offset, size)
        rest = replace(scaled, steps=tuple(map(sum, zip(scaled.steps, place.steps, strict=True))))
    found = []
    for dim in range(len(source)):
        place, rest = _digit(rest, prod(source[dim + 1 :]), sizes)
        found.append(place)
    return found


def _digit(number: Place, base: int, sizes: Sequence[int]) -> tuple[Place, Place]:
    """number // base and number % base."""
    above, below = [0] * len(sizes), [0] * len(sizes)
    for axis, (step, size) in enumerate(zip(number.steps, sizes, strict=True)):
        if step % base == 0:
            above[axis] = step // base
        elif step * (size - 1) < base:
            below[axis] = step
        elif base % step == 0 and size % (base // step) == 0:
            raise NeedsCut(Cut(axis, inner=base // step))
        else:
            raise NotAffine
    rest = Place(number.offset % base, tuple(below))
    if rest.last(sizes) >= base:
        raise NotAffine
    return Place(number.offset // base, tuple(above)), rest


def _through_swap(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    swapped = list(index)
    if len(index) < 2:  # the transpose of a vector is that vector
        return index
    first, second = (-2, -1) if call["dim0"] is None else (call["dim0"], call["dim1"])
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _through_permute(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    rank = len(index)
    placed = {dim % rank: place for dim, place in zip(call["dims"], index, strict=True)}
    return tuple(placed[dim] for dim in range(rank))


def _through_narrow(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    return _sliced(index, call["dim"], call["start"], call.spec("x").shape)


def _through_slice(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    return _sliced(index, call["dim"], call["start"] or 0, call.spec("x").shape, call["step"])


def _sliced(index: Index, dim: int, start: int, shape: Sequence[int], step: int = 1) -> Index:
    moved, size = list(index), shape[dim]
    first = min(max(start + size if start < 0 else start, 0), size)
    moved[dim] = moved[dim].moved(first, step)
    return tuple(moved)


def _through_select(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    shape = call.spec("x").shape
    dim = call["dim"] % len(shape)
    return _with_dim(index, dim, call["index"] % shape[dim], sizes)


def _with_dim(index: Index, dim: int, place: int, sizes: Sequence[int]) -> Index:
    return (*index[:dim], Place(place, (0,) * len(sizes)), *index[dim:])


_BACK: dict[object, Callable[[Call, Index, Sequence[int]], Index]] = {
    Layout.IDENTITY: _through_identity,
    Layout.RESHAPE: _through_reshape,
    Layout.SWAP: _through_swap,
    Layout.PERMUTE: _through_permute,
    Layout.NARROW: _through_narrow,
    Layout.SLICE: _through_slice,
    Layout.SELECT: _through_select,
}
#: Operators with several results, each a part of the first input.
_TAKEN = (Layout.SPLIT, Layout.UNBIND)


def _into_taken(
    graph: OpGraph, node: Node, index: Index, sizes: Sequence[int]
) -> tuple[str, Index]:
    maker, place = graph.node(node.args[0].name), node.args[1]
    call = find_operator(maker.target).call(graph, maker)
    source = call.value("x")
    assert source is not None, "what is split is a tensor"
    dim = call["dim"] % len(graph.spec(source).shape)
    if lowering_of(graph, maker) is Layout.UNBIND:
        return source, _with_dim(index, dim, place, sizes)
    moved = list(index)
    moved[dim] = moved[dim].moved(sum(spec.shape[dim] for spec in maker.output[:place]))
    return source, tuple(moved)


# --- one of several parts


def _into_part(graph: OpGraph, node: Node, index: Index, sizes: Sequence[int]) -> tuple[str, Index]:
    call = find_operator(node.target).call(graph, node)
    dim, parts = call["dim"] % len(node.spec.shape), parts_of(graph, node)
    is_stack = lowering_of(graph, node) is Layout.STACK
    lengths = [1 if is_stack else graph.spec(name).shape[dim] for name in parts]
    starts = [sum(lengths[:number]) for number in range(len(parts))]
    number = max(number for number, start in enumerate(starts) if start <= index[dim].offset)
    if index[dim].last(sizes) >= starts[number] + lengths[number]:
        inside = [start for start in starts if index[dim].offset < start]
        raise NeedsCut(_between(index[dim], inside, sizes))
    if is_stack:
        return parts[number], (*index[:dim], *index[dim + 1 :])
    moved = list(index)
    moved[dim] = moved[dim].moved(-starts[number])
    return parts[number], tuple(moved)


def _between(place: Place, starts: Sequence[int], sizes: Sequence[int]) -> Cut:
    """The cut of a box that parts lie on both sides of, along the axis of the largest step."""
    last = place.last(sizes)
    axis = max(range(len(sizes)), key=lambda each: place.steps[each])
    step = place.steps[axis]
    within = last - place.offset - step * (sizes[axis] - 1)  # how far the other axes reach
    found: list[int] = []
    for start in starts:
        if start > last:
            break
        count = -((place.offset - start) // step)  # the first whose elements lie behind
        if place.offset + step * (count - 1) + within >= start:
            raise NotAffine
        if count not in found:
            found.append(count)
    if len(found) >= MOST_PARTS:
        raise NotAffine
    return Cut(axis, tuple(found))
