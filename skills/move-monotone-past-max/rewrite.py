"""A non-decreasing pointwise function in front of a maximum moves behind it."""

import math
from collections.abc import Sequence

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.reducing import read_affine
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.records import Contract, TensorSpec
from kmem.rewrites import Rewrite, Rewriting

#: Functions that do not decrease anywhere and keep NaN and infinities in order.
_MONOTONE = {
    f"aten.{name}.default"
    for name in ("relu", "relu6", "sigmoid", "tanh", "exp", "hardtanh", "clamp", "hardsigmoid")
}
_POOLS = {f"aten.max_pool{rank}d.default": rank for rank in (1, 2, 3)}


class MoveMonotonePastMax(Rewrite):
    """max(f(a), f(b)) = f(max(a, b))."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every max pooling or maximum right behind such a function that nothing else reads."""
        found = []
        for node in graph.nodes:
            source = node.args[0] if node.args else None
            if not isinstance(source, Ref) or not graph.has_one_user(source.name):
                continue
            dims = _reduced_dims(node)
            function = graph.node(source.name)
            if dims is None or function is None or not _is_monotone(graph, function, dims):
                continue
            try:
                rewritten = _moved(graph, node, function)
            except CannotRewrite:
                continue
            word = "max" if node.target == "aten.amax.default" else "max_pool"
            reason = (
                f"{function.name} does not decrease: it runs on the maxima of {node.name} alone"
            )
            found.append(Rewriting(node.name, word, rewritten, reason))
        return found


def _reduced_dims(node: Node) -> tuple[int, ...] | None:
    """The dimensions that a maximum is over; None for other operators."""
    if node.kwargs or not isinstance(node.output, TensorSpec):
        return None
    rank = len(node.spec.shape)
    if node.target in _POOLS:
        return tuple(range(rank - _POOLS[node.target], rank))
    has_kept = len(node.args) > 2 and node.args[2]
    if node.target == "aten.amax.default" and has_kept and isinstance(node.args[1], tuple):
        return tuple(dim % rank for dim in node.args[1]) or tuple(range(rank))
    return None


def _is_monotone(graph: OpGraph, node: Node, dims: tuple[int, ...]) -> bool:
    if node.kwargs or not isinstance(node.output, TensorSpec):
        return False
    if node.target in _MONOTONE:
        return all(not isinstance(arg, Ref) for arg in node.args[1:]) and _is_ordered(node)
    if node.target == "aten.leaky_relu.default":
        slope = node.args[1] if len(node.args) > 1 else 0.01
        return isinstance(slope, int | float) and slope >= 0 and slope != 0
    affine = read_affine(graph, node.name)
    if affine is None:
        return False
    if affine.is_shift:
        is_falling = affine.is_reversed and node.target == "aten.sub.Tensor"
        return not is_falling and affine.is_constant_along(graph, dims)
    return isinstance(affine.operand, int | float) and affine.operand > 0


def _is_ordered(node: Node) -> bool:
    """Whether the bounds of a clamp are in order: torch then keeps the order of what it clamps."""
    bounds = [arg for arg in node.args[1:3] if isinstance(arg, int | float)]
    return len(bounds) < 2 or bounds[0] <= bounds[1] or math.isinf(bounds[0])


def _moved(graph: OpGraph, node: Node, function: Node) -> OpGraph:
    editor = GraphEditor(graph, node.name)
    source = next(
        arg for arg in function.args if isinstance(arg, Ref) and _is_large(graph, function, arg)
    )
    largest = editor.call(node.target, source, *node.args[1:])
    arguments = [largest if arg == source else arg for arg in function.args]
    return editor.replaced(editor.call(function.target, *arguments))


def _is_large(graph: OpGraph, function: Node, value: Ref) -> bool:
    return graph.spec(value.name).shape == function.spec.shape


REWRITE = MoveMonotonePastMax()
