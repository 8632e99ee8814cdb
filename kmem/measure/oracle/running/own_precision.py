"""Running products in fp32 alone, one after the other.

PyTorch's cumprod on the CPU multiplies fp32 in float64 and rounds what it stores: a product that
leaves fp32's range on the way comes back. On a GPU it is infinite, or zero, from there on, and so
it is in every kernel that is right there. Source: PyTorch, aten/src/ATen/native, cumprod of
cpu/ReduceOpsKernel.cpp (at::acc_type) and of cuda/CumprodKernel.cu (multiplies<scalar_t>).

On a GPU eager multiplies parts of a row first, so that a product may be finite behind one that has
left the range. A kernel in another order is as right: what is not finite one after the other counts
as eager's answer there, beside what a candidate makes finite.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Elements that are looked at at once: 128 MB in float64.
_AT_A_TIME = 2**24
#: Logarithms of the largest product that is no infinity for sure (fp32 ends at 2**128), and of
#: fp32's smallest normal number.
_SAFE_LOG2, _SMALLEST_LOG2 = 127.0, -126.0
#: What stands for the logarithm of zero: below all that a row of other factors brings back.
_LOG2_OF_ZERO = -1.0e6


class OwnPrecisionProducts(TorchDispatchMode):
    """Under it a running product of fp32 stays in fp32, and where it left the range is told."""

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        function: Callable[..., Any] = operator
        result = function(*args, **(kwargs or {}))
        if operator is not torch.ops.aten.cumprod.default or result.dtype is not torch.float32:
            return result
        values, dimension = args[0], args[1]
        if not values.dim():
            return result
        return one_after_the_other(result, values, dimension, is_kept=result.is_cuda)


def one_after_the_other(
    result: torch.Tensor, values: torch.Tensor, dimension: int, *, is_kept: bool
) -> torch.Tensor:
    """`result`, the running product of `values`, in place: anew, one factor after the other.

    With `is_kept` what it is stays, but where a product of this order is not finite.
    """
    if is_kept and stays_in_range(values, dimension):
        return result
    factors, mine = values.movedim(dimension, 0), result.movedim(dimension, 0)
    product = torch.ones_like(factors[0], dtype=torch.float32)
    places = max(1, _AT_A_TIME // max(1, product.numel()))
    # of some places at once all but the products themselves: a row has 32,768 of them, and a GPU is
    # asked for each
    for before, now in zip(factors.split(places), mine.split(places), strict=True):
        before = before.contiguous()  # noqa: PLW2901 - the same factors, side by side
        products = torch.empty(before.shape, dtype=torch.float32, device=before.device)
        for factor, place in zip(before, products, strict=True):
            product = torch.mul(product, factor, out=place)
        now.copy_(torch.where(torch.isfinite(products), now, products) if is_kept else products)
    return result


def stays_in_range(values: torch.Tensor, dimension: int) -> bool:
    """Whether no running product in fp32, one factor after the other, is infinite or NaN.

    True says so for sure. Logarithms add up; each factor may bring a rounding, which the distance
    from the range's end holds for millions of them. Below the smallest normal number a product may
    be rounded up time and again, and stay where it is: from there on it counts as that number.
    """
    rows = values.movedim(dimension, -1).reshape(-1, values.shape[dimension])
    for part in rows.split(max(1, _AT_A_TIME // max(1, rows.shape[1]))):
        size = part.double().abs_()
        if not bool(torch.isfinite(size).all()):
            return False
        if not size.numel():
            continue
        sums = size.log2_().clamp_min_(_LOG2_OF_ZERO).cumsum_(1)
        sums += (_SMALLEST_LOG2 - sums.cummin(1).values).clamp_min_(0)
        if float(sums.max()) > _SAFE_LOG2:
            return False
    return True
