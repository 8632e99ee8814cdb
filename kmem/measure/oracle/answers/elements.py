"""Single elements: how many are wrong beside their own magnitude, and rows that nothing defines.

The accuracy contract (correctness.py) weighs an error by its row: where one element of a row is
huge, the others may be anything. Where a module takes each element by itself there is no reason for
that.
"""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.correctness import ROUNDING

#: An element is unlike the right one if it errs by more than all of: this share of it, so many
#: times what eager errs there, and so many floors of the inputs at its place (or of 1, for what
#: cancels, as log(1 + exp(x))).
_SHARE, _ROUNDINGS = 1e-3, 8.0
_EAGER, _FLOORS = 64.0, 8.0
#: Single elements may be unlike by an unlucky cancellation; this share of them is none.
UNLIKE_AT_MOST = 1 / 64


def unlike_share(
    output: torch.Tensor,
    oracle: torch.Tensor,
    others: Sequence[torch.Tensor],
    magnitude: torch.Tensor,
    floor: float,
) -> float:
    """The share of finite elements that are wrong beside their own magnitude.

    Args:
        others: answers that are as good as any: eager's first.
        magnitude: of the inputs at each place, as `input_magnitude` gives it.
        floor: the error allowed in a result of this type.
    """
    if not output.is_floating_point() or not output.numel():
        return 0.0
    right = oracle.double()
    found, *known = (value.to(right.device).double() for value in (output, *others))
    share = max(_SHARE, _ROUNDINGS * ROUNDING.get(output.dtype, 2.0**-4))
    allowed = torch.maximum(share * right.abs(), _FLOORS * floor * magnitude)
    counted = torch.isfinite(right) & torch.isfinite(found)
    for other in known:
        allowed = torch.maximum(allowed, _EAGER * (other - right).abs())
        counted &= torch.isfinite(other)
    unlike = counted & ((found - right).abs() > allowed)
    return unlike.double().mean().item()


def input_magnitude(values: Sequence[object], shape: torch.Size) -> torch.Tensor:
    """At each place of a result the largest magnitude of the inputs there, at least 1.

    Of inputs with other shapes the largest of all counts.
    """
    floating = [
        value.detach()
        for value in values
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    ]
    largest = torch.ones((), dtype=torch.float64, device=floating[0].device)
    for value in floating:
        size = value.double().abs().nan_to_num(0.0, 0.0, 0.0)
        largest = torch.maximum(largest, size if value.shape == shape else size.max())
    return largest


def is_elementwise_at(
    value: torch.Tensor, outputs: Sequence[torch.Tensor], before: Sequence[torch.Tensor], place: int
) -> bool:
    """Whether NaN at one place of an input has made NaN there in every output, and nowhere else.

    Args:
        value: the input, with NaN at this place.
        outputs: for it.
        before: outputs for what was there before.
    """
    for output, earlier in zip(outputs, before, strict=True):
        if output.shape != value.shape or not output.is_floating_point():
            return False
        new = output.isnan() & ~earlier.isnan()
        if int(new.sum()) != 1 or not bool(new.reshape(-1)[place]):
            return False
    return True


def fill_undefined_rows(output: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Zeros in place of rows of NaN where eager has nothing but zeros."""
    if not output.is_floating_point() or not output.dim() or not output.numel():
        return output
    own = eager.to(output.device)
    undefined = output.isnan().all(-1, keepdim=True) & (own == 0).all(-1, keepdim=True)
    return torch.where(undefined, own, output) if bool(undefined.any()) else output
