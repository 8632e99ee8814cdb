"""Pointwise operators after a product computed as the product lies, with views around them all.

Autograd writes the gradient of a linear map as a product of matrices, views it as the map's input
was shaped, goes through the activation, and views the result as a matrix again for the next
product. Between two views the activation would be a kernel by itself; on the matrix it can be
written with the product.

Covered: views of what mm, addmm and bmm make, and pointwise operators between these and views of
the same shape as the product, whose other operands have the same shape, or are numbers or a row.
"""

from collections.abc import Iterator
from dataclasses import replace

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Layout, Pointwise
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import TensorSpec

VIEWS = ("aten.view.default", "aten.reshape.default")
_PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default")

_Shape = tuple[int, ...]


def flattened(graph: OpGraph) -> OpGraph:
    """The graph with pointwise operators between views computed without these."""
    shapes = _shapes(graph)
    joined: set[str] = set()
    for node in reversed(graph.nodes):
        users = graph.users(node.name)
        if node.target in VIEWS or not users or node.name in graph.outputs:
            continue
        theirs = {shapes.get(user.name) for user in users}
        if all(user.name in joined for user in users) and len(theirs) == 1:
            (shape,) = theirs  # of what reads it alone, it may be computed from anything
        else:
            shape = shapes.get(node.name)
        is_read_so = all(user.name in joined or _stays(user, shape) for user in users)
        if shape and is_read_so and _may_lie(graph, node, shape):
            joined.add(node.name)
            shapes[node.name] = shape
    if not joined:
        return graph
    writing = _Writing(graph, shapes, joined)
    nodes = tuple(made for node in graph.nodes for made in writing.of(node))
    outputs = tuple(writing.renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs)


def _stays(node: Node, shape: _Shape | None) -> bool:
    """Whether a node only views a value as a product of that shape lies."""
    return node.target in VIEWS and node.spec.shape == shape


def _shapes(graph: OpGraph) -> dict[str, _Shape]:
    """Views of products, and what is computed of them, by the shape of the product."""
    found: dict[str, _Shape] = {}
    for node in graph.nodes:
        if not isinstance(node.output, TensorSpec) or not node.spec.is_contiguous:
            continue
        source = graph.node(node.refs()[0]) if node.refs() else None
        if node.target in VIEWS and source is not None and source.target in _PRODUCTS:
            if source.spec.is_contiguous:
                found[node.name] = source.spec.shape
            continue
        known = {found[name] for name in node.refs() if name in found}
        if len(known) == 1 and _may_lie(graph, node, min(known)):
            found[node.name] = min(known)
    return found


def _may_lie(graph: OpGraph, node: Node, shape: _Shape) -> bool:
    """Whether an operator computes element by element, and as well in another shape."""
    if not isinstance(node.output, TensorSpec) or not node.spec.is_contiguous:
        return False
    operator = find_operator(node.target)
    is_cast = operator is not None and operator.lowering is Layout.CAST
    if not is_cast and not isinstance(lowering_of(graph, node), Pointwise):
        return False
    return all(_fits(graph.spec(name), node.spec.shape, shape) for name in node.refs())


def _fits(spec: TensorSpec, shape: _Shape, other: _Shape) -> bool:
    """Whether what broadcasts to a shape, or has it, can be read in another of as many elements."""
    if spec.shape == shape:
        return spec.is_contiguous
    return spec.shape == () or spec.shape == shape[-1:] == other[-1:]


class _Writing:
    """Nodes one after another, those that join written as the product lies."""

    def __init__(self, graph: OpGraph, shapes: dict[str, _Shape], joined: set[str]) -> None:
        self.graph, self.shapes = graph, shapes
        self.joined = joined
        self.flat: dict[str, str] = {}  # by values, what they are as the product lies
        self.renamed: dict[str, str] = {}

    def of(self, node: Node) -> Iterator[Node]:
        """What stands in the place of a node."""
        if node.target in VIEWS and node.refs()[0] in self.joined:
            self.renamed[node.name] = self.flat[node.refs()[0]]
            return
        if node.name not in self.joined:
            if node.target in VIEWS and node.name in self.shapes:
                self.flat[node.name] = self.renamed.get(node.refs()[0], node.refs()[0])
            yield node.reading(self.renamed)
            return
        shape = self.shapes[node.name]
        for name in dict.fromkeys(node.refs()):
            if name not in self.flat and self.graph.spec(name).shape == node.spec.shape:
                self.flat[name] = f"{name}_flat"
                source = Ref(self.renamed.get(name, name))
                spec = _lying(self.graph.spec(name), shape)
                yield Node(self.flat[name], VIEWS[0], (source, shape), {}, spec)
        self.flat[node.name] = f"{node.name}_flat"
        made = node.reading({**self.renamed, **self.flat})
        yield replace(made, name=self.flat[node.name], output=_lying(node.spec, shape))


def _lying(spec: TensorSpec, shape: _Shape) -> TensorSpec:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * size)
    return TensorSpec(shape, spec.dtype, tuple(reversed(steps)))
