"""Attention that a forward writes out: a product, a scale, masks, a softmax, a product.

Between them scores may be cast to fp32, in which the kernels hold them, and probabilities back to
the dtype of the values; a dropout that drops nothing may follow the softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kmem.codegen.regions.boxes import is_idle
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.table import lowering_of

from .constants import checks_of
from .masking import Terms, arrange_terms, read_maskings
from .scaling import FLOAT32, PRODUCTS, ReadFactor, is_inner, read_number, read_scaled, widens

_SOFTMAX = "aten.softmax.int"
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


def read_written_out(graph: OpGraph, last: Node) -> WrittenOut | None:
    """The attention that ends in a product; None if it is none that is written in full.

    What lies between its nodes is read nowhere else. A mask of constants that is a band, with -inf
    where it hides, is not read. Not covered: dropout that drops.
    """
    if last.target not in PRODUCTS or not all(isinstance(each, Ref) for each in last.args[:2]):
        return None
    nodes = [last]
    softmax = _before(graph, last.args[0].name, nodes, _is_idle)
    if softmax is None or softmax.target != _SOFTMAX or not is_inner(graph, softmax):
        return None
    rank = len(softmax.spec.shape)
    if softmax.args[1] not in (-1, rank - 1) or not _is_softmax_of_floats(softmax):
        return None
    nodes.append(softmax)
    scored = _before(graph, softmax.args[0].name, nodes, widens)
    if scored is None:
        return None
    steps = read_maskings(graph, Ref(scored.name))
    nodes += [node for step in steps for node in step.nodes]
    scaled = read_scaled(graph, steps[-1].scores if steps else Ref(scored.name))
    terms = arrange_terms(graph, steps[::-1])
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
    return WrittenOut(names, query, key, value, scale, scaled.factor, terms)


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


def _is_softmax_of_floats(softmax: Node) -> bool:
    """Whether a softmax computes in what it is given, or in fp32."""
    asked = [*softmax.args[2:], *softmax.kwargs.values()]
    return all(each in (None, FLOAT32) for each in asked) and {*softmax.kwargs} <= {"dtype"}


def _turns_last_two(node: Node, rank: int) -> bool:
    if node.target not in _TURNS:
        return False
    dims = node.args[1] if node.target == _TURNS[1] else node.args[1:]
    if node.target != _TURNS[1]:
        return {dim % rank for dim in dims} == {rank - 2, rank - 1}
    return tuple(dim % rank for dim in dims) == (*range(rank - 2), rank - 1, rank - 2)
