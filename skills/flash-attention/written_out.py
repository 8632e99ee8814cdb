"""Attention that a forward writes out: a product, a scale, a mask, a softmax, a product."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kmem.problem.graph import Arg, Node, OpGraph, Ref

from .bands import Band
from .constants import made_for, read_band

_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_SOFTMAX = "aten.softmax.int"
_FILLS = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_ADDS = "aten.add.Tensor"
_CHOOSES = ("aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.self")
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
    band: Band = Band()
    hidden: str | None = None  # a mask that is read: true where a score becomes -inf


@dataclass(frozen=True, slots=True)
class _Mask:
    """The node that masks scores, and what it does to them."""

    node: Node
    scores: Arg
    band: Band = Band()
    constants: frozenset[str] = frozenset()  # nodes that make the mask and that nothing else needs
    hidden: str | None = None


def read_written_out(graph: OpGraph, last: Node) -> WrittenOut | None:
    """The attention that ends in a product; None if it is none that is written in full.

    What lies between its nodes is read nowhere else. A mask is `masked_fill` with -inf, or one of
    constants that is a band: filled, chosen (`where`) or added. Not covered: other masks that are
    chosen or added, dropout.
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
    mask = _read_mask(graph, masked)
    if mask is not None:
        nodes.append(mask.node)
        masked = mask.scores
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
    taken = {node.name for node in nodes} | (mask.constants if mask is not None else set())
    names = tuple(sorted(taken, key=graph.place))
    key, value = turned.args[0].name, last.args[1].name
    band, hidden = (Band(), None) if mask is None else (mask.band, mask.hidden)
    if {query, key, value, hidden} & {*names}:  # a product of one of them and itself
        return None
    return WrittenOut(names, query, key, value, scale, band, hidden)


def _read_mask(graph: OpGraph, masked: Arg) -> _Mask | None:
    """What masks scores before a softmax; None if nothing does that is known."""
    node = graph.node(masked.name) if isinstance(masked, Ref) else None
    if node is None or not _is_inner(graph, node) or node.kwargs:
        return None
    for scores, mask, hides in _ways_to_mask(graph, node):
        band = read_band(graph, mask.name, node.spec, hides)
        if band is not None and graph.spec(scores.name).shape == node.spec.shape:
            band = replace(band, spreads=True, is_added=node.target == _ADDS)
            return _Mask(node, scores, band, frozenset(made_for(graph, mask.name, [node.name])))
    if node.target == _FILLS[0] and node.args[2] == -math.inf:
        return _Mask(node, node.args[0], hidden=node.args[1].name)
    return None


def _ways_to_mask(graph: OpGraph, node: Node) -> Iterator[tuple[Ref, Ref, float]]:
    """Scores, a mask, and what that holds where it hides: each way to see a node as masking."""
    if node.target == _ADDS:
        left, right = node.args[:2]
        ways = [(left, right, -math.inf), (right, left, -math.inf)]
    elif node.target in _FILLS and _is_least(graph, node.args[2]):
        ways = [(node.args[0], node.args[1], True)]
    elif node.target in _CHOOSES:
        condition = node.args[0]
        shown, other = node.args[1:]
        ways = [(shown, condition, False)] if _is_least(graph, other) else []
        ways += [(other, condition, True)] if _is_least(graph, shown) else []
    else:
        ways = []
    for scores, mask, hides in ways:
        if isinstance(scores, Ref) and isinstance(mask, Ref):
            yield scores, mask, hides


def _is_least(graph: OpGraph, arg: Arg) -> bool:
    """Whether a number, or a constant that holds one, is -inf."""
    if isinstance(arg, Ref):
        constant = graph.placeholder(arg.name)
        return constant is not None and constant.kind == "constant" and constant.value == -math.inf
    return arg == -math.inf


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
