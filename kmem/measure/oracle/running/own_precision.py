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
    product = torch.ones_like(values.select(dimension, 0), dtype=torch.float32)
    for place in range(values.shape[dimension]):
        product = product * values.select(dimension, place)
        mine = result.select(dimension, place)
        mine.copy_(torch.where(torch.isfinite(product), mine, product) if is_kept else product)
    return result
