"""Rotations written as complex products, as products of their real pairs."""

from collections.abc import Sequence

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.problem.operators.table import find_operator
from kmem.records import Contract, TensorSpec
from kmem.rewrites import Rewrite, Rewriting

_MULTIPLY = "aten.mul.Tensor"
_PAIRS, _COMPLEX = "aten.view_as_real.default", "aten.view_as_complex.default"
_WIDTHS = {"complex64"}


class ComplexProductsAsPairs(Rewrite):
    """view_as_real(a * b) is stack([ar br - ai bi, ar bi + ai br], -1), which kernels fuse.

    That is the operator's own formula. Source: c10/util/complex.h, complex::operator*=.
    """

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All such products of a graph at once: every block of a model rotates its own."""
        products = [node for node in graph.nodes if _is_read_as_pairs(graph, node)]
        pairs = [reader for node in products for reader in graph.users(node.name)]
        if not pairs:
            return []
        written = graph
        try:
            for pair in pairs:
                written = _as_pairs(written, pair.name)
        except CannotRewrite:  # the pairs are read as something else that is complex
            return []
        reason = f"{len(pairs)} complex products are those of their real parts, which kernels fuse"
        operator = find_operator(_MULTIPLY).name
        return [Rewriting(products[0].name, operator, written, reason, flags=())]


def _is_read_as_pairs(graph: OpGraph, node: Node) -> bool:
    """Whether a node multiplies two complex tensors and is only read for its real pairs."""
    readers = graph.users(node.name)
    return (
        node.target == _MULTIPLY
        and isinstance(node.output, TensorSpec)
        and node.output.dtype in _WIDTHS
        and all(
            isinstance(each, Ref) and graph.spec(each.name).dtype in _WIDTHS for each in node.args
        )
        and node.name not in graph.outputs
        and bool(readers)
        and all(reader.target == _PAIRS for reader in readers)
    )


def _is_complex(graph: OpGraph, value: Arg) -> bool:
    return isinstance(value, Ref) and graph.spec(value.name).dtype in _WIDTHS


def _as_pairs(graph: OpGraph, name: str) -> OpGraph:
    """The graph in which the real pairs of a product are made of those of its factors."""
    editor = GraphEditor(graph, name)
    pair = graph.node(name)
    product = graph.node(pair.args[0].name)
    real_a, imaginary_a = _parts(editor, product.args[0])
    real_b, imaginary_b = _parts(editor, product.args[1])

    def times(a: Ref, b: Ref) -> Ref:
        return editor.call(_MULTIPLY, a, b)

    real = editor.call("aten.sub.Tensor", times(real_a, real_b), times(imaginary_a, imaginary_b))
    imaginary = editor.call(
        "aten.add.Tensor", times(real_a, imaginary_b), times(imaginary_a, real_b)
    )
    return editor.replaced(editor.call("aten.stack.default", (real, imaginary), -1))


def _parts(editor: GraphEditor, factor: Ref) -> tuple[Ref, Ref]:
    """Views of a complex value's real and imaginary parts."""
    made = editor.graph.node(factor.name)
    is_pairs = made is not None and made.target == _COMPLEX
    pairs = made.args[0] if is_pairs else editor.call(_PAIRS, factor)
    return tuple(editor.call("aten.select.int", pairs, -1, part) for part in (0, 1))


REWRITE = ComplexProductsAsPairs()
