"""A product whose result is transposed and then copied gets the strides of that copy."""

from collections.abc import Sequence

from kmem.algebra.editing import with_strides
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.table import find_operator
from kmem.problem.sizes import dense_strides
from kmem.records import Contract, TensorSpec
from kmem.rewrites import Rewrite, Rewriting

#: Whose kernels store a result in whatever order of its axes but the last; torch's own attention
#: stores heads within rows already.
_PRODUCTS = {"aten.matmul.default", "aten.bmm.default"}
_COPIES = "aten.contiguous.default"


class WriteWhereCopied(Rewrite):
    """(a @ b).transpose(1, 2).contiguous() is no copy if a @ b was stored as the copy would lie."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All such products of a graph at once: blocks of a network repeat them."""
        strides: dict[str, tuple[int, ...]] = {}
        made: list[Node] = []
        for node in graph.nodes:
            turned = _turned(graph, node)
            if turned is None:
                continue
            made.append(node)
            strides[node.name] = _stored_as(turned)
            strides[turned.name] = dense_strides(turned.spec.shape)
        if not made:
            return []
        reason = f"{len(made)} products are stored in the order in which they are read, not copied"
        operator = find_operator(made[0].target).name
        placed = with_strides(graph, strides)
        return [Rewriting(made[0].name, operator, placed, reason, flags=())]


def _turned(graph: OpGraph, node: Node) -> Node | None:
    """The only reader of a product, if it turns it and its own only reader copies it."""
    if node.target not in _PRODUCTS or not isinstance(node.output, TensorSpec):
        return None
    turned = _only_reader(graph, node)
    if turned is None or turned.target not in ("aten.transpose.int", "aten.permute.default"):
        return None
    copied = _only_reader(graph, turned)
    if copied is None or copied.target != _COPIES or turned.spec.is_contiguous:
        return None
    order = _order(turned)
    # rows stay whole: kernels store them as vectors
    return turned if order[-1] == len(order) - 1 and node.spec.is_contiguous else None


def _only_reader(graph: OpGraph, node: Node) -> Node | None:
    return graph.users(node.name)[0] if graph.has_one_user(node.name) else None


def _order(turned: Node) -> tuple[int, ...]:
    """The axis of what is turned that each axis of the result is."""
    rank = len(turned.spec.shape)
    if turned.target == "aten.permute.default":
        return tuple(axis % rank for axis in turned.args[1])
    first, second = (axis % rank for axis in turned.args[1:3])
    order = list(range(rank))
    order[first], order[second] = second, first
    return tuple(order)


def _stored_as(turned: Node) -> tuple[int, ...]:
    """The strides of a value whose turned form is dense."""
    dense = dict(zip(_order(turned), dense_strides(turned.spec.shape), strict=True))
    return tuple(dense[axis] for axis in range(len(dense)))


REWRITE = WriteWhereCopied()
