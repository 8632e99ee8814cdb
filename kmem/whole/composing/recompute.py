"""A backward for kernels that have none: the operators that they replace, run again under autograd.

The forward keeps what the kernel was given and nothing that is inside; the backward computes the
inside once more, as checkpointing does, and lets autograd go through it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: A function of inputs (tensors and numbers) and of state (tensors).
Function = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]


def run_recomputed(
    kernel: Function, original: Function, inputs: Sequence[Any], state: Sequence[torch.Tensor]
) -> Any:
    """What a kernel makes of inputs and state, with the gradients of what it replaces.

    Args:
        kernel: runs without recording.
        original: must be made of operators that autograd knows, and draw no random numbers.
    """
    return _Recomputed.apply(kernel, original, len(inputs), *inputs, *state)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, kernel: Function, original: Function, count: int, *given: Any
    ) -> Any:
        ctx.original, ctx.count = original, count
        ctx.numbers = [None if isinstance(each, torch.Tensor) else each for each in given]
        ctx.save_for_backward(*(each if isinstance(each, torch.Tensor) else None for each in given))
        made = kernel(given[:count], given[count:])
        outputs = made if isinstance(made, tuple) else (made,)
        ctx.mark_non_differentiable(
            *(each for each in outputs if not each.is_floating_point() and not each.is_complex())
        )
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
        given = [
            number if tensor is None else tensor.detach().requires_grad_(needed)
            for number, tensor, needed in zip(
                ctx.numbers, ctx.saved_tensors, ctx.needs_input_grad[3:], strict=True
            )
        ]
        with torch.enable_grad():
            made = ctx.original(given[: ctx.count], given[ctx.count :])
        outputs = made if isinstance(made, tuple) else (made,)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad and gradient is not None
        ]
        wanted = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]
        found = iter(
            torch.autograd.grad(
                [output for output, _ in pairs],
                wanted,
                [gradient for _, gradient in pairs],
                allow_unused=True,
            )
        )
        return (
            None,
            None,
            None,
            *(
                next(found) if isinstance(each, torch.Tensor) and each.requires_grad else None
                for each in given
            ),
        )
