"""Attention in a graph: torch's operator, or written out; what the kernels cover of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.steady import kept_operands
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import dense_strides
from kmem.records import DTYPE_BYTES, TensorSpec

from .attention import Attention
from .bands import Band
from .constants import made_for, read_band
from .filling import ReadMask
from .heads import Shared, read_merged, read_shared
from .ramps import ReadRamp, read_ramp
from .scaling import ReadFactor
from .terms import Factor, Lying, Mask, Ramp
from .written_out import read_written_out

_TARGET = "aten.scaled_dot_product_attention.default"
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
MAX_WIDTH = 2048  # of a row that the splitting kernel holds in registers
MAX_FUSED_WIDTH = 256  # of a head whose output one block of queries keeps in registers


@dataclass(frozen=True, slots=True)
class Found:
    """An attention in a graph: its nodes, the names of q, k, v and mask, and what is computed.

    `made`: the value that it makes.
    """

    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    made: str
    detail: Attention


def read_attention(graph: OpGraph, node: Node) -> Found | None:
    """The attention that a node ends, with the copy that merges its heads; None if it ends none."""
    found = _read_operator(graph, node) if node.target == _TARGET else _read_products(graph, node)
    merged = None if found is None else read_merged(graph, node)
    if found is None or merged is None:
        return found
    missing = 4 - len(node.spec.shape)
    steps = (*found.detail.steps[:3], ((0,) * missing + merged.stride[:-1]))
    detail = replace(found.detail, out=merged.spec, steps=steps)
    return replace(found, nodes=(*found.nodes, *merged.nodes), made=merged.made, detail=detail)


def _read_operator(graph: OpGraph, node: Node) -> Found | None:
    """The attention of torch's operator; None for what the kernels do not cover.

    They do not cover dropout, broadcasting of heads, or rows that are not dense.
    """
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    if given.get("dropout_p", 0.0) != 0.0:
        return None
    if not all(isinstance(given[name], Ref) for name in _NAMES[:3]) or len(node.args) < 3:
        return None
    reads = given["query"].name, given["key"].name, given["value"].name
    scale = given.get("scale")
    scale = scale if scale is not None else graph.spec(reads[0]).shape[-1] ** -0.5
    mask = given.get("attn_mask")
    band = Band(high=0) if given.get("is_causal", False) else Band()
    constants: set[str] = set()
    read, ramp = None, None
    if mask is not None:
        if not isinstance(mask, Ref):
            return None
        kind = "admits" if graph.spec(mask.name).dtype == "bool" else "added"
        scores = replace(node.spec, shape=(*node.spec.shape[:-1], graph.spec(reads[1]).shape[-2]))
        hides = False if kind == "admits" else -math.inf
        found_band = read_band(graph, mask.name, scores, hides)
        if found_band is None:
            read = ReadMask(mask.name, kind)
            ramp = read_ramp(graph, mask.name, scores, node.name) if kind == "added" else None
            if ramp is not None:
                constants, band = {*ramp.constants}, ramp.band or Band()
                band = replace(band, is_added=False)  # torch's operator skips what is hidden
        else:
            band, constants = found_band, made_for(graph, mask.name, [node.name])
    names = tuple(sorted({node.name, *constants}, key=graph.place))
    shares = bool(given.get("enable_gqa", False))
    found = _read_heads(graph, names, reads, node.spec, scale, shares)
    if found is None:
        return None
    found = replace(found, detail=replace(found.detail, band=band))
    return _with_terms(graph, found, None if ramp is not None else read, ramp)


def _read_products(graph: OpGraph, node: Node) -> Found | None:
    """The attention that ends in a product, written out before it.

    A row whose scores are all -inf is NaN there.
    """
    written = read_written_out(graph, node)
    if written is None:
        return None
    names = written.query, written.key, written.value
    found = _read_heads(graph, written.nodes, names, node.spec, written.scale, False)
    if found is None:
        return None
    terms = written.terms
    detail = replace(
        found.detail,
        empty_is_zero=False,
        band=terms.band,
        activation=written.activation,
        gain=written.gain,
    )
    if not detail.is_softmax and max(detail.depth, detail.width) > MAX_FUSED_WIDTH:
        return None
    found = replace(found, detail=detail)
    return _with_terms(graph, found, terms.mask, terms.bias, written.factor)


def _with_terms(
    graph: OpGraph,
    found: Found,
    mask: ReadMask | None,
    bias: ReadMask | ReadRamp | None = None,
    factor: ReadFactor | None = None,
) -> Found | None:
    """An attention with what its scores go through; None where the kernels cannot read that."""
    detail, reads = found.detail, [*found.reads]
    for name, read in (("mask", mask), ("bias", bias)):
        if read is not None:
            is_ramp = isinstance(read, ReadRamp)
            term = _read_slopes(detail, read) if is_ramp else _read_term(graph, detail, read)
            if term is None:
                return None
            detail = replace(detail, **{name: term})
            reads.append(read.name)
    if factor is not None:
        spec = graph.spec(factor.name)
        axes = list(zip(spec.shape[:-2], spec.stride[:-2], strict=True))
        steps = _steps_of_heads(detail, axes)
        if steps is None:
            return None
        detail = replace(detail, factor=Factor(steps, factor.divides))
        reads.append(factor.name)
    return replace(found, reads=tuple(reads), detail=detail)


def _read_term(graph: OpGraph, detail: Attention, read: ReadMask) -> Mask | None:
    spec = graph.spec(read.name)
    wanted = (read.period or detail.outer, detail.inner, detail.queries, detail.keys)
    missing = max(0, 4 - len(spec.shape))
    # before windows there is the axis of images, of one place
    shape, stride = (
        ((pad,) * missing + sizes)[-4:] for pad, sizes in ((1, spec.shape), (0, spec.stride))
    )
    known = FLOATS if read.is_added else ("bool",)
    if spec.dtype not in known or shape[3] != detail.keys:
        return None
    if any(size not in (1, full) for size, full in zip(shape, wanted, strict=True)):
        return None
    steps = tuple(0 if size == 1 else step for size, step in zip(shape, stride, strict=True))
    sizes = (*(size if step else 1 for size, step in zip(shape[:3], steps, strict=False)), shape[3])
    (operand,) = kept_operands(graph, (read.name,))
    lying = None
    if stride[3] != 1:
        lying = Lying(sizes, steps)
        dense = zip(sizes, dense_strides(sizes), strict=True)
        steps = tuple(0 if size == 1 else step for size, step in dense)
    held = prod(sizes) * DTYPE_BYTES[spec.dtype]
    return Mask(steps[:3], read.kind, read.fill, held, operand.kept, read.period, lying)


def _read_slopes(detail: Attention, read: ReadRamp) -> Ramp | None:
    steps = _steps_of_heads(detail, read.axes)
    return None if steps is None else Ramp(steps, read.lines, read.cut, read.scale)


def _steps_of_heads(detail: Attention, axes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Steps of a value of each head along outer and inner batch axis, 0 where all have one.

    Args:
        axes: its sizes and steps along batch axes, the last ones of these.
    """
    outer, inner = ((1, 0), (1, 0), *axes)[-2:]
    if len(axes) > 2 or outer[0] not in (1, detail.outer) or inner[0] not in (1, detail.inner):
        return None
    return (0 if outer[0] == 1 else outer[1]), (0 if inner[0] == 1 else inner[1])


