"""How wrong eager and trivial outputs are where the answer is made slice by slice."""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.correctness import (
    Difference,
    ErrorTally,
    is_within,
    trivial_outputs,
)


class Trial:
    """How wrong eager and trivial outputs are, added up over slices."""

    def __init__(self, outputs: int) -> None:
        self._eager = [ErrorTally() for _ in range(outputs)]
        self._trivial: list[dict[str, ErrorTally]] = [{} for _ in range(outputs)]
        # eager's first slice of each output, whose mean the constant is
        self._first: list[torch.Tensor | None] = [None] * outputs

    def add(
        self, index: int, eager: torch.Tensor, oracle: torch.Tensor, part: Sequence[object]
    ) -> None:
        """A slice of one output, and the inputs it was made of."""
        self._eager[index].add(eager, oracle, eager)
        if self._first[index] is None:
            self._first[index] = eager
        trivial = trivial_outputs(eager, part, None, constant_of=self._first[index])
        for name, output in trivial.items():
            self._trivial[index].setdefault(name, ErrorTally()).add(output, oracle, eager)

    def differences(self) -> tuple[Difference, ...]:
        """Of eager, by output."""
        return tuple(tally.difference() for tally in self._eager)

    def passing(self, differences: Sequence[Difference], floors: Sequence[float]) -> set[str]:
        """Names of the trivial outputs that pass for every output."""
        return set.intersection(
            *(
                {
                    name
                    for name, tally in tallies.items()
                    if is_within(tally.difference(), difference, floor)
                }
                for tallies, difference, floor in zip(
                    self._trivial, differences, floors, strict=True
                )
            )
        )
