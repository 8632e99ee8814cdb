"""Fresh values for every timed call: several sets of inputs, refilled before every use.

So no timed call sees values that were seen before. Workers of baselines have sets of their own,
which no worker that saw a candidate can write to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.forward import memory_bytes
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.process import WorkerProcess

#: Sets that timed calls rotate over, and how large all of them may be, device memory permitting.
SETS = 3
TOTAL_BYTES = 2**30
#: Free device memory over a set's size from which on a draw may keep what it wanted beside the set.
_ROOM_RATIO = 4


class TimedInputs:
    """Sets of inputs for candidates, the reference's own first, and as many for baselines."""

    def __init__(self, reference: Reference, seed_for: Callable[..., int]) -> None:
        self._reference = reference
        self._seed_for = seed_for
        self._draws = 0
        self._keep = False
        self._size = size = memory_bytes(reference.inputs.values)
        free = torch.cuda.mem_get_info()[0] if reference.device.type == "cuda" else TOTAL_BYTES * 4
        count = max(1, min(SETS, min(TOTAL_BYTES, free // 4) // max(size, 1)))
        self.count = count  # of sets that a worker sees
        self._extra = self._allocate(count - 1)
        self._of_baselines: list[SharedArguments] = []  # made when a baseline asks

    def _allocate(self, count: int) -> list[SharedArguments]:
        inputs = self._reference.inputs
        return [
            self._reference.new_arguments("timed", inputs.values, inputs.layouts)
            for _ in range(count)
        ]

    def names(self, worker: WorkerProcess) -> list[str]:
        """The names under which a worker knows its sets."""
        return [shared.name for shared in self._sets(worker)]

    def _sets(self, worker: WorkerProcess) -> list[SharedArguments]:
        if worker.hostile:
            return [self._reference.inputs.shared, *self._extra]
        if not self._of_baselines:
            self._of_baselines = self._allocate(self.count)
        return self._of_baselines

    def refresh(self, worker: WorkerProcess, count: int | None = None) -> list[int]:
        """Draw fresh values into a worker's sets, the first so many or all; their seeds."""
        seeds: list[int] = []
        keep = self._keep and torch.cuda.mem_get_info()[0] > _ROOM_RATIO * self._size
        for shared in self._sets(worker)[:count]:
            self._draws += 1
            seeds.append(self._seed_for("timed", str(self._draws)))
            self._reference.inputs.write_draw(shared, seeds[-1], keep=keep)
        return seeds

    @contextmanager
    def while_timing(self) -> Iterator[None]:
        """Meanwhile draws keep the device memory that they want beside the inputs, room permitting.

        Memory that is given back between two calls costs the next ones a tenth of the bandwidth.
        Source: H200, 2026-11-22, bf16 inputs of 4.3 GB that were drawn as fp32: baselines of 0.980
        and 1.823 ms took 1.089 and 2.025 after every such draw.
        """
        self._keep = self._reference.device.type == "cuda"
        try:
            yield
        finally:
            self._keep = False
            torch.cuda.empty_cache()  # does nothing without a GPU

    def show(self, worker: WorkerProcess) -> None:
        """Let a worker see its sets."""
        for shared in self._sets(worker):
            worker.attach(shared)

    def close(self) -> None:
        for shared in (*self._extra, *self._of_baselines):
            shared.remove()