def _read_heads(
    graph: OpGraph,
    nodes: tuple[str, ...],
    names: tuple[str, str, str],
    out: TensorSpec,
    scale: float,
    shares: bool,
) -> Found | None:
    """An attention of q, k and v, the latter read where each head lies once.

    Args:
        shares: whether heads of q may share one of k and v as they are given.
    """
    specs = [graph.spec(name) for name in names]
    repeated = [read_shared(graph, name) for name in names[1:]]
    if repeated[0].times != repeated[1].times or shares:
        repeated = [Shared(name, 1) for name in names[1:]]
    detail = None
    if repeated[0].times > 1:
        before = [specs[0], *(graph.spec(each.source) for each in repeated)]
        detail = _detail(before, out, scale, repeated[0].times)
    if detail is None:  # what is repeated may be laid out as the kernel does not read it
        repeated = [Shared(name, 1) for name in names[1:]]
        heads = [spec.shape[-3] if len(spec.shape) > 2 else 1 for spec in specs]
        detail = _detail(specs, out, scale, heads[0] // max(1, heads[1]) if shares else 1)
    if detail is None:
        return None
    repeating = dict.fromkeys(node for each in repeated for node in each.nodes)
    reads = names[0], *(each.source for each in repeated)
    return Found((*repeating, *nodes), reads, nodes[-1], detail)


def _detail(
    specs: Sequence[TensorSpec], out: TensorSpec, scale: float, shared: int
) -> Attention | None:
    """What is computed of q, k and v, each head of the latter for so many of q."""
    q = specs[0]
    k, v = specs[1:]
    rank = len(q.shape)
    if not 2 <= rank <= 4 or q.dtype not in FLOATS:
        return None
    if any(len(spec.shape) != rank or spec.dtype != q.dtype for spec in (*specs, out)):
        return None
    missing = 4 - rank
    batch = (1,) * missing + q.shape[:-2]
    if any(spec.stride[-1] != 1 for spec in (*specs, out)) or out.shape[:-2] != q.shape[:-2]:
        return None
    if any((1,) * missing + spec.shape[:-2] != (batch[0], batch[1] // shared) for spec in (k, v)):
        return None
    if out.numel == 0 or prod(k.shape) == 0 or batch[1] % shared:
        return None
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return None
    widest = max(q.shape[-1], v.shape[-1])
    if widest > (MAX_WIDTH if q.dtype == "float32" else MAX_FUSED_WIDTH):
        return None
    return Attention(
        outer=batch[0],
        inner=batch[1],
        queries=q.shape[-2],
        keys=k.shape[-2],
        depth=q.shape[-1],
        width=v.shape[-1],
        scale=scale,
        dtype=q.dtype,
        out=out,
        steps=tuple((0,) * missing + spec.stride[:-1] for spec in (*specs, out)),
        shared=shared,
    )
