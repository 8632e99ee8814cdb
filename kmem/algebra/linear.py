"""Products, convolutions and transposed convolutions read as linear maps of one operand.

Covered: maps whose weight and bias are made of parameters and buffers alone, in float32. What a
caller hands in as a weight may be infinite, and then sums may not be exchanged.
"""

from dataclasses import dataclass

from kmem.algebra.editing import GraphEditor, is_of_parameters
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Convolution
from kmem.problem.operators.table import find_operator
from kmem.problem.sizes import per_axis


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Where a product has its operands, and which axis of the weight counts outputs."""

    source: int
    weight: int
    bias: int
    outputs: int


_NO_BIAS = -1
_PRODUCTS = {
    "aten.linear.default": _Spelling(0, 1, 2, 0),
    "aten.matmul.default": _Spelling(0, 1, _NO_BIAS, 1),
    "aten.mm.default": _Spelling(0, 1, _NO_BIAS, 1),
    "aten.addmm.default": _Spelling(1, 2, 0, 1),
}


@dataclass(frozen=True, slots=True)
class ProductMap:
    """y = x W + b over the last axis of x; `outputs` is the axis of W that counts outputs."""

    node: Node
    source: Ref
    weight: Ref
    bias: Ref | None
    outputs: int

    @property
    def has_output_axis(self) -> bool:
        """Whether the axis counts all outputs: it does."""
        return True

    def of(self, editor: GraphEditor, source: Ref, weight: Ref, bias: Ref | None) -> Ref:
        """The same product with another operand, weight of the same layout, and bias."""
        if self.outputs:
            weight = editor.call("aten.t.default", weight)
        return editor.call("aten.linear.default", source, weight, bias)


@dataclass(frozen=True, slots=True)
class Steps:
    """How the window of a convolution moves along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True, slots=True)
class ConvolutionMap:
    """A convolution, or a transposed one, of a batch of images."""

    node: Node
    source: Ref
    weight: Ref
    bias: Ref | None
    axes: tuple[Steps, ...]
    groups: int
    is_transposed: bool

    @property
    def outputs(self) -> int:
        """The axis of the weight that counts outputs."""
        return int(self.is_transposed)

    @property
    def has_output_axis(self) -> bool:
        """Whether that axis counts all outputs, not those of one group."""
        return not self.is_transposed or self.groups == 1

    def of(self, editor: GraphEditor, source: Ref, weight: Ref, bias: Ref | None) -> Ref:
        """The same convolution with another operand, weight of the same layout, and bias."""
        return editor.call(self.node.target, source, weight, bias, *self.node.args[3:])

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel is made of one input pixel, its own."""
        return not self.is_transposed and all(
            (axis.kernel, axis.stride, axis.padding) == (1, 1, 0) for axis in self.axes
        )


LinearMap = ProductMap | ConvolutionMap


def read_linear(graph: OpGraph, name: str) -> LinearMap | None:
    """The linear map that makes a value, if that is one of the module's own."""
    return read_product(graph, name) or read_convolution(graph, name)


def read_product(graph: OpGraph, name: str) -> ProductMap | None:
    """The product that makes a value, with a weight matrix of the module's own."""
    node = graph.node(name)
    if node is None or node.target not in _PRODUCTS or node.kwargs:
        return None
    spelling = _PRODUCTS[node.target]
    source, weight = node.args[spelling.source], node.args[spelling.weight]
    bias = dict(enumerate(node.args)).get(spelling.bias)
    if not isinstance(source, Ref) or not isinstance(weight, Ref):
        return None
    if not _is_own(graph, weight, bias) or not _is_float32(node):
        return None
    if len(graph.spec(weight.name).shape) != 2 or len(graph.spec(source.name).shape) < 2:
        return None
    return ProductMap(node, source, weight, bias, spelling.outputs)


def read_convolution(graph: OpGraph, name: str) -> ConvolutionMap | None:
    """The convolution that makes a value, with weights of the module's own and numbered padding."""
    node = graph.node(name)
    operator = None if node is None else find_operator(node.target)
    if node is None or operator is None or not isinstance(operator.lowering, Convolution):
        return None
    call = operator.call(graph, node)
    source, weight = call["input"], call["weight"]
    bias = call["bias"]
    if not isinstance(source, Ref) or isinstance(call["padding"], str):
        return None
    if not _is_own(graph, weight, bias) or not _is_float32(node) or node.kwargs:
        return None
    shape, rank = graph.spec(weight.name).shape, operator.lowering.rank
    if len(node.spec.shape) != rank + 2:
        return None
    axes = zip(
        shape[2:],
        per_axis(call["stride"], rank, 1),
        per_axis(call["padding"], rank, 0),
        per_axis(call["dilation"], rank, 1),
        strict=True,
    )
    return ConvolutionMap(
        node,
        source,
        weight,
        bias,
        tuple(Steps(*axis) for axis in axes),
        int(call["groups"] or 1),
        operator.lowering.is_transposed,
    )


def _is_own(graph: OpGraph, weight: object, bias: object) -> bool:
    return is_of_parameters(graph, weight) and (bias is None or is_of_parameters(graph, bias))


def _is_float32(node: Node) -> bool:
    return node.spec.dtype == "float32"
