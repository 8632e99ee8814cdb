"""Inputs for timed calls: several sets while they are small, refilled before every use, so that no call sees values seen before."""

from collections.abc import Callable

import torch

from kmem.measure.loading import attach_once
from kmem.measure.process import WorkerProcess
from kmem.measure.reference import Reference

#: Sets that timed calls rotate over, memory permitting.
SETS = 3
TOTAL_BYTES = 2**30


class TimedInputs:
    """The reference's own input arena first, then further ones of the same layout."""

    def __init__(self, reference: Reference, seed_for: Callable[..., int]) -> None:
        self._reference, self._seed_for, self._draws = reference, seed_for, 0
        size = sum(value.nbytes for value in reference.inputs.values if isinstance(value, torch.Tensor))
        free = torch.cuda.mem_get_info()[0] if reference.device.type == "cuda" else TOTAL_BYTES * 4
        count = max(1, min(SETS, min(TOTAL_BYTES, free // 4) // max(size, 1)))
        self._extra = [reference.new_arena("timed", reference.inputs.values) for _ in range(count - 1)]

    @property
    def names(self) -> list[str]:
        return [arena.name for arena in (self._reference.inputs, *self._extra)]

    def refresh(self) -> list[int]:
        """Draw fresh values into every set; their seeds."""
        seeds: list[int] = []
        for arena in (self._reference.inputs, *self._extra):
            self._draws += 1
            seeds.append(self._seed_for("timed", str(self._draws)))
            self._reference.write_draw(arena, seeds[-1])
        return seeds

    def show(self, worker: WorkerProcess) -> None:
        """Let a worker see every set."""
        for arena in (self._reference.inputs, *self._extra):
            attach_once(worker, arena)

    def close(self) -> None:
        for arena in self._extra:
            arena.remove()
