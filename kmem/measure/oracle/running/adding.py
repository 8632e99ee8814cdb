"""A module whose results add up over its rows: float64 in pieces where the whole finds no room.

A loss over gigabytes returns one number, and no slice of the answer is that number's. But the mean
over all rows is the mean of the means over pieces, a sum the sum of sums. Only where that is shown:
on a few rows in float64, each of another magnitude, where nothing but a sum or a mean adds up to
twelve digits; and on all rows for eager, but for its rounding.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch

from kmem.measure.oracle.correctness import is_rounding
from kmem.measure.oracle.running.forward import UNDEFINED
from kmem.measure.oracle.running.slices import PIECES, Run, Slicing

#: Rows of the proof in float64, the pieces that they are cut into, and how far the pieces may be
#: off: the rounding of some additions.
_PROOF_ROWS, _PROOF_PIECES = 12, 4
_PROOF_ERROR = 1e-12
#: Each row of the proof is so many times the one before: pieces differ by more than a draw's do.
_STEP = 1.5


@dataclass(frozen=True, slots=True)
class Adding:
    """How the results of pieces make those of the whole: as a mean over rows, or as a sum."""

    slicing: Slicing
    is_mean: bool

    def run(self, run: Run, values: Sequence[object]) -> tuple[torch.Tensor, ...]:
        """The results for all rows, by `run` on one piece after the other.

        Raises torch.OutOfMemoryError: if no piece fits, however fine.
        """
        return self.slicing.in_finer_pieces(
            lambda slicing: _add_up(run, values, slicing, is_mean=self.is_mean)
        )


def find_adding(eager: Run, double: Run, values: Sequence[object], floor: float) -> Adding | None:
    """How the module's results add up over rows; None if they do not.

    Args:
        eager: the module at its own precision. One that modifies its inputs is given copies of a
            few rows, and not asked further.
        double: the module in float64; it leaves its inputs alone.
        values: inputs at full size.
        floor: the error allowed in results (correctness.error_floor).
    """
    rows = next((value.shape[0] for value in values if _has_rows(value)), 0)
    sliced = tuple(
        index for index, value in enumerate(values) if _has_rows(value) and len(value) == rows
    )
    if rows < _PROOF_ROWS:
        return None
    few = _few_rows(values, sliced)
    try:
        if _modifies(eager, few):
            return None
        for is_mean in (True, False):
            adding = Adding(Slicing(sliced, PIECES[0]), is_mean)
            if _adds_up_exactly(double, few, adding) and _adds_up(eager, values, adding, floor):
                return adding
    except torch.OutOfMemoryError:
        raise
    except UNDEFINED:  # it accepts no slices of its inputs
        return None
    return None


def _has_rows(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _few_rows(values: Sequence[object], sliced: Collection[int]) -> list[object]:
    """Copies of the first rows, each of another magnitude, and of what has no rows."""
    few: list[object] = []
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            value = value[:_PROOF_ROWS].clone() if index in sliced else value.clone()
            if index in sliced and value.is_floating_point():
                sizes = _STEP ** torch.arange(len(value), device=value.device)
                value *= sizes.reshape(-1, *(1,) * (value.dim() - 1)).to(value.dtype)
        few.append(value)
    return few


def _modifies(eager: Run, few: Sequence[object]) -> bool:
    tensors = [value for value in few if isinstance(value, torch.Tensor)]
    versions = [value._version for value in tensors]
    eager(few)
    return [value._version for value in tensors] != versions


def _adds_up_exactly(double: Run, few: Sequence[object], adding: Adding) -> bool:
    whole = double(few)
    cut = Slicing(adding.slicing.sliced, _PROOF_PIECES)
    parts = _add_up(double, few, cut, is_mean=adding.is_mean)
    return all(
        one.shape == other.shape
        and other.is_floating_point()
        and torch.allclose(one, other, rtol=_PROOF_ERROR, atol=0.0)
        for one, other in zip(parts, whole, strict=True)
    )


def _adds_up(eager: Run, values: Sequence[object], adding: Adding, floor: float) -> bool:
    whole = eager(values)
    parts = _add_up(eager, values, adding.slicing, is_mean=adding.is_mean)
    return all(
        is_rounding(one.to(other.dtype), other, floor)
        for one, other in zip(parts, whole, strict=True)
    )


def _add_up(
    run: Run, values: Sequence[object], slicing: Slicing, *, is_mean: bool
) -> tuple[torch.Tensor, ...]:
    totals: list[torch.Tensor] = []
    first = values[slicing.sliced[0]]
    assert isinstance(first, torch.Tensor)
    for place, part in slicing.parts(values):
        share = (place.stop - place.start) / first.shape[0] if is_mean else 1.0
        results = [share * value.double() for value in run(part)]
        if totals:
            results = [total + value for total, value in zip(totals, results, strict=True)]
        totals = results
    return tuple(totals)
