"""What share of the roofline a vendor's kernel for an operator reaches.

Estimates of what runs in a library stand against estimates of kernels whose cost models follow
measurements; a library taken at the hardware's peaks would look faster than it is. Source: eager's
times in db/evidence, one H200, 2026-11-21 and 2026-11-22, torch 2.11, against bytes and FLOPs at
the rates of kmem.problem.costs.bound.REACHED; geometric means of one to seven problems an operator.
Operators that are not named reached 0.7 to 1.0 and are taken at 1.
"""

from collections.abc import Sequence

_SHARES = {
    "aten._softmax.default": 0.46,
    "aten._log_softmax.default": 0.6,
    "aten.native_layer_norm.default": 0.63,
    "aten.native_group_norm.default": 0.2,
    "aten.argmax.default": 0.64,
    "aten.argmin.default": 0.64,
    "aten.avg_pool2d.default": 0.27,
    "aten.avg_pool3d.default": 0.27,
    "aten.max_pool2d_with_indices.default": 0.19,
    "aten.max_pool3d_with_indices.default": 0.19,
}
_CONVOLUTION = "aten.convolution.default"
_TRANSPOSED, _GROUPED = 0.12, 0.16
_POINTWISE, _DENSE = 0.89, 0.41
_DENSE_3D = 0.18


def vendor_share(operator: str, arguments: Sequence[object]) -> float:
    """The share for one call of an operator, by its name as `str(OpOverload)` gives it."""
    if operator != _CONVOLUTION:
        return _SHARES.get(operator, 1.0)
    # input, weight, bias, stride, padding, dilation, transposed, output padding, groups
    taps = tuple(arguments[1].shape)[2:]  # type: ignore[attr-defined] # a tensor
    if arguments[6]:
        return _TRANSPOSED
    if arguments[8] != 1:
        return _GROUPED
    if set(taps) == {1}:
        return _POINTWISE
    return _DENSE_3D if len(taps) == 3 else _DENSE
