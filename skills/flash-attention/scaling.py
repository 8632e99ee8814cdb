"""Products before they are masked: what they are multiplied by, number or tensor, and casts."""

from dataclasses import dataclass

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Literal, Node, OpGraph, Ref

from .constants import checks_of

PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_SCALES = ("aten.mul.Tensor", "aten.div.Tensor")
_CAST = "aten.to.dtype"
FLOAT32 = Literal("torch.float32")


@dataclass(frozen=True, slots=True)
class ReadFactor:
    """What all scores of a head are multiplied by, or divided by: its name."""

    name: str
    divides: bool


@dataclass(frozen=True, slots=True)
class Scaled:
    """A product, the nodes of scales and casts behind it, the last first, and the scales."""

    product: Node
    nodes: tuple[Node, ...]
    scale: float
    factor: ReadFactor | None


def read_scaled(graph: OpGraph, read: object) -> Scaled | None:
    """The product that a value is, or that it scales or casts to fp32; None if it is none.

    Of the scales one may be a tensor, the same for all scores of a head.
    """
    scale, factor = 1.0, None
    nodes: list[Node] = []
    node = graph.node(read.name) if isinstance(read, Ref) else None
    while node is not None and is_inner(graph, node) and node.target not in PRODUCTS:
        number = 1.0 if widens(graph, node) else read_number(node)
        source = node.args[0] if node.args else None
        if number is None:
            found = None if factor is not None else _read_factor(graph, node)
            if found is None:
                return None
            source, factor = found
            number = 1.0
        nodes.append(node)
        scale *= number
        node = graph.node(source.name)
    if node is None or node.target not in PRODUCTS or not is_inner(graph, node):
        return None
    return Scaled(node, tuple(nodes), scale, factor)


def read_number(node: Node) -> float | None:
    """The number that a node multiplies a value by, or divides it by."""
    if node.target not in _SCALES or len(node.args) != 2 or node.kwargs:
        return None
    value, number = node.args
    if not isinstance(value, Ref) or not isinstance(number, int | float) or number <= 0:
        return None
    return number if node.target == _SCALES[0] else 1 / number


def widens(graph: OpGraph, node: Node) -> bool:
    """Whether a node casts scores to fp32."""
    is_cast = node.target == _CAST and not node.kwargs and node.args[1:] == (FLOAT32,)
    return is_cast and graph.spec(node.args[0].name).dtype in FLOATS


def is_inner(graph: OpGraph, node: Node) -> bool:
    """Whether one node alone reads another, checks of what is known of it aside."""
    users = {user.name for user in graph.users(node.name)} - checks_of(graph, node.name)
    return node.name not in graph.outputs and len(users) == 1


def _read_factor(graph: OpGraph, node: Node) -> tuple[Ref, ReadFactor] | None:
    """Scores, and what is the same for all of a head that a node multiplies or divides them by."""
    if node.target not in _SCALES or len(node.args) != 2 or node.kwargs:
        return None
    divides = node.target == _SCALES[1]
    for place in (0, 1)[: 1 if divides else 2]:
        scores, factor = node.args[place], node.args[1 - place]
        if not isinstance(scores, Ref) or not isinstance(factor, Ref):
            return None
        spec = graph.spec(factor.name)
        is_alike = all(size == 1 for size in spec.shape[-2:]) and spec.dtype in FLOATS
        if is_alike and graph.spec(scores.name).shape == node.spec.shape:
            return scores, ReadFactor(factor.name, divides)
    return None
