"""Operators that compute nothing: they describe data anew, copy it, move it, or make constants."""

from collections.abc import Callable
from typing import TypeAlias

from kmem.problem.operators.arithmetic import no_work, per_input, per_result
from kmem.problem.operators.row import (
    Call,
    Fill,
    Layout,
    Operator,
    Parameters,
    Traffic,
    parameters,
)

_X = parameters("x")
#: How a call is written, by its arguments.
Reader: TypeAlias = Callable[[Call], Layout | Fill | None]


def _row(
    target: str,
    lowering: Layout | Fill | Reader | None = None,
    given: Parameters = _X,
    **facts: object,
) -> Operator:
    return Operator(f"aten.{target}", "layout", no_work, given, lowering, **facts)


def _padding(call: Call) -> Layout | None:
    """A number around a tensor; other modes repeat elements, and less than nothing cuts off."""
    is_constant = call["mode"] in (None, "constant") and isinstance(call["pad"], tuple)
    return Layout.PAD if is_constant and all(size >= 0 for size in call["pad"]) else None


def _nearest(call: Call) -> Layout | None:
    """Sizes times a power of two: of others, how a place is rounded decides."""
    pairs = zip(call.node.spec.shape, call.spec("x").shape, strict=True)
    factors = [divmod(made, size) for made, size in pairs]
    is_exact = all(not rest and factor & (factor - 1) == 0 for factor, rest in factors)
    return Layout.NEAREST if is_exact else None


def _full(call: Call) -> Fill | None:
    number = call["number"]
    return Fill(float(number)) if isinstance(number, int | float) else None


_VIEWS = "diagonal movedim numpy_T unfold view_as"
_COPIES = "channel_shuffle copy full_like lift_fresh_copy repeat roll to"
_CONSTANTS = "arange empty empty_like"

ROWS = (
    Operator("getitem", "layout", no_work, parameters("x", "index"), Layout.TAKE, is_view=True),
    # views
    *(_row(name, is_view=True) for name in _VIEWS.split()),
    _row("_assert_tensor_metadata.default", Layout.MARKER, is_view=True),
    _row("alias.default", Layout.IDENTITY, is_view=True),
    _row("detach.default", Layout.IDENTITY, is_view=True),
    _row("detach_.default", Layout.IDENTITY, is_view=True),
    _row("expand.default", Layout.IDENTITY, is_view=True),
    _row("expand_as.default", Layout.IDENTITY, is_view=True),
    _row("broadcast_tensors.default", Layout.BROADCAST, is_view=True),
    _row("unsqueeze.default", Layout.RESHAPE, is_view=True),
    _row("squeeze.dim", Layout.RESHAPE, is_view=True),
    _row("squeeze.default", Layout.RESHAPE, is_view=True),
    _row("squeeze.dims", Layout.RESHAPE, is_view=True),
    _row("view.default", Layout.RESHAPE, is_view=True),
    _row("reshape.default", Layout.RESHAPE, is_view=True, may_copy=True),
    _row("flatten.using_ints", Layout.RESHAPE, is_view=True),
    _row("unflatten.int", Layout.RESHAPE, is_view=True),
    _row("transpose.int", Layout.SWAP, parameters("x", "dim0", "dim1"), is_view=True),
    _row("swapaxes.default", Layout.SWAP, parameters("x", "dim0", "dim1"), is_view=True),
    _row("t.default", Layout.SWAP, is_view=True),
    _row("mT.default", Layout.SWAP, is_view=True),
    _row("permute.default", Layout.PERMUTE, parameters("x", "dims"), is_view=True),
    _row("chunk.default", Layout.SPLIT, parameters("x", "count", dim=0), is_view=True),
    _row("split.Tensor", Layout.SPLIT, parameters("x", "size", dim=0), is_view=True),
    _row("split.sizes", Layout.SPLIT, parameters("x", "sizes", dim=0), is_view=True),
    _row("split_with_sizes.default", Layout.SPLIT, parameters("x", "sizes", dim=0), is_view=True),
    _row("unbind.int", Layout.UNBIND, parameters("x", dim=0), is_view=True),
    _row(
        "select.int",
        Layout.SELECT,
        parameters("x", "dim", "index"),
        is_view=True,
        traffic=Traffic.PART,
    ),
    _row(
        "narrow.default",
        Layout.NARROW,
        parameters("x", "dim", "start", "length"),
        is_view=True,
        traffic=Traffic.PART,
    ),
    _row(
        "slice.Tensor",
        Layout.SLICE,
        parameters("x", dim=0, start=None, end=None, step=1),
        is_view=True,
        traffic=Traffic.PART,
    ),
    # copies
    *(_row(name) for name in _COPIES.split()),
    _row("clone.default", Layout.IDENTITY),
    _row("contiguous.default", Layout.IDENTITY),
    _row("to.dtype", Layout.CAST, parameters("x", dtype=None)),
    _row("_to_copy.default", Layout.CAST, parameters("x", dtype=None)),
    _row("flip.default", Layout.FLIP, parameters("x", "dims")),
    _row("cat.default", Layout.CONCATENATE, parameters("tensors", dim=0)),
    _row("stack.default", Layout.STACK, parameters("tensors", dim=0)),
    _row("constant_pad_nd.default", _padding, parameters("x", "pad", value=0)),
    _row("pad.default", _padding, parameters("x", "pad", mode="constant", value=None)),
    *(
        _row(f"upsample_nearest{rank}d.vec", _nearest, parameters("x", "size", "scales"))
        for rank in (1, 2, 3)
    ),
    _row("pixel_shuffle.default", Layout.SHUFFLE, parameters("x", "factor")),
    _row("pixel_unshuffle.default", Layout.UNSHUFFLE, parameters("x", "factor")),
    _row("triu.default", Layout.UPPER, parameters("x", diagonal=0)),
    _row("tril.default", Layout.LOWER, parameters("x", diagonal=0)),
    _row("diag", Layout.DIAGONAL),
    _row("diag_embed", Layout.DIAGONAL),
    # rows or elements picked by index or by order
    Operator("aten.embedding", "embedding", no_work, traffic=Traffic.PART, checks_values=True),
    Operator("aten.index_select", "embedding", no_work, traffic=Traffic.PART, checks_values=True),
    Operator("aten.index", "embedding", no_work, checks_values=True),
    Operator("aten.gather", "embedding", no_work, checks_values=True),
    Operator(
        "aten.embedding_bag", "embedding", per_result, traffic=Traffic.ROWS, checks_values=True
    ),
    *(
        Operator(f"aten.{name}", "embedding", per_input, checks_values=True)
        for name in ("index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce")
    ),
    Operator("aten.sort", "sort", per_input),
    Operator("aten.topk", "sort", per_input),
    Operator("aten.median", "sort", per_input),
    # constants
    *(_row(name) for name in _CONSTANTS.split()),
    _row("zeros.default", Fill(0.0)),
    _row("zeros_like.default", Fill(0.0)),
    _row("new_zeros.default", Fill(0.0)),
    _row("ones.default", Fill(1.0)),
    _row("ones_like.default", Fill(1.0)),
    _row("new_ones.default", Fill(1.0)),
    _row("full.default", _full, parameters("size", "number")),
)
