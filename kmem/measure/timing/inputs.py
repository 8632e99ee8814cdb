"""Inputs for timed calls: several sets while they are small, refilled before every use, so that no
call sees values seen before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kmem.measure.loading import attach_once
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.process import WorkerProcess

#: Sets that timed calls rotate over, memory permitting.
SETS = 3
TOTAL_BYTES = 2**30
#: Free memory over a set's size from which on a draw may keep what it wanted beside the set.
_ROOM_RATIO = 4


class TimedInputs:
    """The reference's own inputs first, then further ones of the same layout."""

    def __init__(self, reference: Reference, seed_for: Callable[..., int]) -> None:
        self._reference = reference
        self._seed_for = seed_for
        self._draws = 0
        self._keep = False
        self._size = size = sum(
            value.nbytes for value in reference.inputs.values if isinstance(value, torch.Tensor)
        )
        free = torch.cuda.mem_get_info()[0] if reference.device.type == "cuda" else TOTAL_BYTES * 4
        count = max(1, min(SETS, min(TOTAL_BYTES, free // 4) // max(size, 1)))
        self._extra = [
            reference.new_arguments("timed", reference.inputs.values) for _ in range(count - 1)
        ]

    @property
    def names(self) -> list[str]:
        return [shared.name for shared in (self._reference.inputs, *self._extra)]

    def refresh(self) -> list[int]:
        """Draw fresh values into every set; their seeds."""
        seeds: list[int] = []
        keep = self._keep and torch.cuda.mem_get_info()[0] > _ROOM_RATIO * self._size
        for shared in (self._reference.inputs, *self._extra):
            self._draws += 1
            seeds.append(self._seed_for("timed", str(self._draws)))
            self._reference.write_draw(shared, seeds[-1], keep=keep)
        return seeds

    @contextmanager
    def while_timing(self) -> Iterator[None]:
        """Meanwhile draws keep the memory that they want beside the inputs, room permitting, so
        that none is given back between two calls.

        What is given back costs the calls that are timed next a tenth of the bandwidth. Source:
        H200, 2026-11-22, bf16 inputs of 4.3 GB that were drawn as fp32: baselines of 0.980 and
        1.823 ms took 1.089 and 2.025 after every such draw.
        """
        self._keep = self._reference.device.type == "cuda"
        try:
            yield
        finally:
            self._keep = False
            torch.cuda.empty_cache()  # does nothing without a GPU

    def show(self, worker: WorkerProcess) -> None:
        """Let a worker see every set."""
        for shared in (self._reference.inputs, *self._extra):
            attach_once(worker, shared)

    def close(self) -> None:
        for shared in self._extra:
            shared.remove()
