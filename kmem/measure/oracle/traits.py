"""Traits of a problem's inputs that every input family keeps.

They are found by comparing draws under different seeds.
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
    """What must stay true of one input.

    `fixed`: the values are as drawn. `zeros`: where exact zeros are, None if that may change.
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
    """Traits of inputs that are too large for two draws in memory.

    Two draws are there all the same where samples of them may share zeros.

    Args:
        places: where the inputs lie; in the end they hold the draw of the first seed.
        write: puts the draw of a seed there.
        draw: makes a draw elsewhere.
        seeds: of the two draws.
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
    """Find an input's traits from two draws of it under different seeds.

    Args:
        second: None where samples have shown that the draws share no zeros.
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
        if shared_zeros >= _ZERO_SHARE * max(first.numel(), 1):
            zeros = (first == 0) & (second == 0)
    square = first.dim() >= 2 and first.shape[-1] == first.shape[-2] and first.shape[-1] > 1
    return InputTraits(
        fixed=False, zeros=zeros, symmetric=bool(square and torch.equal(first, first.mT))
    )


def _sample_of(value: object) -> torch.Tensor | None:
    """Some elements of a floating tensor, evenly spread; None of other values.

    They are at the same places in every draw.
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    flat = value.flatten()
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def _may_share_zeros(sample: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether samples of two draws have many zeros in the same places.

    The input may then be made so, as a triangular matrix is.
    """
    if sample is None or other is None or not sample.numel():
        return False
    return float(((sample == 0) & (other == 0)).float().mean()) >= _ZERO_SHARE / 2


def _is_integral(value: torch.Tensor) -> bool:
    return bool((value == value.round()).all())


def _pieces(
    first: torch.Tensor, second: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Equal parts of two tensors of one shape; temporaries stay small beside large inputs."""
    rows = first.shape[0] if first.dim() else 1
    step = max(1, rows * _PIECE // max(first.numel(), 1))
    if not first.dim():
        yield first, second
        return
    for start in range(0, rows, step):
        yield first[start : start + step], second[start : start + step]
