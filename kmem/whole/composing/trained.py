"""A piece in training: its forward saves what its backward reads, and each may be a kernel's.

Both halves run without recording; autograd sees one function between them. It has a first
derivative alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: A function of inputs (tensors and numbers) and of state (tensors).
Function = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]

_ONE_DERIVATIVE = (
    "kmem's kernels have a first derivative alone, and create_graph=True asks for a second; call "
    "undo() on their handle before"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """A piece's halves, and what goes between them.

    `forward` makes a piece's `outputs` and, after them, what is saved. `backward` takes what
    `given` says, then gradients of the outputs in `recorded`; `takes` has the shape, strides and
    dtype of each. `given` has pairs: "input", "state" or "output" (of the forward), and a place.
    `gradients` has for each input, then each state, the place of its gradient among the backward's
    results, from -1 downward among the gradients that it is given; None where there is none.
    """

    forward: Function
    backward: Callable[..., Any]
    outputs: int
    given: tuple[tuple[str, int], ...]
    recorded: tuple[int, ...]
    takes: tuple[Mapping[str, Any], ...]
    gradients: tuple[int | None, ...]

    def run(self, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The outputs, with their gradients.

        Raises RuntimeError: in the backward, if the gradients are to have gradients.
        """
        made: tuple[Any, ...] = _Step.apply(self, len(inputs), *inputs, *state)
        return made

    def saved(
        self, inputs: Sequence[Any], state: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> Iterator[torch.Tensor]:
        """What the backward takes of a forward, in its order."""
        kinds = {"input": inputs, "state": state, "output": made}
        for kind, place in self.given:
            yield kinds[kind][place]


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, piece: Trained, count: int, *given: Any
    ) -> tuple[torch.Tensor, ...]:
        inputs, state = given[:count], given[count:]
        made = piece.forward(inputs, state)
        made = made if isinstance(made, tuple) else (made,)
        ctx.piece = piece
        ctx.save_for_backward(*piece.saved(inputs, state, made))
        outputs = made[: piece.outputs]
        others = (each for n, each in enumerate(outputs) if n not in piece.recorded)
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise RuntimeError(_ONE_DERIVATIVE)
        piece: Trained = ctx.piece
        known = [gradients[place] for place in piece.recorded]
        if all(each is None for each in known):
            return None, None, *(None for _ in piece.gradients)
        saved = ctx.saved_tensors
        device = next(each.device for each in known if each is not None)
        given = [
            _laid(each, wanted, device)
            for each, wanted in zip((*saved, *known), piece.takes, strict=True)
        ]
        found = piece.backward(*given)
        made = found if isinstance(found, tuple) else (found,)
        last = given[len(saved) :]
        needs = ctx.needs_input_grad[2:]

        def gradient(place: int | None, needed: bool) -> torch.Tensor | None:
            if place is None or not needed:
                return None
            return made[place] if place >= 0 else last[place]

        return None, None, *map(gradient, piece.gradients, needs)


def _laid(
    value: torch.Tensor | None, wanted: Mapping[str, Any], device: torch.device
) -> torch.Tensor:
    """A tensor as a backward takes it: in the strides that it was made for, zeros for nothing."""
    if value is None:
        dtype = getattr(torch, wanted["dtype"])
        made = torch.empty_strided(wanted["shape"], wanted["stride"], dtype=dtype, device=device)
        return made.zero_()
    if list(value.stride()) == list(wanted["stride"]):
        return value
    made = torch.empty_strided(
        wanted["shape"], wanted["stride"], dtype=value.dtype, device=value.device
    )
    return made.copy_(value)
