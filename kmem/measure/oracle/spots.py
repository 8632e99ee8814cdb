"""Spots: a few elements of every timed result, so that no timed call goes unchecked.

No result has to be kept whole for that. Places are drawn anew for each batch. The worker copies
what lies there as soon as a call has returned, on the same stream and outside the timed region;
which calls are looked at is chosen once all of them have run (timed_calls.py).

What it costs: some 5 us on the GPU and 30 us on the host per timed call, hidden behind the clearing
of the L2 cache. Afterwards, not under the timing lease, one draw of the inputs and one eager
forward for each of `LOOKED_AT` calls and one case with its oracle for each of `SETTLED`: for a
square matrix product of 4096 0.1 s, for 6 GB of inputs about 1 s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.correctness import measure_error
from kmem.measure.oracle.reference import Reference

#: Elements kept of each output of a timed call. Where it leaves out one row in a thousand, a wrong
#: one is among them in 98 of 100 cases.
SPOTS = 4096
#: Timed calls held to eager. A candidate that cheats in half of its timed calls, as it must to move
#: their median, gets past them once in 2**24 times; one that cheats in a quarter, once in a
#: thousand times.
LOOKED_AT = 24
#: How many of these, those furthest from eager, are held to the oracle by the accuracy contract.
SETTLED = 2


@dataclass(frozen=True, slots=True)
class TimedResult:
    """What one timed call returned.

    The worker's description of the result, and for each output some places and what lay there.
    """

    seed: int  # of the draw that the call was given
    described: Mapping[str, object]
    places: tuple[torch.Tensor, ...]  # (dimensions, count) int64 each
    values: tuple[torch.Tensor, ...]  # (count,) each

    def distance(self, outputs: Sequence[torch.Tensor]) -> float:
        """How far these values are from those of other outputs: the largest relative error.

        Infinite for misplaced NaN and infinities.
        """
        found = 0.0
        for output, places, values in zip(outputs, self.places, self.values, strict=True):
            right = output[tuple(places)].reshape(-1)
            difference = measure_error(values, right, right)
            if difference.fault:
                return float("inf")
            found = max(found, max(difference.relative_error, difference.row_error))
        return found


class Spots:
    """Where a worker leaves the spots of one batch of timed calls.

    `results` are those of all batches that were collected so far.
    """

    def __init__(self, reference: Reference, answer: Answer, *, calls: int, seed: int) -> None:
        """Allocate room for the places and for what the calls of one batch leave there.

        Args:
            answer: of the case that is timed.
            calls: the most in one batch.
            seed: of the places; no worker may know it.
        """
        self.answer = answer
        self._generator = torch.Generator(device=reference.device).manual_seed(seed)
        like: list[torch.Tensor] = []
        for layout in self.answer.layouts:
            count = min(SPOTS, layout.numel())
            like.append(torch.empty(layout.dim(), count, dtype=torch.int64, device="meta"))
            like.append(torch.empty(calls, count, dtype=layout.dtype, device="meta"))
        self.shared = reference.new_arguments("spots", like)
        self.results: list[TimedResult] = []
        self._places: list[torch.Tensor] = []  # of the last batch, (dimensions, count) each

    def __enter__(self) -> "Spots":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shared.remove()

    def aim(self) -> dict[str, object]:
        """Draw new places; what a worker's `Time` command wants to know of them."""
        self.shared.poison()
        self._places = []
        for layout, target in zip(self.answer.layouts, self.shared.values[::2], strict=True):
            for row, places in zip(target, self._draw(layout.shape, target.device), strict=True):
                row.copy_(places)
            self._places.append(target.clone())
        self.shared.publish()
        return {
            "shared": self.shared.name,
            "shapes": [list(layout.shape) for layout in self.answer.layouts],
        }

    def _draw(self, shape: torch.Size, device: torch.device) -> Sequence[torch.Tensor]:
        """Random places in a tensor, all of them if there are few: indices by dimension."""
        size = shape.numel()
        if size > SPOTS:
            return torch.unravel_index(
                torch.randint(size, (SPOTS,), generator=self._generator, device=device), shape
            )
        return torch.unravel_index(
            torch.arange(size, device=device), [max(length, 1) for length in shape]
        )

    def collect(self, seeds: Sequence[int], described: Sequence[Mapping[str, object]]) -> None:
        """Take over what a batch has left.

        Args:
            seeds: of the draw of each call.
            described: the worker's description of each result.
        """
        self.shared.fetch()
        values = [value for value in self.shared.values if isinstance(value, torch.Tensor)]
        places = tuple(self._places)  # not what a worker may have made of them
        for index, (seed, text) in enumerate(zip(seeds, described, strict=True)):
            self.results.append(
                TimedResult(
                    seed, text, places, tuple(value[index].clone() for value in values[1::2])
                )
            )
