"""Sums, means, average poolings and affine pointwise steps, read for rewrites.

Covered: steps by numbers, and by parameters and buffers of the module, which are taken to be
finite. Not covered: alpha of an addition, divisions by tensors, rounding divisions.
"""

import math
from dataclasses import dataclass

from kmem.algebra.editing import GraphEditor, is_of_parameters
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis
from kmem.records import TensorSpec

_SUMS = {"aten.sum.dim_IntList": "sum", "aten.sum.default": "sum"}
_MEANS = {"aten.mean.dim": "mean", "aten.mean.default": "mean"}
_TOTALS = _SUMS | _MEANS
_ADAPTIVE = {f"aten.adaptive_avg_pool{rank}d.default": rank for rank in (1, 2, 3)}
_POOLS = {f"aten.avg_pool{rank}d.default": rank for rank in (1, 2, 3)}


@dataclass(frozen=True, slots=True)
class Total:
    """A sum or a mean over whole dimensions; `count` elements make one."""

    node: Node
    source: Ref
    is_mean: bool
    dims: tuple[int, ...]
    count: int

    def of(self, editor: GraphEditor, value: Ref) -> Ref:
        """The same total of another value, its dimensions kept as ones."""
        target = "aten.mean.dim" if self.is_mean else "aten.sum.dim_IntList"
        return editor.call(target, value, self.dims, True)

    def scaled(self, editor: GraphEditor, total: Ref) -> Ref:
        """What a sum over the dimensions stands for: itself, or the mean."""
        if not self.is_mean:
            return total
        return editor.call("aten.div.Tensor", total, self.count)

    def shifted(self, editor: GraphEditor, total: Ref, shift: Ref) -> Ref:
        """A total to whose every element a shift was added that is the same for all of them."""
        if not self.is_mean:
            shift = editor.call("aten.mul.Tensor", shift, self.count)
        return editor.call("aten.add.Tensor", total, shift)


@dataclass(frozen=True, slots=True)
class Pool:
    """An average over windows that lie inside the image, each over its own elements."""

    node: Node
    source: Ref
    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions along which windows lie."""
        rank = len(self.node.spec.shape)
        return tuple(range(rank - len(self.kernel), rank))

    def of(self, editor: GraphEditor, value: Ref) -> Ref:
        """The same pooling of another value."""
        return editor.call(self.node.target, value, self.kernel, self.stride)


@dataclass(frozen=True, slots=True)
class Affine:
    """A step `source * factor` or `source + shift`, or with `/` or `-` in its place.

    `operand` is a number, or a value of parameters that broadcasts to the source's shape.
    `is_reversed`: the operand stands first, as in 1 - x.
    """

    node: Node
    source: Ref
    operand: Ref | int | float
    is_reversed: bool = False

    @property
    def is_shift(self) -> bool:
        return self.node.target in _SHIFTS

    def of(self, editor: GraphEditor, value: Ref, operand: Ref | int | float) -> Ref:
        """The same step of another value, with an operand that fits."""
        pair = (operand, value) if self.is_reversed else (value, operand)
        return editor.call(self.node.target, *pair)

    def is_constant_along(self, graph: OpGraph, dims: tuple[int, ...]) -> bool:
        """Whether the operand is the same for all elements along these dimensions."""
        if not isinstance(self.operand, Ref):
            return True
        sizes = padded_shape(graph.spec(self.operand.name), len(self.node.spec.shape))
        return all(sizes[dim] == 1 for dim in dims)


_SHIFTS = ("aten.add.Tensor", "aten.sub.Tensor")
_FACTORS = ("aten.mul.Tensor", "aten.div.Tensor")


def padded_shape(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    """A shape with ones in front of it, as it broadcasts to so many dimensions."""
    return (1,) * (rank - len(spec.shape)) + spec.shape


def read_total(graph: OpGraph, node: Node) -> Total | None:
    """A sum or mean of a float32 value in its own dtype, or an adaptive pooling to one element."""
    if node.target not in (*_TOTALS, *_ADAPTIVE) or node.kwargs or not _is_float32(node):
        return None
    source = node.args[0]
    if not isinstance(source, Ref):
        return None
    rank = len(graph.spec(source.name).shape)
    if node.target in _ADAPTIVE:
        spatial = _ADAPTIVE[node.target]
        if per_axis(node.args[1], spatial) != (1,) * spatial:
            return None
        dims, is_mean = tuple(range(rank - spatial, rank)), True
    else:
        given = node.args[1] if len(node.args) > 1 else None
        listed = given if given else tuple(range(rank))
        dims = tuple(sorted(dim % rank for dim in listed))
        is_mean = node.target in _MEANS
    if graph.spec(source.name).dtype != "float32":
        return None
    shape = graph.spec(source.name).shape
    count = math.prod(shape[dim] for dim in dims)
    return Total(node, source, is_mean, dims, count) if count else None


def read_pool(graph: OpGraph, node: Node) -> Pool | None:
    """An average pooling without padding, partial windows or a divisor of its own."""
    if node.target not in _POOLS or node.kwargs or not _is_float32(node):
        return None
    source, rank = node.args[0], _POOLS[node.target]
    if not isinstance(source, Ref):
        return None
    kernel = per_axis(node.args[1], rank)
    stride = per_axis(node.args[2] if len(node.args) > 2 else None, rank, kernel)
    padding = per_axis(node.args[3] if len(node.args) > 3 else None, rank, 0)
    ceil_mode, divisor = (node.args[place] if len(node.args) > place else None for place in (4, 6))
    if any(padding) or ceil_mode or divisor is not None:
        return None
    return Pool(node, source, kernel, stride)


def read_affine(graph: OpGraph, name: str) -> Affine | None:
    """The affine step that makes a float32 value, by a finite number or a value of parameters."""
    node = graph.node(name)
    if node is None or node.target not in (*_SHIFTS, *_FACTORS) or node.kwargs:
        return None
    if not _is_float32(node):
        return None
    for place in (0, 1):
        source, operand = node.args[place], node.args[1 - place]
        if place and node.target == "aten.div.Tensor":
            continue
        if not isinstance(source, Ref) or not _is_operand(graph, node, operand):
            continue
        if graph.spec(source.name) == node.spec and not is_of_parameters(graph, source):
            return Affine(node, source, operand, is_reversed=bool(place))
    return None


def _is_operand(graph: OpGraph, node: Node, operand: object) -> bool:
    if isinstance(operand, Ref):
        if node.target == "aten.div.Tensor":  # a parameter may be zero
            return False
        return is_of_parameters(graph, operand) and graph.spec(operand.name).dtype == "float32"
    if isinstance(operand, bool) or not isinstance(operand, int | float):
        return False
    is_factor = node.target in _FACTORS
    return math.isfinite(operand) and not (is_factor and operand == 0)


def _is_float32(node: Node) -> bool:
    return isinstance(node.output, TensorSpec) and node.spec.dtype == "float32"
