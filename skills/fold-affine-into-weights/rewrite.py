"""Eval-mode batch norm, scales and shifts behind a linear map go into its weights and bias."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.algebra.editing import CannotRewrite, GraphEditor, is_of_parameters
from kmem.algebra.linear import LinearMap, ProductMap, read_linear
from kmem.algebra.reducing import Affine, padded_shape, read_affine
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

#: A scale is folded where the weights are this much smaller than the result: new weights are made
#: at every call, while a kernel that writes the product scales its result for nothing.
_SMALLER = 8


class FoldAffineIntoWeights(Rewrite):
    """s (W x + b) + t = (s W) x + (s b + t)."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every eval-mode batch norm and affine step right behind a linear map."""
        found = []
        for node in graph.nodes:
            folded = _read_norm(graph, node) or _read_step(graph, node)
            if folded is None:
                continue
            try:
                rewritten = folded.fold(graph)
            except CannotRewrite:
                continue
            linear = folded.linear.node.name
            reason = f"{node.name} is folded into the weights and bias of {linear}"
            operator = "batch_norm" if isinstance(folded, _Norm) else "pointwise"
            found.append(Rewriting(node.name, operator, rewritten, reason))
        return found


@dataclass(frozen=True, slots=True)
class _Norm:
    """A batch norm by running statistics."""

    node: Node
    linear: LinearMap

    def fold(self, graph: OpGraph) -> OpGraph:
        """The linear map with the norm's scale and shift in its weights."""
        editor = GraphEditor(graph, self.node.name)
        weight, bias = self.node.args[1:3]
        mean, variance = self.node.args[3:5]
        spread = editor.call("aten.add.Tensor", variance, self.node.args[7])
        scale = editor.call("aten.rsqrt.default", spread)
        if weight is not None:
            scale = editor.call("aten.mul.Tensor", scale, weight)
        shift = mean
        if self.linear.bias is not None:
            shift = editor.call("aten.sub.Tensor", mean, self.linear.bias)
        shift = editor.call("aten.neg.default", editor.call("aten.mul.Tensor", shift, scale))
        if bias is not None:
            shift = editor.call("aten.add.Tensor", shift, bias)
        scaled = _scaled(editor, self.linear, "aten.mul.Tensor", scale)
        return editor.replaced(self.linear.of(editor, self.linear.source, scaled, shift))


@dataclass(frozen=True, slots=True)
class _Step:
    """A scale or shift by a number, or by a value for each output."""

    affine: Affine
    linear: LinearMap

    def fold(self, graph: OpGraph) -> OpGraph:
        """The linear map with the step in its weights or bias."""
        node, linear = self.affine.node, self.linear
        editor = GraphEditor(graph, node.name)
        operand = self.affine.operand
        if isinstance(operand, Ref):
            operand = editor.shaped(operand, _per_output(graph, operand))
        bias: Ref | None = linear.bias
        if not self.affine.is_shift:
            if bias is not None:
                bias = editor.call(node.target, bias, operand)
            weight = _scaled(editor, linear, node.target, operand)
            return editor.replaced(linear.of(editor, linear.source, weight, bias))
        bias = editor.call(node.target, bias, operand)
        return editor.replaced(linear.of(editor, linear.source, linear.weight, bias))


def _read_norm(graph: OpGraph, node: Node) -> _Norm | None:
    if node.target != "aten.batch_norm.default" or node.args[5]:
        return None
    source, *state = node.args[:5]
    if not isinstance(source, Ref) or not graph.has_one_user(source.name):
        return None
    if state[2] is None or not all(
        value is None or is_of_parameters(graph, value) for value in state
    ):
        return None
    linear = read_linear(graph, source.name)
    return _Norm(node, linear) if linear is not None and _has_channels(linear) else None


def _read_step(graph: OpGraph, node: Node) -> _Step | None:
    affine = read_affine(graph, node.name)
    if affine is None or not graph.has_one_user(affine.source.name):
        return None
    linear = read_linear(graph, affine.source.name)
    if linear is None or not linear.has_output_axis or not _is_per_output(graph, affine, linear):
        return None
    if affine.is_shift:
        # without a bias there is nothing that a shift would ride on for free
        is_worth_it = linear.bias is not None and not affine.is_reversed
    else:
        weights = graph.spec(linear.weight.name).numel
        is_worth_it = _SMALLER * weights <= node.spec.numel
    return _Step(affine, linear) if is_worth_it else None


def _has_channels(linear: LinearMap) -> bool:
    """Whether dimension 1 of the result, a batch norm's channels, is the map's outputs."""
    is_matrix = len(linear.node.spec.shape) == 2
    return linear.has_output_axis and (is_matrix or not isinstance(linear, ProductMap))


def _is_per_output(graph: OpGraph, affine: Affine, linear: LinearMap) -> bool:
    """Whether the operand is a number or has a value for each output and nothing else."""
    if not isinstance(affine.operand, Ref):
        return True
    rank = len(linear.node.spec.shape)
    channel = rank - 1 if isinstance(linear, ProductMap) else 1
    sizes = padded_shape(graph.spec(affine.operand.name), rank)
    return all(size == 1 or dim == channel for dim, size in enumerate(sizes))


def _per_output(graph: OpGraph, operand: Ref) -> tuple[int, ...]:
    return (graph.spec(operand.name).numel,)


def _scaled(editor: GraphEditor, linear: LinearMap, target: str, scale: Arg) -> Ref:
    """The weight times (or over) a scale, or one for each output."""
    if isinstance(scale, Ref) and editor.spec(scale).numel > 1:
        rank = len(editor.spec(linear.weight).shape)
        shape = tuple(-1 if dim == linear.outputs else 1 for dim in range(rank))
        scale = editor.call("aten.reshape.default", scale, shape)
    return editor.call(target, linear.weight, scale)


REWRITE = FoldAffineIntoWeights()
