"""A sum or mean over the outputs of a product becomes a product with the summed weights."""

from collections.abc import Sequence

from kmem.algebra.adding import sum_and_extremes, with_infinities
from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.linear import ProductMap, read_product
from kmem.algebra.reducing import Total, read_total
from kmem.problem.graph import OpGraph
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting


class CollapseLinearThenSum(Rewrite):
    """sum_j (x W + b)_j = x (sum_j W_j) + sum_j b_j."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every sum or mean over the last axis of a product that nothing else reads."""
        found = []
        for node in graph.nodes:
            total = read_total(graph, node)
            if total is None or not graph.has_one_user(total.source.name):
                continue
            product = read_product(graph, total.source.name)
            if product is None or total.dims != (len(product.node.spec.shape) - 1,):
                continue
            try:
                rewritten = _collapse(graph, total, product)
            except CannotRewrite:
                continue
            word = "mean" if total.is_mean else "sum"
            reason = (
                f"the {word} over the {total.count} outputs of {product.node.name} is one product "
                "with the sum of its weights"
            )
            found.append(Rewriting(node.name, word, rewritten, reason))
        return found


def _collapse(graph: OpGraph, total: Total, product: ProductMap) -> OpGraph:
    editor = GraphEditor(graph, total.node.name)
    weights = sum_and_extremes(editor, product.weight, product.outputs)
    stacked = editor.call("aten.stack.default", weights)
    results = editor.call("aten.linear.default", product.source, stacked)
    last = len(product.node.spec.shape) - 1
    parts = [
        editor.call("aten.slice.Tensor", results, last, place, place + 1) for place in range(3)
    ]
    value = with_infinities(editor, *parts)
    if product.bias is not None:
        value = editor.call("aten.add.Tensor", value, editor.call("aten.sum.default", product.bias))
    value = total.scaled(editor, value)
    return editor.replaced(editor.shaped(value, total.node.spec.shape))


REWRITE = CollapseLinearThenSum()
