"""The Triton kernels that one call launches, and all kernels that the GPU ran for it.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
functions it uses are bound before a candidate could replace them.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from weakref import WeakKeyDictionary

import numpy
import torch
import triton
from copying import CopyDetector
from races import RaceLog
from torch.profiler import ProfilerActivity, profile
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder
from triton.runtime.jit import JITFunction

_synchronize = torch.cuda.synchronize


class LaunchCounter:
    """Counts Triton launches, compiled or interpreted, and can change what they do.

    They can be no-ops: if the answer is still right then, the kernels were not needed for it. In
    the interpreter their programs can run in another order: on a GPU there is none, and a program
    that relies on an earlier one is wrong.
    """

    def __init__(self) -> None:
        self.count = 0
        self.running = 0  # how many are at work, one in another
        self.names: list[str] = []  # of the kernels, in order; in the interpreter alone
        self.compiled: Counter[str] = Counter()  # launches of compiled kernels, by name
        # names of compiled kernels by what launches them
        self._launchers: WeakKeyDictionary[object, str] = WeakKeyDictionary()
        self.copies: CopyDetector | None = None  # where Triton interprets
        self._races: RaceLog | None = None  # likewise
        self._suppressed, self._shuffle = False, None
        if triton.knobs.runtime.interpret:
            self.copies = CopyDetector()
            self._wrap(GridExecutor, "__call__")
            self._races = RaceLog()
            self._let_shuffle()
        else:
            # where every launch ends, also those through the handle of a compiled kernel
            launcher_class = triton.runtime.driver.active.launcher_cls
            self._note_names(launcher_class)
            self._wrap(launcher_class, "__call__")

    def is_running(self) -> bool:
        """Whether a launch is at work."""
        return self.running > 0

    def _wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        # a pass-through
        def launch(function, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
            self.count += 1
            if self._suppressed:
                return None
            if self._races is not None:
                self.names.append(function.fn.__name__)
                self._races.begin_launch()
            self.running += 1
            try:
                done = original(function, *args, **kwargs)
            finally:
                self.running -= 1
            if self._races is not None:
                self._races.end_launch()
            else:
                self.compiled[self._launchers.get(function, "")] += 1
            return done

        setattr(owner, name, launch)

    def _note_names(self, launcher_class: type) -> None:
        """Remember of each launcher which compiled kernel it was made for."""
        original = launcher_class.__init__

        def make(launcher, source, metadata):  # noqa: ANN001, ANN202 - a pass-through
            original(launcher, source, metadata)
            self._launchers[launcher] = str(getattr(metadata, "name", ""))

        launcher_class.__init__ = make

    @contextmanager
    def observing(self, *, suppress: bool = False, shuffle: int | None = None) -> Iterator[None]:
        """Count from zero, with launches changed as asked for.

        Args:
            suppress: they do nothing.
            shuffle: a seed for the order of their programs; None for the usual one. Races are
                looked for meanwhile.
        """
        self.count, self.names = 0, []
        self._suppressed = suppress
        self._shuffle = None if shuffle is None else random.Random(shuffle)
        if self._races is not None:
            self._races.is_on, self._races.found = shuffle is not None, 0
        try:
            yield
        finally:
            self._suppressed, self._shuffle = False, None
            if self._races is not None:
                self._races.is_on = False

    @property
    def races(self) -> int:
        """Places that one program stored and another loaded, in what was observed last."""
        return self._races.found if self._races is not None else 0

    def _let_shuffle(self) -> None:
        """Have the interpreter's grid go through `_place`: it sets one program after another."""
        original_dim, original_idx = (
            InterpreterBuilder.set_grid_dim,
            InterpreterBuilder.set_grid_idx,
        )
        order: dict[str, list[int]] = {}

        def set_grid_dim(builder, *dims):  # noqa: ANN001, ANN002, ANN202 - a pass-through
            order.clear()
            if self._shuffle is not None:
                total = math.prod(dims)
                order["places"] = self._shuffle.sample(range(total), total)
            return original_dim(builder, *dims)

        def set_grid_idx(builder, x, y, z):  # noqa: ANN001, ANN202 - a pass-through
            if "places" in order:
                dims = builder.grid_dim
                place = order["places"][numpy.ravel_multi_index((x, y, z), dims)]
                self._races.begin_program(place)
                return original_idx(builder, *map(int, numpy.unravel_index(place, dims)))
            return original_idx(builder, x, y, z)

        InterpreterBuilder.set_grid_dim, InterpreterBuilder.set_grid_idx = (
            set_grid_dim,
            set_grid_idx,
        )


def gpu_kernels(
    call: Callable[[], object], before: Callable[[], object] = lambda: None
) -> list[list[object]]:
    """[name, microseconds] of each GPU kernel, copy and fill of one call, as torch.profiler saw it.

    The call is made twice: the first time compiles and loads what it needs.

    Args:
        before: called between the two.
    """
    call()
    _synchronize()
    before()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as session:
        call()
        _synchronize()
    return [
        [event.name, event.device_time_total]
        for event in session.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.device_time_total > 0
    ]


def find_triton_functions(module: ModuleType) -> list[tuple[str, object]]:
    """The `@triton.jit` functions that a file holds, with their names, without autotuners."""
    found = []
    for value in vars(module).values():
        while isinstance(value, Autotuner | Heuristics):
            value = value.fn
        if type(value) in (JITFunction, InterpretedFunction):
            found.append((value.fn.__name__, value))
    return found


def binary_digest(function: object) -> str | None:
    """SHA-256 of the PTX of every variant of a `@triton.jit` function compiled in this process.

    None where Triton interprets or keeps no PTX.
    """
    caches = getattr(function, "device_caches", {})  # the interpreter's functions have none
    kernels = [kernel for per_device in caches.values() for kernel in per_device[0].values()]
    texts = [kernel.asm["ptx"] for kernel in kernels if "ptx" in getattr(kernel, "asm", {})]
    return hashlib.sha256("".join(sorted(texts)).encode()).hexdigest() if texts else None
