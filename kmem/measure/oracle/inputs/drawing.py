"""Lets a problem's `get_inputs()` draw its random numbers where they will lie.

So large inputs are in memory once, not twice.
"""

from collections.abc import Callable, Sequence

import torch
from torch.overrides import TorchFunctionMode

from kmem.measure.oracle.running.forward import seed_generators

#: Factories that take `out`; they draw the same numbers with it as without.
_FACTORIES = (torch.rand, torch.randn)
#: Keywords that `out` agrees with, once device and dtype are those of the tensor written to.
_KEYWORDS = {"device", "dtype", "generator"}


def draw_into(
    places: Sequence[object],
    make: Callable[[], list[object]],
    *,
    seed: int,
    device: torch.device,
) -> list[object]:
    """The values that `make` returns after `torch.manual_seed(seed)`.

    Some of them may be drawn into `places` already. A value is either the place with its own index
    or shares no memory with any place, so that copying values to places is safe.

    Args:
        places: what the values will be copied to; those that are no contiguous tensors are left
            alone.
        device: where `make` draws, if not on the CPU.
        make: returns values for `places`, the same for the same seed; called twice where it mixes
            the places up.
    """
    seed_generators(seed, device)
    with _DrawnInPlace(places):
        values = make()
    if all(_is_safe(value, index, places) for index, value in enumerate(values)):
        return values
    seed_generators(seed, device)
    return make()


class _DrawnInPlace(TorchFunctionMode):
    """Hands each place to the first factory call that wants a tensor like it."""

    def __init__(self, places: Sequence[object]) -> None:
        super().__init__()
        self._free = [
            place for place in places if isinstance(place, torch.Tensor) and place.is_contiguous()
        ]

    # torch's own signature
    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.keys() <= _KEYWORDS:
            place = self._take(args, kwargs)
            if place is not None:
                kept = {name: value for name, value in kwargs.items() if name == "generator"}
                return func(*args, out=place, **kept)
        return func(*args, **kwargs)

    def _take(self, args: Sequence[object], kwargs: dict[str, object]) -> torch.Tensor | None:
        shape = tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else args
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        device = torch.device(kwargs.get("device") or "cpu")
        for index, place in enumerate(self._free):
            if (
                tuple(place.shape) == shape
                and place.dtype == dtype
                and place.device.type == device.type
            ):
                return self._free.pop(index)
        return None


def _is_safe(value: object, index: int, places: Sequence[object]) -> bool:
    if not isinstance(value, torch.Tensor) or value is places[index]:
        return True
    return all(
        not isinstance(place, torch.Tensor) or not _share_memory(value, place) for place in places
    )


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
