"""Attention that a forward writes out: a product, a scale, masks, a softmax or relu, a product.

Between them scores may be cast to fp32, in which the kernels hold them, and probabilities back to
the dtype of the values; a dropout that drops nothing may follow the softmax, a positive number
multiply what relu gives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from kmem.codegen.regions.boxes import is_idle
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.table import lowering_of

from .constants import checks_of
from .masking import Terms, arrange_terms, read_maskings
from .scaling import FLOAT32, PRODUCTS, ReadFactor, is_inner, read_number, read_scaled, widens

_SOFTMAX = "aten.softmax.int"
_RELUS = ("aten.relu.default", "aten.relu_.default")
_CAST, _CAST_AS = "aten.to.dtype", "aten.type_as.default"
_TURNS = ("aten.transpose.int", "aten.permute.default", "aten.swapaxes.default")


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """The nodes of one attention, in graph order, what it reads by name, and its scale."""

    nodes: tuple[str, ...]
    query: str
    key: str  # as rows of keys, before it is turned
    value: str
    scale: float
    factor: ReadFactor | None
    terms: Terms
    activation: str
    gain: float  # of relu


def read_written_out(graph: OpGraph, last: Node) -> WrittenOut | None:
    """The attention that ends in a product; None if it is none that is written in full.

    What lies between its nodes is read nowhere else. A mask of constants that is a band, with -inf
    where it hides, is not read. Not covered: dropout that drops.
    """
    if last.target not in PRODUCTS or not all(isinstance(each, Ref) for each in last.args[:2]):
        return None
    nodes = [last]
    gain, weighing = 1.0, _before(graph, last.args[0].name, nodes, _is_idle)
    if weighing is not None and is_inner(graph, weighing) and read_number(weighing) is not None:
        gain = read_number(weighing) or 1.0
        nodes.append(weighing)
        weighing = _before(graph, weighing.args[0].name, nodes, _is_idle)
    if weighing is None or not is_inner(graph, weighing):
        return None
    is_softmax = gain == 1.0 and _is_softmax(weighing)
    if not is_softmax and weighing.target not in _RELUS:
        return None
    rank = len(weighing.spec.shape)
    nodes.append(weighing)
    scored = _before(graph, weighing.args[0].name, nodes, widens)
    if scored is None:
        return None
    steps = read_maskings(graph, Ref(scored.name), -math.inf if is_softmax else 0.0)
    nodes += [node for step in steps for node in step.nodes]
    scaled = read_scaled(graph, steps[-1].scores if steps else Ref(scored.name))
    terms = arrange_terms(graph, steps[::-1], is_softmax=is_softmax)
    if scaled is None or terms is None:
        return None
    scores, scale = scaled.product, scaled.scale
    nodes += [*scaled.nodes, scores]
    before = [each for each in scores.args[:2] if isinstance(each, Ref)]
    turned = graph.node(before[1].name) if len(before) == 2 else None
    if turned is None or not _turns_last_two(turned, rank) or not isinstance(turned.args[0], Ref):
        return None
    if is_inner(graph, turned):
        nodes.append(turned)
    query = before[0].name
    before_that = graph.node(query)
    if before_that is not None and is_inner(graph, before_that):
        number = read_number(before_that)
        if number is not None:
            scale *= number
            nodes.append(before_that)
            query = before_that.args[0].name
    taken = {node.name for node in nodes} | terms.constants
    taken |= {check for node in nodes[1:] for check in checks_of(graph, node.name)}
    names = tuple(sorted(taken, key=graph.place))
    key, value = turned.args[0].name, last.args[1].name
    read = {each.name for each in (terms.bias, terms.mask, scaled.factor) if each is not None}
    if {query, key, value, *read} & {*names}:  # a product of one of them and itself
        return None
    activation = "softmax" if is_softmax else "relu"
    return WrittenOut(names, query, key, value, scale, scaled.factor, terms, activation, gain)


def _before(
    graph: OpGraph, name: str, nodes: list[Node], is_passed: Callable[[OpGraph, Node], bool]
) -> Node | None:
    """The node that makes a value, before those that are passed, which join the nodes."""
    node = graph.node(name)
    while node is not None and is_passed(graph, node) and is_inner(graph, node):
        nodes.append(node)
        node = graph.node(node.args[0].name)
    return node


def _is_idle(graph: OpGraph, node: Node) -> bool:
    """Whether a node hands probabilities on: a cast, or a dropout that drops nothing."""
    if is_idle(node):
        return lowering_of(graph, node) is not None
    is_cast = node.target in (_CAST, _CAST_AS) and not node.kwargs and len(node.args) == 2
    return is_cast and graph.spec(node.args[0].name).dtype in (node.spec.dtype, "float32")


def _is_softmax(softmax: Node) -> bool:
    """Whether a node is a softmax along keys that computes in what it is given, or in fp32."""
    if softmax.target != _SOFTMAX or softmax.args[1] not in (-1, len(softmax.spec.shape) - 1):
        return False
    asked = [*softmax.args[2:], *softmax.kwargs.values()]
    return all(each in (None, FLOAT32) for each in asked) and {*softmax.kwargs} <= {"dtype"}


def _turns_last_two(node: Node, rank: int) -> bool:
    if node.target not in _TURNS:
        return False
    dims = node.args[1] if node.target == _TURNS[1] else node.args[1:]
    if node.target != _TURNS[1]:
        return {dim % rank for dim in dims} == {rank - 2, rank - 1}
    return tuple(dim % rank for dim in dims) == (*range(rank - 2), rank - 1, rank - 2)
