"""Operators of autograd's backward in plain ones, as they follow from each operator's derivative.

A table by target: functions on tensors that compute what an operator does, for backward.py to
trace. One that returns None leaves the operator as it is.

Covered: the derivatives of activations, softmax, losses, norms, selections and slices, and the
norms whose statistics a derivative reads. Not covered, and left as they are: convolutions, pooling,
attention, recurrences, embeddings. Statistics are computed in fp32 of half precision, as on a GPU.

Source: torch/_decomp/decompositions.py of torch 2.11, and the formulas of each norm's paper.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

#: Operators that torch's own decompositions write in plain operators, by their overload "default".
_TORCHS = [
    "gelu_backward",
    "silu_backward",
    "threshold_backward",
    "sigmoid_backward",
    "tanh_backward",
    "leaky_relu_backward",
    "elu_backward",
    "hardtanh_backward",
    "hardswish_backward",
    "hardsigmoid_backward",
    "mish_backward",
    "softplus_backward",
    "log_sigmoid_backward",
    "glu_backward",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "mse_loss_backward",
    "huber_loss_backward",
    "smooth_l1_loss_backward",
    "binary_cross_entropy_backward",
    "native_dropout_backward",
]

Tensor = torch.Tensor
#: What a norm or its derivative makes: some are left out.
_Made = tuple[Tensor | None, Tensor | None, Tensor | None]


def _wide(value: Tensor) -> Tensor:
    is_half = value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value


def _statistics(value: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor]:
    """The mean and 1 / sqrt(variance + eps) over dimensions, which stay as 1.

    The mean's own rounding is taken out, in the pass that sums squares: in rows of equal values it
    is alike, and adds up in sums over rows as the weight's gradient. Source: Chan, Golub, LeVeque,
    Algorithms for computing the sample variance, 1983.
    """
    mean = value.mean(dims, keepdim=True)
    rest = value - mean
    square = rest.square().mean(dims, keepdim=True)
    return mean + rest.mean(dims, keepdim=True), (square + eps).rsqrt()


def _norm_gradient(gradient: Tensor, normal: Tensor, scale: Tensor, dims: Sequence[int]) -> Tensor:
    """The gradient of what a norm normalizes over dimensions.

    Args:
        gradient: of the normalized values.
        normal: the normalized values.
        scale: 1 / sqrt(variance + eps), broadcast.
    """
    along = (gradient * normal).mean(dims, keepdim=True)
    return (_centred(gradient, dims) - normal * along) * scale


def _centred(value: Tensor, dims: Sequence[int]) -> Tensor:
    """A value less its mean, and less what rounding has left: 0 where all are equal."""
    value = value - value.mean(dims, keepdim=True)
    return value - value.mean(dims, keepdim=True)


def _sum(value: Tensor, dims: Sequence[int]) -> Tensor:
    return value.sum(dims) if dims else value  # of no dimension torch sums over all


def _layer_norm(
    value: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> _Made:
    dims = list(range(value.dim() - len(shape), value.dim()))
    wide = _wide(value)
    mean, scale = _statistics(wide, dims, eps)
    made = _scaled((wide - mean) * scale, weight, bias)
    return made.to(value.dtype), mean, scale


def _scaled(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    value = value if weight is None else value * _wide(weight)
    return value if bias is None else value + _wide(bias)


def _layer_norm_backward(
    gradient: Tensor,
    value: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> _Made:
    dims = list(range(value.dim() - len(shape), value.dim()))
    outer = list(range(value.dim() - len(shape)))

    def normal() -> Tensor:  # each reader computes it, so that it lies in no memory
        return (_wide(value) - _wide(mean)) * _wide(scale)

    inner = _wide(gradient) if weight is None else _wide(gradient) * _wide(weight)
    made = _norm_gradient(inner, normal(), _wide(scale), dims)
    sums = _sum(_wide(gradient) * normal(), outer), _sum(gradient, outer)
    return _gradients(value, weight, bias, mask, (made, *sums))


def _gradients(
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
    found: Sequence[Tensor | None],
) -> _Made:
    """Gradients that are asked for, each in the dtype of what it is of."""
    likes = (value, value if weight is None else weight, value if bias is None else bias)
    made = [
        each.to(like.dtype) if asked and each is not None else None
        for each, like, asked in zip(found, likes, mask, strict=True)
    ]
    return made[0], made[1], made[2]


def _of_channels(value: Tensor | None, rank: int) -> Tensor | None:
    """A value for each channel as it lies along the second of so many dimensions."""
    return None if value is None else value.view([1, -1, *[1] * (rank - 2)])


def _batch_norm(
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    takes_inputs_own: bool,
    momentum: float,
    eps: float,
) -> _Made:
    rank, wide = value.dim(), _wide(value)
    if takes_inputs_own:
        middle, scale = _statistics(wide, [0, *range(2, rank)], eps)
    else:
        middle = _of_channels(mean, rank)
        scale = (_of_channels(variance, rank) + eps).rsqrt()
    made = _scaled((wide - middle) * scale, *(_of_channels(each, rank) for each in (weight, bias)))
    channels = [value.shape[1]]
    return made.to(value.dtype), middle.reshape(channels), scale.reshape(channels)


def _batch_norm_backward(
    gradient: Tensor, value: Tensor, weight: Tensor | None, *others: Any
) -> _Made:
    running, own = others[:2], others[2:4]
    takes_inputs_own, eps = others[4:6]
    mask = others[6]
    rank = value.dim()
    if takes_inputs_own:
        middle, scale = (_of_channels(_wide(each), rank) for each in own)
    else:
        middle, variance = (_of_channels(_wide(each), rank) for each in running)
        scale = (variance + eps).rsqrt()
    dims = [0, *range(2, rank)]

    def normal() -> Tensor:
        return (_wide(value) - middle) * scale

    along = (_wide(gradient) * normal()).sum(dims)
    total = _wide(gradient).sum(dims)
    made, factor = _wide(gradient), scale
    if takes_inputs_own:
        count = value.numel() // value.shape[1]
        made = made - _of_channels(total / count, rank)
        made = made - normal() * _of_channels(along / count, rank)
    if weight is not None:
        factor = factor * _of_channels(_wide(weight), rank)
    return _gradients(value, weight, weight, mask, (made * factor, along, total))


def _group_norm(
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> _Made:
    shape = [samples, groups, channels // groups * positions]
    wide = _wide(value).reshape(shape)
    mean, scale = _statistics(wide, [2], eps)
    normal = ((wide - mean) * scale).reshape(value.shape)
    made = _scaled(normal, *(_of_channels(each, value.dim()) for each in (weight, bias)))
    statistics = [samples, groups]
    return made.to(value.dtype), mean.reshape(statistics), scale.reshape(statistics)


def _group_norm_backward(
    gradient: Tensor, value: Tensor, mean: Tensor, scale: Tensor, *others: Any
) -> _Made:
    weight, mask = others[0], others[5]
    groups = others[4]
    samples, rank = value.shape[0], value.dim()
    shape = [samples, groups, value.numel() // (samples * groups)]
    each = [samples, groups, 1]
    root = _wide(scale).reshape(each)

    def normal() -> Tensor:
        return (_wide(value).reshape(shape) - _wide(mean).reshape(each)) * root

    inner = _wide(gradient)
    if weight is not None:
        inner = inner * _of_channels(_wide(weight), rank)
    made = _norm_gradient(inner.reshape(shape), normal(), root, [2]).reshape(value.shape)
    dims = [0, *range(2, rank)]
    along = _wide(gradient) * normal().reshape(value.shape)
    return _gradients(value, weight, weight, mask, (made, along.sum(dims), gradient.sum(dims)))


def _select_backward(gradient: Tensor, shape: Sequence[int], axis: int, place: int) -> Tensor:
    axis, place = axis % len(shape), place % shape[axis]
    return _padded(gradient.unsqueeze(axis), shape, axis, place)


def _slice_backward(
    gradient: Tensor, shape: Sequence[int], axis: int, start: int, end: int, step: int
) -> Tensor | None:
    if step != 1:
        return None
    size = shape[axis]
    start = min(start, size) if start >= 0 else max(0, start + size)
    return _padded(gradient, shape, axis % len(shape), start)


def _padded(part: Tensor, shape: Sequence[int], axis: int, start: int) -> Tensor:
    """A part of a tensor among zeros."""
    sizes = start, shape[axis] - start - part.shape[axis]
    before, after = (
        part.new_zeros([*shape[:axis], size, *shape[axis + 1 :]]) if size else None
        for size in sizes
    )
    parts = [each for each in (before, part, after) if each is not None]
    return torch.cat(parts, axis) if len(parts) > 1 else part.clone()


_OURS: Mapping[str, Callable[..., Any]] = {
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
    "aten.select_backward.default": _select_backward,
    "aten.slice_backward.default": _slice_backward,
}
#: What computes an operator, by its target.
APART: Mapping[str, Callable[..., Any]] = {
    **{
        str(operator): apart
        for operator, apart in get_decompositions(
            [getattr(torch.ops.aten, name).default for name in _TORCHS]
        ).items()
    },
    **_OURS,
}
