"""The right answer to one case, and how far an output is from it.

The answer is whole in memory (`WholeExpected`), or made slice by slice where that would crowd the
device (`SlicedExpected`). Either compares outputs with the oracle (float64) and with eager, and
says the error of the outputs, the error that eager makes itself, and which trivial outputs would
have passed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch

from kmem.measure.oracle.answers.answer import Answer, Comparison, InputsChanged
from kmem.measure.oracle.answers.elements import fill_undefined_rows
from kmem.measure.oracle.answers.origins import FindOrigins
from kmem.measure.oracle.answers.trial import Trial
from kmem.measure.oracle.answers.trivial import trivial_outputs
from kmem.measure.oracle.correctness import (
    Difference,
    ErrorTally,
    is_within,
    measure_error,
)
from kmem.measure.oracle.running.slices import Run, Slicing
from kmem.measure.pool.checksum import bit_sum

#: Whole answers up to this size may be kept from case to case.
KEPT_BYTES = 2**28
_WORD = 2**64 - 1


class Expected(ABC):
    """The right answer for inputs that still hold the values it was made for.

    `compare` and `noise` may read the inputs again. They raise InputsChanged: if what they read is
    not what was there when the answer was made.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    @abstractmethod
    def compare(
        self, outputs: Sequence[torch.Tensor], find_origins: FindOrigins | None = None
    ) -> Comparison:
        """Hold outputs (in order, of the answer's layouts, on any device) to oracle and eager.

        Args:
            find_origins: what the errors of rows are weighed by (origins.py).
        """

    @abstractmethod
    def compare_at(
        self, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Comparison:
        """Hold a few elements of each output to oracle and eager: these are the whole to them.

        Args:
            places: (dimensions, count) int64 for each output.
            values: (count,) for each output.
        """

    @abstractmethod
    def noise(self, shake: Callable[[Sequence[object]], list[object]]) -> tuple[Difference, ...]:
        """What `shake` of the inputs changes in the oracle."""

    @abstractmethod
    def passing_adversaries(self) -> set[str]:
        """Names of trivial outputs that this case cannot tell from right ones.

        Known once something was compared.
        """

    def without_undefined(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Outputs with eager's rows of zeros where they have rows of NaN.

        A softmax over nothing but -inf is 0/0, which PyTorch calls 0 in some kernels and NaN in
        others.
        """
        return outputs

    @property
    @abstractmethod
    def is_kept(self) -> bool:
        """Whether the answer may be kept for other candidates, for whom the inputs are drawn again.

        Some answers need device memory that judging needs too.
        """


class WholeExpected(Expected):
    """Oracle and eager outputs in memory.

    `values` are the inputs; `earlier` is eager's answer to another case, an adversary.
    """

    def __init__(
        self,
        answer: Answer,
        oracle: tuple[torch.Tensor, ...],
        eager: tuple[torch.Tensor, ...],
        values: Sequence[object],
        run_oracle: Run,
        earlier: tuple[torch.Tensor, ...] | None,
    ) -> None:
        super().__init__(answer)
        if [each.shape for each in oracle] != [each.shape for each in eager]:
            raise RuntimeError("forward has other shapes in float64: it has no answer to this")
        self.oracle, self.eager = oracle, eager
        self.values, self._run_oracle = values, run_oracle
        self._earlier = earlier
        self._differences = self._errors_of(eager)
        self._passing: set[str] | None = None  # known once asked for

    def compare(
        self, outputs: Sequence[torch.Tensor], find_origins: FindOrigins | None = None
    ) -> Comparison:
        if find_origins is None:
            return Comparison(self._errors_of(outputs), self._differences, self.answer.floors)
        origins = find_origins(self._run_oracle, self.values, self.oracle)
        return Comparison(
            self._errors_of(outputs, origins),
            self._errors_of(self.eager, origins),
            self.answer.floors,
        )

    def compare_at(
        self, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Comparison:
        oracle = [output[tuple(place)] for output, place in zip(self.oracle, places, strict=True)]
        eager = [output[tuple(place)] for output, place in zip(self.eager, places, strict=True)]
        return _compare_elements(values, oracle, eager, self.answer.floors)

    def noise(self, shake: Callable[[Sequence[object]], list[object]]) -> tuple[Difference, ...]:
        moved = self._run_oracle(shake(self.values))
        return tuple(
            measure_error(one, right, right) for one, right in zip(moved, self.oracle, strict=True)
        )

    def passing_adversaries(self) -> set[str]:
        if self._passing is None:
            self._passing = self._try_adversaries()
        return self._passing

    @property
    def is_kept(self) -> bool:
        return sum(value.nbytes for value in (*self.eager, *self.oracle)) <= KEPT_BYTES

    def without_undefined(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [
            fill_undefined_rows(output, eager)
            for output, eager in zip(outputs, self.eager, strict=True)
        ]

    def _errors_of(
        self, outputs: Sequence[torch.Tensor], origins: Sequence[torch.Tensor | None] | None = None
    ) -> tuple[Difference, ...]:
        origins = origins or [None] * len(outputs)
        every = zip(outputs, self.oracle, self.eager, origins, strict=True)
        return tuple(measure_error(*each) for each in every)

    def _try_adversaries(self) -> set[str]:
        passing: set[str] | None = None
        earlier = self._earlier
        for index, (eager, oracle) in enumerate(zip(self.eager, self.oracle, strict=True)):
            same_sizes = earlier is not None and earlier[index].shape == eager.shape
            trivial = trivial_outputs(eager, self.values, earlier[index] if same_sizes else None)
            difference, floor = self._differences[index], self.answer.floors[index]
            here = {
                name
                for name, output in trivial.items()
                if is_within(measure_error(output, oracle, eager), difference, floor)
            }
            passing = here if passing is None else passing & here
        return passing or set()


class SlicedExpected(Expected):
    """Oracle and eager computed again for each comparison, piece by piece.

    No more than a piece of the oracle is ever in memory, nor of eager where the pieces are the
    whole bit for bit. The pieces are computed after the candidate ran, from copies whose bits are
    held to what the candidate was given: nothing that it left running can change the values that it
    is judged by. How wrong eager and trivial outputs are is found out once.
    """

    def __init__(
        self,
        answer: Answer,
        values: Sequence[object],
        slicing: Slicing,
        run_eager: Run,
        run_oracle: Run,
    ) -> None:
        super().__init__(answer)
        self._values = values
        self._slicing = slicing
        self._run_eager = run_eager
        self._run_oracle = run_oracle
        self._passing: set[str] | None = None
        self._differences: tuple[Difference, ...] | None = None  # of eager
        self._bits = [bit_sum(value) if isinstance(value, torch.Tensor) else 0 for value in values]

    def compare(
        self, outputs: Sequence[torch.Tensor], find_origins: FindOrigins | None = None
    ) -> Comparison:
        return self._slicing.in_finer_pieces(
            lambda slicing: self._compare(outputs, slicing, find_origins)
        )

    def compare_at(
        self, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Comparison:
        return self._slicing.in_finer_pieces(
            lambda slicing: self._compare_at(places, values, slicing)
        )

    def _compare_at(
        self, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor], slicing: Slicing
    ) -> Comparison:
        found = [value.double() for value in values]
        oracles, eagers = [each.clone() for each in found], [value.clone() for value in values]
        for rows, part, oracle in self._oracle_parts(slicing):
            eager = self._run_eager(part)
            for index, place in enumerate(places):
                here = (place[0] >= rows.start) & (place[0] < rows.stop)
                within = (place[0, here] - rows.start, *place[1:, here])
                oracles[index][here] = oracle[index][within].double()
                eagers[index][here] = eager[index][within]
        return _compare_elements(values, oracles, eagers, self.answer.floors)

    def noise(self, shake: Callable[[Sequence[object]], list[object]]) -> tuple[Difference, ...]:
        return self._slicing.in_finer_pieces(lambda slicing: self._noise(shake, slicing))

    def passing_adversaries(self) -> set[str]:
        return self._passing or set()

    @property
    def is_kept(self) -> bool:
        return True

    def _compare(
        self,
        outputs: Sequence[torch.Tensor],
        slicing: Slicing,
        find_origins: FindOrigins | None,
    ) -> Comparison:
        found, own = ([ErrorTally() for _ in self.answer.layouts] for _ in range(2))
        trial = Trial(len(self.answer.layouts)) if self._differences is None else None
        whole = None if slicing.exact else self._run_whole()
        for place, part, oracle in self._oracle_parts(slicing):
            eager = (
                self._run_eager(part) if whole is None else tuple(output[place] for output in whole)
            )
            origins: Sequence[torch.Tensor | None] = [None] * len(found)
            if find_origins is not None:
                origins = find_origins(self._run_oracle, part, oracle)
            for index, tally in enumerate(found):
                tally.add(outputs[index][place], oracle[index], eager[index], origins[index])
                if find_origins is not None:
                    own[index].add(eager[index], oracle[index], eager[index], origins[index])
                if trial is not None:
                    trial.add(index, eager[index], oracle[index], part)
        if trial is not None:
            self._differences = trial.differences()
            self._passing = trial.passing(self._differences, self.answer.floors)
        eagers = self._differences
        if find_origins is not None:
            eagers = tuple(tally.difference() for tally in own)
        return Comparison(tuple(tally.difference() for tally in found), eagers, self.answer.floors)

    def _run_whole(self) -> tuple[torch.Tensor, ...] | None:
        """Eager for all rows at once; None where there is no room, and pieces speak for the whole.

        A vendor kernel may sum pieces in another order, and what counts is how wrong eager is as it
        is used.
        """
        try:
            return self._run_eager(self._values)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return None

    def _noise(
        self, shake: Callable[[Sequence[object]], list[object]], slicing: Slicing
    ) -> tuple[Difference, ...]:
        tallies = [ErrorTally() for _ in self.answer.layouts]
        for _, part, oracle in self._oracle_parts(slicing):
            for tally, moved, right in zip(
                tallies, self._run_oracle(shake(part)), oracle, strict=True
            ):
                tally.add(moved, right, right)
        return tuple(tally.difference() for tally in tallies)

    def _oracle_parts(
        self, slicing: Slicing
    ) -> Iterator[tuple[slice, list[object], tuple[torch.Tensor, ...]]]:
        values, seen = list(self._values), [0] * len(self._values)
        whole = [
            index
            for index, value in enumerate(values)
            if isinstance(value, torch.Tensor) and index not in slicing.sliced
        ]
        for index in whole:
            values[index] = values[index].clone()
            seen[index] = bit_sum(values[index])
        for place, part in slicing.parts(values):
            for index in slicing.sliced:
                part[index] = part[index].clone()
                seen[index] += bit_sum(part[index], place.start * values[index][0].numel())
            yield place, part, self._run_oracle(part)
        for index, bits in enumerate(self._bits):
            if seen[index] & _WORD != bits:
                raise InputsChanged(f"input {index} was changed after the forward had returned")


def _compare_elements(
    values: Sequence[torch.Tensor],
    oracle: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    floors: tuple[float, ...],
) -> Comparison:
    """Errors of some elements of each output, and eager's own there: one row of each."""
    trios = [
        tuple(each.reshape(-1) for each in trio) for trio in zip(values, oracle, eager, strict=True)
    ]
    found = tuple(measure_error(*trio) for trio in trios)
    own = tuple(measure_error(right_eager, right, right_eager) for _, right, right_eager in trios)
    return Comparison(found, own, floors)
