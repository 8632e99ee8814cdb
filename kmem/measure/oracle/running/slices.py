"""A module taken slice by slice along the first dimension.

For modules whose whole float64 run would crowd the device's memory. Only where slices are shown to
give the same answer: eager's answer for every slice must be that slice of eager's answer for the
whole. A module that mixes rows (a batch norm in training, a mean over the batch) fails this and is
taken whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import torch

from kmem.measure.oracle.correctness import is_rounding
from kmem.measure.oracle.running.forward import UNDEFINED

#: Numbers of slices to try. Beyond the last one a single row is probably what does not fit.
PIECES = (4, 16, 64, 256)

Run = Callable[[Sequence[object]], tuple[torch.Tensor, ...]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slicing:
    """Which inputs are cut along their first dimension, and into how many pieces.

    `exact` if eager's answers are the same bit for bit.
    """

    sliced: tuple[int, ...]
    pieces: int
    exact: bool = False

    def parts(self, values: Sequence[object]) -> Iterator[tuple[slice, list[object]]]:
        """The rows of each piece, and the inputs of the module for them: views."""
        rows = values[self.sliced[0]].shape[0]
        step = max(1, -(-rows // self.pieces))
        for start in range(0, rows, step):
            place = slice(start, min(start + step, rows))
            yield (
                place,
                [
                    value[place] if index in self.sliced else value
                    for index, value in enumerate(values)
                ],
            )

    def finer(self) -> "Slicing | None":
        """The next larger number of pieces; None if there is none."""
        larger = [pieces for pieces in PIECES if pieces > self.pieces]
        return Slicing(self.sliced, larger[0]) if larger else None

    def in_finer_pieces(self, work: Callable[["Slicing"], T]) -> T:
        """Do the work, in finer pieces while the device's memory is short.

        Raises torch.OutOfMemoryError: if no pieces are fine enough.
        """
        slicing: Slicing | None = self
        while slicing is not None:
            try:
                return work(slicing)
            except torch.OutOfMemoryError:
                if slicing.finer() is None:
                    raise
            finally:
                torch.cuda.empty_cache()  # does nothing without a GPU
            slicing = slicing.finer()
        raise AssertionError("the last pieces either fit or raise")


def find_slicing(
    eager: Run,
    values: Sequence[object],
    whole: tuple[torch.Tensor, ...],
    floor_for: Callable[[torch.dtype], float],
    *,
    pieces: int,
) -> Slicing | None:
    """A way to cut these inputs so that the answers for the pieces are those for the whole.

    None if there is none.

    Args:
        eager: the module at its own precision; it must not modify what it is given.
        whole: its answer for `values`.
        floor_for: the error allowed by type (correctness.error_floor).
        pieces: how many to cut the inputs into.
    """
    if (
        any(output.dim() == 0 for output in whole)
        or len({output.shape[0] for output in whole}) != 1
    ):
        return None
    batched = tuple(
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.shape[:1] == whole[0].shape[:1]
    )
    # of two square matrices only the first has the rows of the result
    for sliced in dict.fromkeys((batched, batched[:1])):
        slicing = Slicing(sliced, pieces)
        seen = compare_pieces(eager, values, whole, slicing, floor_for) if sliced else Sameness.NONE
        if seen is not Sameness.NONE:
            return replace(slicing, exact=seen is Sameness.BITS)
    return None


class Sameness(Enum):
    """How eager's answers for pieces compare with its answer for the whole."""

    NONE = "another answer"
    ROUNDING = "the same but for rounding"
    BITS = "the same bit for bit"


def compare_pieces(
    eager: Run,
    values: Sequence[object],
    whole: tuple[torch.Tensor, ...],
    slicing: Slicing,
    floor_for: Callable[[torch.dtype], float],
) -> Sameness:
    """Hold eager's answers for the slices to those of its answer for the whole."""
    exact = True
    for place, part in slicing.parts(values):
        try:
            outputs = eager(part)
        except torch.OutOfMemoryError:
            raise
        except UNDEFINED:
            return Sameness.NONE  # the module does not accept slices of these inputs
        for output, all_rows in zip(outputs, whole, strict=True):
            right = all_rows[place]
            if output.shape != right.shape:
                return Sameness.NONE
            # another batch size may have another vendor kernel
            if not is_rounding(output, right, floor_for(right.dtype)):
                return Sameness.NONE
            exact = exact and torch.equal(output, right)
    return Sameness.BITS if exact else Sameness.ROUNDING
