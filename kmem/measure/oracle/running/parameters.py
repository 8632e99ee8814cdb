"""A second set of parameters and buffers: what a constructor leaves constant, and what it hides.

A layer norm is born with weights of one, a running mean of zero, a gate closed: a candidate that
leaves them out is right until somebody trains the module.

Covered: floating parameters and buffers that are constant, or too small to matter; the elements of
other parameters change places, so that what a candidate made of them before is wrong. Left alone:
other buffers, integers, and what is not finite, as the mask of an attention.
"""

from collections.abc import Collection, Mapping

import torch

#: Below this magnitude a parameter adds next to nothing to a result: it counts as zero.
_SMALL = 1e-2
#: The magnitude that small parameters are given.
_USUAL = 0.5
_NEGATIVE_SHARE = 0.3


def vary_state(
    initial: Mapping[str, torch.Tensor],
    parameters: Collection[str],
    generator: torch.Generator,
    *,
    signed: bool,
) -> dict[str, torch.Tensor]:
    """Other values for parameters, and for buffers that are constant, under their names and types.

    Zeros become normal numbers. Other constants are changed by up to half of themselves, and some
    elements of parameters get the other sign; a buffer keeps it, for it may be a variance.

    Args:
        parameters: names of parameters; the others are buffers.
        generator: on the tensors' device.
        signed: whether signs of parameters change too.
    """
    varied = {}
    for name, value in initial.items():
        is_parameter = name in parameters
        varied[name] = value
        if not value.is_floating_point() or not value.numel() or not torch.isfinite(value).all():
            continue
        largest = value.abs().max()
        if largest < _SMALL:
            scale = _USUAL / largest if largest > 0 and _has_spread(value) else 0.0
            drawn = torch.empty_like(value).normal_(generator=generator) * _USUAL
            varied[name] = value * scale if scale else drawn
        elif not _has_spread(value):
            coins = torch.rand(value.shape, generator=generator, device=value.device)
            factors = 0.5 + torch.rand(value.shape, generator=generator, device=value.device)
            if signed and is_parameter:
                factors = torch.where(coins < _NEGATIVE_SHARE, -factors, factors)
            varied[name] = value * factors.to(value.dtype)
        elif is_parameter:
            varied[name] = value.flatten().roll(1).view(value.shape)
    return varied


def _has_spread(value: torch.Tensor) -> bool:
    return bool(value.max() > value.min())
