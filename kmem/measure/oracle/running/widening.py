"""A forward that casts inside, computed in float64 all the same.

A module in float64 whose forward says `x.to(torch.bfloat16)`, `torch.zeros(n, dtype=torch.float32)`
or `x.half()` would round there, or mix dtypes and fail. Under this mode every floating dtype that
torch is asked for is float64. Autocast leaves float64 alone by itself. Not covered: a forward that
asks for the dtype of a tensor and does something else, and bits read as another type.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
#: Reads the same bits as another type.
_KEPT = (torch.ops.aten.view.dtype,)


class Widening(TorchDispatchMode):
    """Every floating dtype that an operator names is float64 under it, complex128 if complex."""

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        function: Callable[..., Any] = operator
        given = dict(kwargs or {})
        if operator in _KEPT:
            return function(*args, **given)
        return function(
            *(_widened(each) for each in args),
            **{name: _widened(each) for name, each in given.items()},
        )


def _widened(value: Any) -> Any:
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value
