"""What is right of one case beside the values of outputs, and how far outputs were from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from kmem.measure.oracle.correctness import ROUNDING, Difference, is_within

#: Relative errors from which not one digit of a result is right, and up to which float32 is exact.
_NO_DIGIT, _EXACT = 0.5, ROUNDING[torch.float32] / 4


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
    def may_have_cancelled(self) -> bool:
        """Whether outputs may fail for what cancelled in them, which their values do not show.

        Rows alone break the contract, not what all values err together; or eager has not one digit
        right, or is exact: then all of the right answer may be nothing beside what cancelled.
        """
        as_wholes = [replace(each, row_error=0.0) for each in self.found]
        wholes = map(is_within, as_wholes, self.eager, self.floors)
        return not self.is_within and all(
            is_right or _has_no_digit(found) and (_has_no_digit(eager) or _is_exact(eager))
            for is_right, found, eager in zip(wholes, self.found, self.eager, strict=True)
        )


def _has_no_digit(difference: Difference) -> bool:
    return difference.fault is None and difference.relative_error >= _NO_DIGIT


def _is_exact(difference: Difference) -> bool:
    """Whether eager is better than its type could be but for what is exact in it."""
    return difference.fault is None and difference.relative_error <= _EXACT


@dataclass(frozen=True, slots=True)
class Answer:
    """What is right beside the values of outputs.

    `layouts` are the outputs on the meta device: shapes, dtypes, strides.
    """

    returns_tuple: bool
    layouts: tuple[torch.Tensor, ...]
    floors: tuple[float, ...]  # the error allowed in each output whatever eager does
    # what the module leaves in inputs that it writes to, by index
    changed_inputs: Mapping[int, torch.Tensor] = field(default_factory=dict)
    oracle_inputs: Mapping[int, torch.Tensor] = field(default_factory=dict)
    aliases_inputs: bool = False  # whether an output of the module is a view of an input
    shares_outputs: bool = False  # whether two outputs of the module share memory
    # buffers after the forward, those that it changed
    eager_state: dict[str, torch.Tensor] = field(default_factory=dict)
    oracle_state: dict[str, torch.Tensor] = field(default_factory=dict)
    is_elementwise: bool = False  # whether each element follows from its own place in the inputs
    calls: int = 1  # forwards in a row that left these buffers
