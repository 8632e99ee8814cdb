"""Biases that are a slope for each head times a line of places, as ALiBi has them.

    -(i[:, None] - j[None]).abs() * slopes[:, None, None]

Between the product with the slopes and where it is added there may be casts, numbers that it is
multiplied by, views that insert or drop axes of one place or stretch them, and one mask of
constants that is a band. The bias is then never made: kernels know the places, and read a slope.
What a cast rounds is not rounded.

Source of the bias: Press, Smith, Lewis, "Train short, test long", arXiv 2108.12409.
"""

from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.steady import kept_operands
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.records import TensorSpec

from .bands import Band
from .constants import is_cast, made_for, read_band, read_pieces
from .filling import ways_to_mask
from .pieces import Line, Pieces
from .terms import read_lines

_MULTIPLIES, _NEGATES = "aten.mul.Tensor", "aten.neg.default"
_VIEWS = ("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default")
_VIEWS += ("aten.squeeze.dim", "aten.expand.default")

Axes = list[tuple[int, int]]  # sizes and steps of slopes, in front of rows and columns


@dataclass(frozen=True, slots=True)
class ReadRamp:
    """A bias by its slopes: their name, size and step along each batch axis, and its lines.

    `cut` and `scale`: as of `terms.Ramp`. `band`: of what is seen, if a mask hides the rest.
    `constants`: nodes that make the bias and that nothing else needs.
    """

    name: str
    axes: tuple[tuple[int, int], ...]
    lines: tuple[Line, ...]
    cut: int
    scale: float
    is_kept: bool
    constants: frozenset[str]
    band: Band | None = None


def read_ramp(graph: OpGraph, bias: str, scores: TensorSpec, reader: str) -> ReadRamp | None:
    """The ramp that a value is; None if it is none.

    Args:
        scores: (..., queries, keys), to which the bias is broadcast.
        reader: the node that adds it.
    """
    behind: list[Node] = []
    band: Band | None = None
    node = graph.node(bias)
    while node is not None:
        if _is_passed(graph, node):
            source = node.args[0]
        else:
            hidden = None if band is not None else _read_hiding(graph, node, scores)
            if hidden is None or prod(map(_number, behind)) <= 0:  # of -inf behind as well
                break
            source, band = hidden
        behind.append(node)
        node = graph.node(source.name)
    product = None if node is None else _read_product(graph, node)
    if node is None or product is None:
        return None
    slopes, lines = product
    axes: Axes | None = _slope_axes(graph, slopes, node)
    for each in reversed(behind):
        is_view = each.target in _VIEWS
        if axes is not None and is_view:
            axes = _moved(axes, graph.spec(each.args[0].name), each)
    scale = prod(map(_number, behind))
    spec = graph.spec(bias)
    found = read_lines(lines)
    is_whole = spec.shape[-2:] == scores.shape[-2:] or _is_of_keys(spec, scores, lines)
    if axes is None or found is None or not is_whole:
        return None
    made = {each.name for each in (*behind, node)}
    constants = made_for(graph, bias, [reader], also=made, without=slopes)
    (operand,) = kept_operands(graph, (slopes,))
    if band is not None and band.is_added and not operand.kept:
        return None  # an infinite slope and -inf make NaN
    return ReadRamp(slopes, tuple(axes), *found, scale, operand.kept, frozenset(constants), band)


def _is_of_keys(spec: TensorSpec, scores: TensorSpec, lines: Pieces) -> bool:
    """Whether a bias is one row, the same for all queries."""
    is_row = spec.shape[-2:] == (1, scores.shape[-1])
    return is_row and len(lines.lines) == 1 and lines.lines[0][1][0] == 0


def _is_passed(graph: OpGraph, node: Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, Ref) or not isinstance(node.output, TensorSpec) or node.kwargs:
        return False
    if len(node.spec.shape) < 2 or node.spec.dtype not in FLOATS:
        return False
    if graph.node(source.name) is None or graph.spec(source.name).dtype not in FLOATS:
        return False
    is_number = node.target == _MULTIPLIES and isinstance(node.args[1], int | float)
    return is_number or node.target in (_NEGATES, *_VIEWS) or is_cast(node)


def _read_hiding(graph: OpGraph, node: Node, scores: TensorSpec) -> tuple[Ref, Band] | None:
    """What a node hides with -inf outside of a band, and the band."""
    if not isinstance(node.output, TensorSpec) or node.spec.shape[-2:] != scores.shape[-2:]:
        return None
    for value, mask in ways_to_mask(graph, node):
        if graph.spec(value.name) == node.spec and (mask.is_added or mask.hides):
            band = read_band(graph, mask.name, node.spec, mask.hiding)
            if band is not None:
                return value, replace(band, is_added=mask.is_added)
    return None


def _number(node: Node) -> float:
    """What a node multiplies by."""
    if node.target == _NEGATES:
        return -1.0
    return float(node.args[1]) if node.target == _MULTIPLIES else 1.0


def _read_product(graph: OpGraph, node: Node) -> tuple[str, Pieces] | None:
    """Slopes by their name, and the lines that a node multiplies them by."""
    if node.target != _MULTIPLIES or node.kwargs or node.spec.dtype not in FLOATS:
        return None
    for place in (0, 1):
        constant, slopes = node.args[place], node.args[1 - place]
        if not isinstance(constant, Ref) or not isinstance(slopes, Ref):
            return None
        spec = graph.spec(slopes.name)
        if spec.dtype not in FLOATS or any(size != 1 for size in spec.shape[-2:]):
            continue
        lines = read_pieces(graph, constant.name, node.spec.shape)
        if lines is not None:
            return slopes.name, lines
    return None


def _slope_axes(graph: OpGraph, slopes: str, product: Node) -> Axes:
    spec, rank = graph.spec(slopes), len(product.spec.shape)
    missing = max(0, rank - len(spec.shape))
    shape, stride = (1,) * missing + spec.shape, (0,) * missing + spec.stride
    sizes = product.spec.shape[:-2]
    steps = (0 if size == 1 else step for size, step in zip(shape, stride, strict=True))
    return list(zip(sizes, steps, strict=False))


def _moved(axes: Axes, spec: TensorSpec, node: Node) -> Axes | None:
    """The axes behind a node that hands them on in their order."""
    shape = node.spec.shape
    if shape == spec.shape:
        return axes
    if shape[-2:] != spec.shape[-2:]:
        return None
    sizes = shape[:-2]
    if node.target == "aten.expand.default":
        axes = [(1, 0)] * (len(sizes) - len(axes)) + axes
        return [(size, step) for size, (_, step) in zip(sizes, axes, strict=True)]
    left = [axis for axis in axes if axis[0] != 1]
    if [size for size, _ in left] != [size for size in sizes if size != 1]:
        return None
    rest = iter(left)
    return [(1, 0) if size == 1 else next(rest) for size in sizes]
