"""Attention that a forward writes out: a product, a scale, a mask, a softmax, a product."""

import math
from dataclasses import dataclass

from kmem.problem.graph import Node, OpGraph, Ref

_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_SOFTMAX = "aten.softmax.int"
_FILL = "aten.masked_fill.Scalar"
_SCALES = ("aten.mul.Tensor", "aten.div.Tensor")
_TURNS = ("aten.transpose.int", "aten.permute.default", "aten.swapaxes.default")


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """The nodes of one attention, in graph order, what it reads by name, and its scale."""

    nodes: tuple[str, ...]
    query: str
    key: str  # as rows of keys, before it is turned
    value: str
    scale: float
    hidden: str | None = None  # a mask: true where a score becomes -inf


def read_written_out(graph: OpGraph, last: Node) -> WrittenOut | None:
    """The attention that ends in a product; None if it is none that is written in full.

    What lies between its nodes is read nowhere else. A mask is `masked_fill` with -inf. Not
    covered: masks that are added, dropout.
    """
    if last.target not in _PRODUCTS or not all(isinstance(each, Ref) for each in last.args[:2]):
        return None
    softmax = graph.node(last.args[0].name)
    if softmax is None or softmax.target != _SOFTMAX or not _is_inner(graph, softmax):
        return None
    rank = len(softmax.spec.shape)
    if softmax.args[1] not in (-1, rank - 1) or len(softmax.args) > 2 or softmax.kwargs:
        return None
    nodes = [last, softmax]
    masked = softmax.args[0]
    filled = graph.node(masked.name) if isinstance(masked, Ref) else None
    hidden = None
    if filled is not None and filled.target == _FILL and _is_inner(graph, filled):
        if filled.args[2] != -math.inf:
            return None
        nodes.append(filled)
        masked, hidden = filled.args[0], filled.args[1].name
    scores, scale = _unscaled(graph, masked, nodes)
    if scores is None or scores.target not in _PRODUCTS or not _is_inner(graph, scores):
        return None
    nodes.append(scores)
    before = [each for each in scores.args[:2] if isinstance(each, Ref)]
    turned = graph.node(before[1].name) if len(before) == 2 else None
    if turned is None or not _turns_last_two(turned, rank) or not isinstance(turned.args[0], Ref):
        return None
    if _is_inner(graph, turned):
        nodes.append(turned)
    query = before[0].name
    scaled = graph.node(query)
    if scaled is not None and (factor := _factor(scaled)) is not None and _is_inner(graph, scaled):
        scale *= factor
        nodes.append(scaled)
        query = scaled.args[0].name
    nodes.sort(key=lambda node: graph.place(node.name))
    names = tuple(node.name for node in nodes)
    key, value = turned.args[0].name, last.args[1].name
    if {query, key, value, hidden} & {*names}:  # a product of one of them and itself
        return None
    return WrittenOut(names, query, key, value, scale, hidden)


def _unscaled(graph: OpGraph, read: object, nodes: list[Node]) -> tuple[Node | None, float]:
    """What a softmax reads before scales, which join the nodes, and these multiplied."""
    scale = 1.0
    node = graph.node(read.name) if isinstance(read, Ref) else None
    while node is not None and (factor := _factor(node)) is not None and _is_inner(graph, node):
        nodes.append(node)
        scale *= factor
        node = graph.node(node.args[0].name)
    return node, scale


def _factor(node: Node) -> float | None:
    """The number that a node multiplies a value by, or divides it by."""
    if node.target not in _SCALES or len(node.args) != 2 or node.kwargs:
        return None
    value, number = node.args
    if not isinstance(value, Ref) or not isinstance(number, int | float) or number <= 0:
        return None
    return number if node.target == _SCALES[0] else 1 / number


def _is_inner(graph: OpGraph, node: Node) -> bool:
    return node.name not in graph.outputs and len(list(graph.users(node.name))) == 1


def _turns_last_two(node: Node, rank: int) -> bool:
    if node.target not in _TURNS:
        return False
    dims = node.args[1] if node.target == _TURNS[1] else node.args[1:]
    if node.target != _TURNS[1]:
        return {dim % rank for dim in dims} == {rank - 2, rank - 1}
    return tuple(dim % rank for dim in dims) == (*range(rank - 2), rank - 1, rank - 2)
