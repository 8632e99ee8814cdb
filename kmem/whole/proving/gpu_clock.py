"""One call of a whole model on the GPU: its time, its peak memory, a graph of it, its compiling."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from kmem.whole.turns import gpu_alone, lacks_memory, make_room, tuning_in_turn

Call = Callable[[], object]

#: What is written between two calls to empty the L2 cache, in bytes.
_FLUSHED_BYTES = 256 * 2**20


class Clock:
    """Calls run and timed on the GPU; a stand-in for it serves tests."""

    def alone(self) -> AbstractContextManager[None]:
        """Have the GPU for this process, as every run that times something on it does."""
        return gpu_alone()

    def make_room(self) -> None:
        """Have all give back the device memory that they merely keep."""
        make_room()

    def tuning(self) -> AbstractContextManager[None]:
        """Have the GPU alone whenever Inductor times alternatives."""
        return tuning_in_turn()

    def time(self, call: Call) -> float:
        """Milliseconds of the device's clock, from a cold L2 cache."""
        torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda").zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def peak(self, call: Call) -> int:
        """The most bytes that are allocated in a call, those that were before it included."""
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())

    def graph(self, call: Call) -> Call | None:
        """A call as one CUDA graph; None where it cannot be captured."""
        stream = torch.cuda.current_stream()
        try:
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            return graph.replay
        except RuntimeError as ex:
            if lacks_memory(ex):
                raise
            # a capture that fails in its end leaves its stream and its generator behind, with which
            # nothing else could be compiled or captured
            torch.cuda.set_stream(stream)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            return None

    def compile(self, forward: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """What torch.compile makes of a forward."""
        torch.compiler.reset()
        return torch.compile(forward, mode=mode)
