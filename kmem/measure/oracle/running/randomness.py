"""Whether a module draws random numbers.

If it does, there is another answer to every seed, and the oracle must be dealt what eager drew
(draws.py).
"""

from collections.abc import Callable, Sequence

import torch

from kmem.measure.oracle.correctness import is_rounding
from kmem.measure.oracle.running.forward import seed_generators


def has_drawn(device: torch.device, seed: int) -> bool:
    """Whether torch's random numbers were used since they were seeded with `seed`.

    On the CPU or this device. Seeds them again.
    """
    after = generator_states(device)
    seed_generators(seed, device)
    return any(
        not torch.equal(one, two) for one, two in zip(after, generator_states(device), strict=True)
    )


def generator_states(device: torch.device) -> list[torch.Tensor]:
    """The states of torch's random numbers on the CPU and on this device."""
    on_device = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_device]


def are_random(
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    floor_for: Callable[[torch.dtype], float],
    *,
    drew: bool,
) -> bool:
    """Whether two answers to the same inputs differ by more than an order of additions.

    Some vendor kernels add in whatever order their threads arrive. Source:
    torch.use_deterministic_algorithms names the operators that do, cuDNN's transposed convolutions
    among them.

    Args:
        floor_for: the error allowed by type (correctness.error_floor).
        drew: whether random numbers of torch were used for the second.
    """
    return any(
        not torch.equal(one, two)
        and not one.isnan().any()
        and (drew or not is_rounding(one, two, floor_for(two.dtype)))
        for one, two in zip(first, second, strict=True)
    )
