"""Exponentials of sums along a chunk, in the spellings that forwards give them.

With t the running sums of a along an axis: exp(t) from the start of a chunk, exp(t[-1] - t) to its
end, and from any place to any later one exp(t[i] - t[j]), which is 0 above the diagonal.
"""

import math
from dataclasses import dataclass

from kmem.problem.graph import Node, OpGraph, Ref

from .terms import View, read_view

_EXP, _SUB = "aten.exp.default", "aten.sub.Tensor"
_FILLS = {"aten.masked_fill.Scalar": (0, 1), "aten.where.ScalarOther": (1, 0)}
_NOTS = ("aten.bitwise_not.default", "aten.logical_not.default")


@dataclass(frozen=True, slots=True)
class Decay:
    """An exponential of sums of `source` along its `axis`.

    `kind`: "start", "end", "between" or "chunk" (the sum of all places of `axis`, which the value
    lacks). `dims`: of the source, for each dimension of the value; None for a size of one that was
    put in. Of "between" `row` and `column` are the places of the later and the earlier end. `fixed`
    holds other dimensions of which one place is seen.
    """

    kind: str
    source: str
    axis: int
    dims: tuple[int | None, ...]
    row: int = -1
    column: int = -1
    fixed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A view of running sums of `source` along `axis`."""

    source: str
    axis: int
    view: View


def read_decay(graph: OpGraph, name: str) -> Decay | None:
    """The decay that a value is, through unsqueeze and turns behind it; None if it is none."""
    outer = read_view(graph, name)
    node = graph.node(outer.base)
    if node is None or node.target != _EXP or outer.fixed:
        return None
    found = _read_exponent(graph, node.args[0].name)
    if found is None or outer.dims == tuple(range(len(node.spec.shape))):
        return found
    if found.kind == "between":
        return None
    dims = tuple(None if each is None else found.dims[each] for each in outer.dims)
    return Decay(found.kind, found.source, found.axis, dims, fixed=found.fixed)


def read_running(graph: OpGraph, name: str) -> Running | None:
    """Running sums, or a view of them."""
    view = read_view(graph, name)
    node = graph.node(view.base)
    if node is None or node.target != "aten.cumsum.default" or node.kwargs or len(node.args) != 2:
        return None
    source = node.args[0].name
    if graph.spec(source).dtype != node.spec.dtype:
        return None  # a sum of integers, say
    return Running(source, node.args[1] % len(node.spec.shape), view)


def _read_exponent(graph: OpGraph, name: str) -> Decay | None:
    running = read_running(graph, name)
    if running is not None:
        return _of_one_sum(graph, running)
    node = graph.node(name)
    if node is None:
        return None
    if node.target == _SUB:
        return _to_the_end(graph, node)
    return _between(graph, node) if node.target in _FILLS else None


def _of_one_sum(graph: OpGraph, running: Running) -> Decay | None:
    """exp of running sums, or of the last of each chunk."""
    fixed = dict(running.view.fixed)
    if running.axis not in fixed:
        if fixed:
            return None
        return Decay("start", running.source, running.axis, running.view.dims)
    if fixed.pop(running.axis) != graph.spec(running.source).shape[running.axis] - 1:
        return None
    others = tuple(sorted(fixed.items()))
    return Decay("chunk", running.source, running.axis, running.view.dims, fixed=others)


def _two_sums(graph: OpGraph, node: Node) -> tuple[Running, Running] | None:
    """What is subtracted from what, of the same running sums."""
    if node.kwargs or not all(isinstance(each, Ref) for each in node.args):
        return None
    one, other = (read_running(graph, each.name) for each in node.args)
    if one is None or other is None or (one.source, one.axis) != (other.source, other.axis):
        return None
    rank = len(node.spec.shape)
    if len(one.view.dims) != rank or len(other.view.dims) != rank:
        return None
    return one, other


def _to_the_end(graph: OpGraph, node: Node) -> Decay | None:
    """exp(t[-1] - t)."""
    pair = _two_sums(graph, node)
    if pair is None:
        return None
    last, every = pair
    end = graph.spec(last.source).shape[last.axis] - 1
    if dict(last.view.fixed) != {last.axis: end} or every.view.fixed:
        return None
    same = zip(last.view.dims, every.view.dims, strict=True)
    if any(one != other and other != last.axis for one, other in same):
        return None
    return Decay("end", last.source, last.axis, every.view.dims)


def _between(graph: OpGraph, node: Node) -> Decay | None:
    """exp(t[i] - t[j]) where i >= j, else 0."""
    place, hiding = _FILLS[node.target]
    value, mask = node.args[place], node.args[1 - place]
    other = node.args[2]
    if other != -math.inf or not isinstance(value, Ref) or not isinstance(mask, Ref):
        return None
    difference = graph.node(value.name)
    if difference is None or difference.target != _SUB or difference.spec.shape != node.spec.shape:
        return None
    pair = _two_sums(graph, difference)
    if pair is None or any(each.view.fixed for each in pair):
        return None
    later, earlier = (each.view.dims for each in pair)
    axis = pair[0].axis
    if later.count(axis) != 1 or earlier.count(axis) != 1:
        return None
    row, column = later.index(axis), earlier.index(axis)
    if row == column or later[column] is not None or earlier[row] is not None:
        return None
    dims = [one if one is not None else other for one, other in zip(later, earlier, strict=True)]
    kept = [
        one == other
        for place, (one, other) in enumerate(zip(later, earlier, strict=True))
        if place not in (row, column)
    ]
    if not all(kept) or not _is_diagonal(graph, mask.name, len(dims), (row, column), bool(hiding)):
        return None
    return Decay("between", pair[0].source, axis, tuple(dims), row, column)


def _is_diagonal(graph: OpGraph, name: str, rank: int, ends: tuple[int, int], hides: bool) -> bool:
    """Whether a mask parts what is on and below the diagonal from what is above it.

    Args:
        rank: of what is masked.
        ends: its dimensions of the later and the earlier end.
        hides: whether the mask is true above the diagonal.
    """
    view = read_view(graph, name)
    node = graph.node(view.base)
    if node is not None and node.target in _NOTS and isinstance(node.args[0], Ref):
        inner = read_view(graph, node.args[0].name)
        if view.fixed or inner.fixed:
            return False
        dims = tuple(None if each is None else inner.dims[each] for each in view.dims)
        view, hides = View(inner.base, dims), not hides
        node = graph.node(inner.base)
    if node is None or view.fixed or node.target not in ("aten.tril.default", "aten.triu.default"):
        return False
    ones = graph.node(node.args[0].name)
    diagonal = node.args[1] if len(node.args) > 1 else node.kwargs.get("diagonal", 0)
    wanted = ("aten.triu.default", 1) if hides else ("aten.tril.default", 0)
    if ones is None or ones.target != "aten.ones.default" or (node.target, diagonal) != wanted:
        return False
    missing = rank - len(view.dims)
    places = {each: place + missing for place, each in enumerate(view.dims) if each is not None}
    return places == {0: ends[0], 1: ends[1]}
