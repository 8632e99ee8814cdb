"""Which elements of a refused output are wrong, in words for whoever repairs the kernel."""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.answers.expected import Expected, WholeExpected

#: Wrong elements that are told with their values.
_SHOWN = 3
#: Elements compared at once, so that telling takes little memory.
_CHUNK = 1 << 22


def describe_wrong(
    expected: Expected, outputs: Sequence[torch.Tensor], index: int, allowed: float
) -> str:
    """The first wrong elements of one output; empty where the oracle is not in memory."""
    if not isinstance(expected, WholeExpected):
        return ""
    return wrong_elements(outputs[index], expected.oracle[index], allowed)


def wrong_elements(output: torch.Tensor, oracle: torch.Tensor, allowed: float) -> str:
    """The first wrong elements with their values beside the right ones, and how many there are.

    Wrong is an element that is further from the oracle than `allowed` times its own magnitude or
    that of a typical element, whichever is more, or not finite where the oracle is, or the other
    way round. Empty if no element by itself is that far off.

    Args:
        output: of the oracle's shape, any dtype.
        oracle: float64, or integers.
    """
    if output.is_complex() or output.shape != oracle.shape:
        return ""
    found, right = output.reshape(-1), oracle.reshape(-1)
    typical = _typical(right)
    wrong, first = 0, []
    for start in range(0, right.numel(), _CHUNK):
        one = found[start : start + _CHUNK].to(right.device, torch.float64)
        two = right[start : start + _CHUNK].to(torch.float64)
        far = (one - two).abs() > allowed * two.abs().clamp(min=typical)
        bad = torch.where(one.isfinite() & two.isfinite(), far, one.isfinite() != two.isfinite())
        wrong += int(bad.sum())
        if len(first) < _SHOWN:
            places = bad.nonzero().flatten()[: _SHOWN - len(first)]
            first += [
                (start + place, float(one[place]), float(two[place])) for place in places.tolist()
            ]
    if not first:
        return ""
    told = ", ".join(
        f"{list(_position(place, oracle.shape))} is {one:.6g}, should be {two:.6g}"
        for place, one, two in first
    )
    share = wrong / right.numel()
    return f"{wrong} of {right.numel()} elements ({share:.2g}) are wrong; the first: {told}"


def _typical(right: torch.Tensor) -> float:
    """The root of the mean square of the finite elements of a sample."""
    sample = right[:_CHUNK].to(torch.float64)
    finite = sample[sample.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _position(place: int, shape: torch.Size) -> tuple[int, ...]:
    position = []
    for size in reversed(shape):
        position.append(place % size)
        place //= size
    return tuple(reversed(position))
