"""A piece of a model that is trained, as two graphs: its forward, and its backward."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.problem.graph import OpGraph


@dataclass(frozen=True, slots=True)
class Joint:
    """A piece in training.

    `given` names what the backward takes, in order: values of the forward (its inputs, its state by
    its placeholders, its outputs), then gradients of those outputs whose places are in `recorded`.
    `gradients` has for placeholders of the forward where their gradient is found: the place among
    the backward's outputs or, counted from -1 downward, among what it is given from the end.
    """

    forward: OpGraph
    backward: OpGraph
    given: tuple[str, ...]
    recorded: tuple[int, ...]
    gradients: Mapping[str, int]
    saved: tuple[str, ...]  # values from inside, which are outputs of the forward for it alone

    @property
    def gradients_given(self) -> dict[str, str]:
        """Names of the gradients that the backward is given, and the outputs that each is of."""
        inputs = [each.name for each in self.backward.placeholders if each.kind == "input"]
        outputs = [self.forward.outputs[place] for place in self.recorded]
        return dict(zip(inputs[len(self.given) :], outputs, strict=True))

    @property
    def gradients_made(self) -> dict[str, str]:
        """Outputs of the backward, and what each is the gradient of."""
        outputs = self.backward.outputs
        return {outputs[place]: name for name, place in self.gradients.items() if place >= 0}
