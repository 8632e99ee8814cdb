"""What one forward launches on the GPU, timed launch by launch, and counters for some of that.

In the program that Nsight Compute watches. Triton launches are seen where they all end, in the
launcher; what a library runs is what lies between two of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import triton
from triton.compiler.compiler import CompiledKernel

from kmem.profile.picking import Grid, Span

#: The GPU waits for so long before a forward is timed, so that the host queues it all: else events
#: would tell how late a launch came. 20 ms at 2 GHz.
_AHEAD_CYCLES = 40_000_000


class Listener(Protocol):
    """Told of each Triton launch."""

    def before(self, name: str, grid: Grid) -> None: ...

    def after(self) -> None: ...


class LaunchMarks:
    """The Triton launches of this process, from now on."""

    def __init__(self) -> None:
        """Raises AttributeError: if this Triton launches otherwise."""
        self._listener: Listener | None = None
        self._names: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        prepare = CompiledKernel._init_handles

        def note(kernel: Any) -> None:
            prepare(kernel)
            self._names[kernel._run] = kernel.name

        CompiledKernel._init_handles = note
        launcher = triton.runtime.driver.active.launcher_cls
        original = launcher.__call__

        def launch(function: Any, *args: Any, **kwargs: Any) -> Any:
            listener = self._listener
            if listener is None:
                return original(function, *args, **kwargs)
            listener.before(self._names.get(function, ""), (args[0], args[1], args[2]))
            done = original(function, *args, **kwargs)
            listener.after()
            return done

        launcher.__call__ = launch

    @contextmanager
    def told_to(self, listener: Listener) -> Iterator[None]:
        """Have launches told to a listener meanwhile."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def time(self, forward: Callable[[], object]) -> list[Span]:
        """The spans of one forward: before, between and after its Triton launches, and these."""
        watch = _Watch()
        torch.cuda._sleep(_AHEAD_CYCLES)
        watch.mark()
        with self.told_to(watch):
            forward()
        watch.mark()
        torch.cuda.synchronize()
        return watch.spans()

    @contextmanager
    def counting(self, spans: Sequence[Span]) -> Iterator[None]:
        """Mark those spans of a forward with cudaProfilerStart and Stop that are to be counted."""
        switch = _Switch([span.counted for span in spans])
        try:
            with self.told_to(switch):
                yield
        finally:
            torch.cuda.synchronize()
            switch.turn(on=False)


class _Watch:
    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._launches: list[tuple[str, Grid]] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def before(self, name: str, grid: Grid) -> None:
        self.mark()
        self._launches.append((name, grid))

    def after(self) -> None:
        self.mark()

    def spans(self) -> list[Span]:
        found = []
        for place in range(len(self._events) - 1):
            ms = self._events[place].elapsed_time(self._events[place + 1])
            launched = place % 2 == 1
            name, grid = self._launches[place // 2] if launched else ("", None)
            found.append(Span(name, grid, ms))
        return found


class _Switch:
    """Turns counting on and off from span to span; beyond the last one known it is off."""

    def __init__(self, counted: Sequence[bool]) -> None:
        self._counted, self._is_on = list(counted), False
        self._place = 0
        self._go_on()

    def before(self, name: str, grid: Grid) -> None:
        self._go_on()

    def after(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        place = self._place
        self._place += 1
        self.turn(on=place < len(self._counted) and self._counted[place])

    def turn(self, *, on: bool) -> None:
        if on != self._is_on:
            runtime = torch.cuda.cudart()
            runtime.cudaProfilerStart() if on else runtime.cudaProfilerStop()
            self._is_on = on
