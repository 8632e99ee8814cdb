"""How wrong eager and trivial outputs are where the answer is made slice by slice."""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.answers.trivial import trivial_outputs
from kmem.measure.oracle.correctness import (
    Difference,
    ErrorTally,
    allowances,
    is_within,
)

#: A trivial output that errs by more in a row of the first slice, as a share of the row, is not
#: looked at in the others: of a gigabyte they would take most of the time of a comparison.
_HOPELESS = 0.1


class Trial:
    """How wrong eager and trivial outputs are, added up over slices."""

    def __init__(self, outputs: int) -> None:
        self._eager = [ErrorTally() for _ in range(outputs)]
        self._trivial: list[dict[str, ErrorTally]] = [{} for _ in range(outputs)]
        self._hopeless: list[dict[str, Difference]] = [{} for _ in range(outputs)]
        # eager's first slice of each output, whose mean the constant is
        self._first: list[torch.Tensor | None] = [None] * outputs

    def add(
        self, index: int, eager: torch.Tensor, oracle: torch.Tensor, part: Sequence[object]
    ) -> None:
        """A slice of one output, and the inputs it was made of."""
        self._eager[index].add(eager, oracle, eager)
        tallies, is_first = self._trivial[index], self._first[index] is None
        if is_first:
            self._first[index] = eager
        elif not tallies:
            return
        trivial = trivial_outputs(eager, part, None, constant_of=self._first[index])
        for name, output in trivial.items():
            if name not in self._hopeless[index]:
                tallies.setdefault(name, ErrorTally()).add(output, oracle, eager)
        if is_first:
            found = {name: tally.difference() for name, tally in tallies.items()}
            for name, difference in found.items():
                if difference.fault is not None or difference.row_error > _HOPELESS:
                    self._hopeless[index][name] = difference
                    del tallies[name]

    def differences(self) -> tuple[Difference, ...]:
        """Of eager, by output."""
        return tuple(tally.difference() for tally in self._eager)

    def passing(self, differences: Sequence[Difference], floors: Sequence[float]) -> set[str]:
        """Names of the trivial outputs that pass for every output."""
        every = zip(self._trivial, self._hopeless, differences, floors, strict=True)
        return set.intersection(
            *(
                {
                    name
                    for name, tally in tallies.items()
                    if is_within(tally.difference(), difference, floor)
                }
                # where eager itself errs as much somewhere, what was given up counts as passing
                | {
                    name
                    for name, found in hopeless.items()
                    if found.fault is None and found.row_error <= allowances(difference, floor)[1]
                }
                for tallies, hopeless, difference, floor in every
            )
        )
