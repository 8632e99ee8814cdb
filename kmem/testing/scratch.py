"""Uninitialised memory that holds NaN, so that reading it is noticed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def poisoned_scratch(integer: int = -(2**30)) -> Iterator[None]:
    """Fill what torch.empty, empty_like and empty_strided allocate with NaN, or with this integer.

    A kernel that reads what nobody has written then gives a wrong result always, not now and then.
    """
    import torch  # heavy; and TRITON_INTERPRET must be set before it comes in

    def poisoned(make: "Callable[..., torch.Tensor]") -> "Callable[..., torch.Tensor]":
        def call(*sizes: object, **given: object) -> torch.Tensor:
            made = make(*sizes, **given)
            if made.device.type != "cpu":
                return made
            if made.is_floating_point():
                made.fill_(float("nan"))
            elif made.dtype in (torch.int32, torch.int64):
                made.fill_(integer)
            return made

        return call

    originals = {name: getattr(torch, name) for name in ("empty", "empty_like", "empty_strided")}
    try:
        for name, make in originals.items():
            setattr(torch, name, poisoned(make))
        yield
    finally:
        for name, make in originals.items():
            setattr(torch, name, make)
