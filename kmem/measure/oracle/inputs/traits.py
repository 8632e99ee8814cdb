"""Traits of a problem's inputs that every input family keeps.

They are found by comparing draws under different seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

#: Share of elements that are zero in both draws from which on they are taken for structure, as in a
#: triangular matrix.
_ZERO_SHARE = 0.2
_SAMPLE = 2**16
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class InputTraits:
    """What must stay true of one input.

    `fixed`: no floating numbers that may be anything. `zeros`: where exact zeros are, None if that
    may change. `repeated`: fixed, and the same in every draw.
    """

    fixed: bool
    zeros: torch.Tensor | None = None
    symmetric: bool = False
    repeated: bool = False


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
    found = [input_traits(place, None) for place in places]
    return [
        replace(trait, repeated=trait.fixed and _are_equal(_sample_of(place), sample))
        for trait, place, sample in zip(found, places, samples, strict=True)
    ]


def input_traits(first: object, second: object | None) -> InputTraits:
    """Find an input's traits from two draws of it under different seeds.

    Args:
        second: None where samples have shown that the draws share no zeros.
    """
    repeated = _are_equal(first, second)
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return InputTraits(fixed=True, repeated=repeated)
    sample = first.flatten()[:_SAMPLE]
    if (
        sample.numel()
        and _is_integral(sample)
        and all(_is_integral(part) for part, _ in _pieces(first, first))
    ):
        return InputTraits(fixed=True, repeated=repeated)
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


def _are_equal(first: object, second: object) -> bool:
    """Whether two tensors are the same; of other values nothing is said."""
    return (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and torch.equal(first, second)
    )


def _sample_of(value: object) -> torch.Tensor | None:
    """Some elements of a tensor, evenly spread; None of other values.

    They are at the same places in every draw.
    """
    if not isinstance(value, torch.Tensor):
        return None
    flat = value.flatten()
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()


def _may_share_zeros(sample: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether samples of two draws have many zeros in the same places.

    The input may then be made so, as a triangular matrix is.
    """
    if sample is None or other is None or not sample.numel() or not sample.is_floating_point():
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
