"""Attention that a forward writes out: a product, a scale, a mask, a softmax, a product.

Between them scores may be cast to fp32, in which the kernels hold them, and probabilities back to
the dtype of the values; a dropout that drops nothing may follow the softmax.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kmem.codegen.regions.boxes import is_idle
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Arg, Literal, Node, OpGraph, Ref
from kmem.problem.operators.table import lowering_of

from .bands import Band
from .constants import checks_of, made_for, read_band

_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_SOFTMAX = "aten.softmax.int"
_FILLS = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_ADDS = "aten.add.Tensor"
_CHOOSES = ("aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.self")
_SCALES = ("aten.mul.Tensor", "aten.div.Tensor")
_CAST, _CAST_AS = "aten.to.dtype", "aten.type_as.default"
_FLOAT32 = Literal("torch.float32")
_TURNS = ("aten.transpose.int", "aten.permute.default", "aten.swapaxes.default")


@dataclass(frozen=True, slots=True)
class ReadMask:
    """A mask that is read: its name, its kind as `Mask` has it, and what fills scores."""

    name: str
    kind: str
    fill: float = -math.inf


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """The nodes of one attention, in graph order, what it reads by name, and its scale."""

    nodes: tuple[str, ...]
    query: str
    key: str  # as rows of keys, before it is turned
    value: str
    scale: float
    band: Band = Band()
    mask: ReadMask | None = None


@dataclass(frozen=True, slots=True)
class _Masking:
    """The node that masks scores, and what it does to them."""

    node: Node
    scores: Arg
    band: Band = Band()
    constants: frozenset[str] = frozenset()  # nodes that make the mask and that nothing else needs
    mask: ReadMask | None = None


def read_written_out(graph: OpGraph, last: Node) -> WrittenOut | None:
    """The attention that ends in a product; None if it is none that is written in full.

    What lies between its nodes is read nowhere else. A mask is filled, chosen (`where`) or added;
    one of constants that is a band, with -inf where it hides, is not read. Not covered: several
    masks, dropout that drops.
    """
    if last.target not in _PRODUCTS or not all(isinstance(each, Ref) for each in last.args[:2]):
        return None
    nodes = [last]
    softmax = _before(graph, last.args[0].name, nodes, _is_idle)
    if softmax is None or softmax.target != _SOFTMAX or not _is_inner(graph, softmax):
        return None
    rank = len(softmax.spec.shape)
    if softmax.args[1] not in (-1, rank - 1) or not _is_softmax_of_floats(softmax):
        return None
    nodes.append(softmax)
    scored = _before(graph, softmax.args[0].name, nodes, _widens)
    if scored is None:
        return None
    masked: Arg = Ref(scored.name)
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
    taken |= {check for node in nodes[1:] for check in checks_of(graph, node.name)}
    names = tuple(sorted(taken, key=graph.place))
    key, value = turned.args[0].name, last.args[1].name
    band, read = (Band(), None) if mask is None else (mask.band, mask.mask)
    if {query, key, value, read and read.name} & {*names}:  # a product of one of them and itself
        return None
    return WrittenOut(names, query, key, value, scale, band, read)


def _before(
    graph: OpGraph, name: str, nodes: list[Node], is_passed: Callable[[OpGraph, Node], bool]
) -> Node | None:
    """The node that makes a value, before those that are passed, which join the nodes."""
    node = graph.node(name)
    while node is not None and is_passed(graph, node) and _is_inner(graph, node):
        nodes.append(node)
        node = graph.node(node.args[0].name)
    return node


def _is_idle(graph: OpGraph, node: Node) -> bool:
    """Whether a node hands probabilities on: a cast, or a dropout that drops nothing."""
    if is_idle(node):
        return lowering_of(graph, node) is not None
    is_cast = node.target in (_CAST, _CAST_AS) and not node.kwargs and len(node.args) == 2
    return is_cast and graph.spec(node.args[0].name).dtype in (node.spec.dtype, "float32")


def _widens(graph: OpGraph, node: Node) -> bool:
    """Whether a node casts scores to fp32."""
    is_cast = node.target == _CAST and not node.kwargs and node.args[1:] == (_FLOAT32,)
    return is_cast and graph.spec(node.args[0].name).dtype in FLOATS


def _is_softmax_of_floats(softmax: Node) -> bool:
    """Whether a softmax computes in what it is given, or in fp32."""
    asked = [*softmax.args[2:], *softmax.kwargs.values()]
    return all(each in (None, _FLOAT32) for each in asked) and {*softmax.kwargs} <= {"dtype"}


def _read_mask(graph: OpGraph, masked: Arg) -> _Masking | None:
    """What masks scores before a softmax; None if nothing does that is known."""
    node = graph.node(masked.name) if isinstance(masked, Ref) else None
    if node is None or not _is_inner(graph, node) or node.kwargs:
        return None
    for scores, mask in _ways_to_mask(graph, node):
        if graph.spec(scores.name).shape != node.spec.shape or not _is_scored(graph, scores.name):
            continue
        if mask.fill == -math.inf:
            hides = {"added": -math.inf, "shows": False, "hides": True}[mask.kind]
            band = read_band(graph, mask.name, node.spec, hides)
            if band is not None:
                band = replace(band, spreads=True, is_added=mask.kind == "added")
                constants = frozenset(made_for(graph, mask.name, [node.name]))
                return _Masking(node, scores, band, constants)
        return _Masking(node, scores, mask=mask)
    return None


def _is_scored(graph: OpGraph, name: str) -> bool:
    """Whether a value is a product, scaled or cast."""
    node, _ = _unscaled(graph, Ref(name), [])
    return node is not None and node.target in _PRODUCTS


def _ways_to_mask(graph: OpGraph, node: Node) -> Iterator[tuple[Ref, ReadMask]]:
    """Scores and a mask: each way to see a node as masking."""
    ways: list[tuple[Arg, Arg, str, float | None]] = []
    if node.target == _ADDS:
        left, right = node.args[:2]
        ways = [(left, right, "added", -math.inf), (right, left, "added", -math.inf)]
    elif node.target in _FILLS:
        ways = [(node.args[0], node.args[1], "hides", _number(graph, node.args[2]))]
    elif node.target in _CHOOSES:
        condition = node.args[0]
        shown, other = node.args[1:]
        ways = [(shown, condition, "shows", _number(graph, other))]
        ways += [(other, condition, "hides", _number(graph, shown))]
    for scores, mask, kind, fill in ways:
        if isinstance(scores, Ref) and isinstance(mask, Ref) and fill is not None:
            yield scores, ReadMask(mask.name, kind, fill)


def _number(graph: OpGraph, arg: Arg) -> float | None:
    """A number below infinity, also where a constant holds it; None for another value."""
    if isinstance(arg, Ref):
        constant = graph.placeholder(arg.name)
        arg = constant.value if constant is not None and constant.kind == "constant" else None
    return float(arg) if isinstance(arg, int | float) and arg < math.inf else None


def _unscaled(graph: OpGraph, read: object, nodes: list[Node]) -> tuple[Node | None, float]:
    """What a softmax reads before scales and casts, which join the nodes; the scales multiplied."""
    scale = 1.0
    node = graph.node(read.name) if isinstance(read, Ref) else None
    while node is not None and _is_inner(graph, node):
        factor = 1.0 if _widens(graph, node) else _factor(node)
        if factor is None:
            break
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
    users = {user.name for user in graph.users(node.name)} - checks_of(graph, node.name)
    return node.name not in graph.outputs and len(users) == 1


def _turns_last_two(node: Node, rank: int) -> bool:
    if node.target not in _TURNS:
        return False
    dims = node.args[1] if node.target == _TURNS[1] else node.args[1:]
    if node.target != _TURNS[1]:
        return {dim % rank for dim in dims} == {rank - 2, rank - 1}
    return tuple(dim % rank for dim in dims) == (*range(rank - 2), rank - 1, rank - 2)
