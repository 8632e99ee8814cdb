"""Traits of a problem's inputs that every input family keeps, found by comparing draws under
different seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

#: Share of elements that are zero in both draws from which on they are taken for structure, as in a
#: triangular matrix.
_ZERO_SHARE = 0.2
_SAMPLE = 2**16
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class InputTraits:
    """What must stay true of one input: values as drawn (`fixed`), exact zeros at the same places
    (`zeros`), symmetry.
    """

    fixed: bool
    zeros: torch.Tensor | None = None
    symmetric: bool = False


def find_traits_in_turn(
    places: Sequence[object],
    write: Callable[[int], None],
    draw: Callable[[int], list[object]],
    seeds: tuple[int, int],
) -> list[InputTraits]:
    """Traits of inputs too large to have two draws of in memory, unless samples of them ask for
    both.

    Args: places: where the inputs lie. write: puts the draw of a seed there. draw: makes one
        elsewhere. seeds: of the two draws; the places then hold that of the first.
    """
    first, second = seeds
    write(second)
    samples = [_sample_of(place) for place in places]
    write(first)
    if any(
        _may_share_zeros(one, _sample_of(place)) for one, place in zip(samples, places, strict=True)
    ):
        return [input_traits(one, other) for one, other in zip(places, draw(second), strict=True)]
    return [input_traits(place, None) for place in places]


def input_traits(first: object, second: object | None) -> InputTraits:
    """Find an input's traits from two draws of it under different seeds; None where samples have
    shown that they share no zeros.
    """
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return InputTraits(fixed=True)
    sample = first.flatten()[:_SAMPLE]
    if (
        sample.numel()
        and _is_integral(sample)
        and all(_is_integral(part) for part, _ in _pieces(first, first))
    ):
        return InputTraits(fixed=True)
    zeros = None
    if second is not None:
        shared_zeros = sum(
            int(((one == 0) & (other == 0)).sum()) for one, other in _pieces(first, second)
        )
        zeros = (
            (first == 0) & (second == 0)
            if shared_zeros >= _ZERO_SHARE * max(first.numel(), 1)
            else None
        )
    square = first.dim() >= 2 and first.shape[-1] == first.shape[-2] and first.shape[-1] > 1
    return InputTraits(
        fixed=False, zeros=zeros, symmetric=bool(square and torch.equal(first, first.mT))
    )


def _sample_of(value: object) -> torch.Tensor | None:
    """Some elements of a floating tensor, evenly spread, the same ones of every draw; None of other
    values.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    flat = value.flatten()
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def _may_share_zeros(sample: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether samples of two draws have so many zeros in the same places that the input may be made
    so, such as a triangular matrix.
    """
    if sample is None or other is None or not sample.numel():
        return False
    return float(((sample == 0) & (other == 0)).float().mean()) >= _ZERO_SHARE / 2


def _is_integral(value: torch.Tensor) -> bool:
    return bool((value == value.round()).all())


def _pieces(
    first: torch.Tensor, second: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Equal parts of two tensors of one shape, so that temporaries stay small beside large inputs."""
    rows = first.shape[0] if first.dim() else 1
    step = max(1, rows * _PIECE // max(first.numel(), 1))
    if not first.dim():
        yield first, second
        return
    for start in range(0, rows, step):
        yield first[start : start + step], second[start : start + step]
