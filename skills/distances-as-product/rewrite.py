"""Euclidean distances of all pairs as a product of the points and their squared norms."""

from collections.abc import Sequence

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.reductions import multiplies_points
from kmem.problem.operators.row import Call
from kmem.problem.operators.table import find_operator
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

_TARGET = "aten.cdist.default"


class DistancesAsProduct(Rewrite):
    """|x - y| = sqrt(|x|^2 - 2 x.y + |y|^2)."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every `torch.cdist` of which eager computes the distances by a product as well."""
        found = []
        for node in graph.nodes:
            if node.target != _TARGET or not _is_product(find_operator(_TARGET).call(graph, node)):
                continue
            try:
                rewritten = _written_out(graph, node)
            except CannotRewrite:
                continue
            reason = (
                f"{node.name} is of the points' product and squared norms, as eager computes it"
            )
            found.append(Rewriting(node.name, "matmul", rewritten, reason, ()))
        return found


def _is_product(call: Call) -> bool:
    """Whether eager multiplies: the differences that it takes else keep digits of close points."""
    are_exact = all(call.spec(role).dtype == "float32" for role in ("x", "y"))
    return are_exact and multiplies_points(call)


def _written_out(graph: OpGraph, node: Node) -> OpGraph:
    editor = GraphEditor(graph, node.name)
    x, y = node.args[:2]

    def squared_norms(points: Ref) -> Ref:
        squares = editor.call("aten.pow.Tensor_Scalar", points, 2)
        return editor.call("aten.sum.dim_IntList", squares, (-1,))

    turned = editor.call("aten.transpose.int", y, -2, -1)
    products = editor.call("aten.matmul.default", x, turned)
    doubled = editor.call("aten.mul.Tensor", products, 2)
    rows = editor.call("aten.unsqueeze.default", squared_norms(x), -1)
    columns = editor.call("aten.unsqueeze.default", squared_norms(y), -2)
    left = editor.call("aten.sub.Tensor", rows, doubled)
    squares = editor.call("aten.add.Tensor", left, columns)
    # rounding leaves less than nothing of points that are equal
    squares = editor.call("aten.clamp_min.default", squares, 0)
    return editor.replaced(editor.call("aten.sqrt.default", squares))


REWRITE = DistancesAsProduct()
