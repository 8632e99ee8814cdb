"""What is right of one case beside the values of outputs, and how far outputs were from it."""

from dataclasses import dataclass, field, replace

import torch

from kmem.measure.oracle.correctness import Difference, is_within


class InputsChanged(Exception):
    """An input is no longer what the case was made with, and no forward runs that may change it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Errors of each output against the oracle: of what was compared, and of eager itself."""

    found: tuple[Difference, ...]
    eager: tuple[Difference, ...]
    floors: tuple[float, ...]

    @property
    def is_within(self) -> bool:
        """Whether every output keeps the accuracy contract."""
        return all(map(is_within, self.found, self.eager, self.floors))

    @property
    def fails_in_rows(self) -> bool:
        """Whether rows alone break the contract, not what all values err together."""
        as_wholes = [replace(each, row_error=0.0) for each in self.found]
        return not self.is_within and all(map(is_within, as_wholes, self.eager, self.floors))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is right beside the values of outputs.

    `layouts` are the outputs on the meta device: shapes, dtypes, strides.
    """

    returns_tuple: bool
    layouts: tuple[torch.Tensor, ...]
    floors: tuple[float, ...]  # the error allowed in each output whatever eager does
    changed_inputs: tuple[int, ...] = ()  # indices of inputs that the module itself modifies
    aliases_inputs: bool = False  # whether an output of the module is a view of an input
    shares_outputs: bool = False  # whether two outputs of the module share memory
    # buffers after the forward, those that it changed
    eager_state: dict[str, torch.Tensor] = field(default_factory=dict)
    oracle_state: dict[str, torch.Tensor] = field(default_factory=dict)
    is_elementwise: bool = False  # whether each element follows from its own place in the inputs
