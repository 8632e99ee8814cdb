"""Running products as a GPU's eager has them, where the CPU stands in for it.

PyTorch's cumprod on the CPU multiplies fp32 in float64 and rounds what it stores: a product that
leaves fp32's range on the way comes back. On a GPU it is infinite, or zero, from there on, and so
it is in every kernel that is right there. Source: PyTorch, aten/src/ATen/native, cumprod of
cpu/ReduceOpsKernel.cpp (at::acc_type) and of cuda/CumprodKernel.cu (multiplies<scalar_t>).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OwnPrecisionProducts(TorchDispatchMode):
    """Under it a running product of fp32 on the CPU stays in fp32."""

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
        product = torch.ones_like(values.select(dimension, 0), dtype=torch.float32)
        for place in range(values.shape[dimension]):
            product = product * values.select(dimension, place)
            result.select(dimension, place).copy_(product)
        return result
