"""From an element of a value to the element that it is of what the value was made of.

`step_back` makes of an index (indices.py) into a result that into its source: a slice scales it, a
transposition orders it anew, a reshape takes it apart and puts it together; a concatenation or a
padding asks for boxes each of which lies in one part.

Example: of x[..., ::2], place a along the last axis is element 2 a of x; of cat((-right, left), -1)
places 0 to D/2 - 1 are elements of -right, and the others of left, each less D/2.
"""

from collections.abc import Callable, Sequence
from math import prod

from kmem.codegen.regions.indices import (
    MOST_PARTS,
    Index,
    NeedsCut,
    Place,
    between,
    broadcast,
    digit,
    reshaped,
)
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Call, Fill, Layout
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import TensorSpec


def moves_elements(graph: OpGraph, node: Node) -> bool:
    """Whether a node is one that `step_back` knows.

    Each of its elements is one of its inputs', or a number. Of an operator with several results,
    their getitems count with it.
    """
    lowering = lowering_of(graph, node)
    if lowering is Layout.TAKE:
        maker = graph.node(node.args[0].name)
        return maker is not None and lowering_of(graph, maker) in _TAKEN
    if lowering in (Layout.CONCATENATE, Layout.STACK):
        return 0 < len(parts_of(graph, node)) <= MOST_PARTS
    if lowering in _TAKEN:
        return True
    # a reduction that reduces nothing may have several results, too
    is_one = isinstance(node.output, TensorSpec)
    return is_one and (lowering in _BACK or lowering is Layout.PAD or isinstance(lowering, Fill))


def rearranges(graph: OpGraph, node: Node) -> bool:
    """Whether eager writes a node's elements to other places than those that it reads them from.

    A kernel that reads them where they are, or computes them where they go, saves that copy.
    """
    return lowering_of(graph, node) in _REARRANGING and moves_elements(graph, node)


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


def step_back(
    graph: OpGraph, node: Node, index: Index, sizes: Sequence[int]
) -> tuple[str, Index] | float:
    """The value that elements of a node are elements of, and the index into it; or their number.

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
    if isinstance(lowering, Fill):
        return lowering.number
    call = find_operator(node.target).call(graph, node)
    source = call.value("x")
    assert source is not None, "layout operators have a tensor"
    if lowering is Layout.PAD:
        inside = _into_padded(call, index, sizes)
        return float(call["value"] or 0.0) if inside is None else (source, inside)
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
            found += reshaped(index[first:left], *group, sizes)
    return tuple(found)


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


def _through_nearest(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    """Each element stands for as many in a row as the result is longer."""
    pairs = zip(call.node.spec.shape, call.spec("x").shape, strict=True)
    return tuple(
        place if made == size else digit(place, made // size, sizes)[0]
        for place, (made, size) in zip(index, pairs, strict=True)
    )


def _through_shuffle(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    """Channel c * f * f + i * f + j of the source is element (i, j) of the blocks of channel c."""
    factor, before = call["factor"], index[:-3]
    channel, *image = index[-3:]
    blocks = [digit(place, factor, sizes) for place in image]
    merged = channel.moved(0, factor * factor)
    for (_, inner), scale in zip(blocks, (factor, 1), strict=True):
        merged = _added(merged, inner.moved(0, scale))
    return (*before, merged, *(outer for outer, _ in blocks))


def _through_unshuffle(call: Call, index: Index, sizes: Sequence[int]) -> Index:
    """Channel c * f * f + i * f + j of the result is element (i, j) of channel c's blocks."""
    factor, before = call["factor"], index[:-3]
    channel, *image = index[-3:]
    source, block = digit(channel, factor * factor, sizes)
    inner = digit(block, factor, sizes)
    moved = (_added(place.moved(0, factor), at) for place, at in zip(image, inner, strict=True))
    return (*before, source, *moved)


def _added(one: Place, other: Place) -> Place:
    steps = tuple(map(sum, zip(one.steps, other.steps, strict=True)))
    return Place(one.offset + other.offset, steps)


_BACK: dict[object, Callable[[Call, Index, Sequence[int]], Index]] = {
    Layout.IDENTITY: _through_identity,
    Layout.RESHAPE: _through_reshape,
    Layout.SWAP: _through_swap,
    Layout.PERMUTE: _through_permute,
    Layout.NARROW: _through_narrow,
    Layout.SLICE: _through_slice,
    Layout.SELECT: _through_select,
    Layout.NEAREST: _through_nearest,
    Layout.SHUFFLE: _through_shuffle,
    Layout.UNSHUFFLE: _through_unshuffle,
}
#: Operators that copy, each element to another place.
_REARRANGING = (
    Layout.CONCATENATE,
    Layout.STACK,
    Layout.PAD,
    Layout.NEAREST,
    Layout.SHUFFLE,
    Layout.UNSHUFFLE,
)
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


def _into_padded(call: Call, index: Index, sizes: Sequence[int]) -> Index | None:
    """The index into what is padded; None for a box of the padding."""
    shape = call.spec("x").shape
    before = [0] * len(shape)
    for number, size in enumerate(call["pad"][::2]):  # pairs, of the last dimension first
        before[-1 - number] = size
    starts = list(zip(index, before, shape, strict=True))
    if any(
        place.last(sizes) < start or place.offset >= start + size for place, start, size in starts
    ):
        return None
    for place, start, size in starts:
        if place.offset < start or place.last(sizes) >= start + size:
            edges = [edge for edge in (start, start + size) if edge > place.offset]
            raise NeedsCut(between(place, edges, sizes))
    return tuple(place.moved(-start) for place, start, _ in starts)


def _into_part(graph: OpGraph, node: Node, index: Index, sizes: Sequence[int]) -> tuple[str, Index]:
    call = find_operator(node.target).call(graph, node)
    dim, parts = call["dim"] % len(node.spec.shape), parts_of(graph, node)
    is_stack = lowering_of(graph, node) is Layout.STACK
    lengths = [1 if is_stack else graph.spec(name).shape[dim] for name in parts]
    starts = [sum(lengths[:number]) for number in range(len(parts))]
    number = max(number for number, start in enumerate(starts) if start <= index[dim].offset)
    if index[dim].last(sizes) >= starts[number] + lengths[number]:
        inside = [start for start in starts if index[dim].offset < start]
        raise NeedsCut(between(index[dim], inside, sizes))
    if is_stack:
        return parts[number], (*index[:dim], *index[dim + 1 :])
    moved = list(index)
    moved[dim] = moved[dim].moved(-starts[number])
    return parts[number], tuple(moved)
