"""The Triton kernels that one call launches, and all kernels that the GPU ran for it.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
functions it uses are bound before a candidate could replace them.
"""

import functools
import hashlib
import inspect
import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from weakref import WeakKeyDictionary

import numpy
import torch
import triton
from copying import CopyFollower
from kernel_flow import read_stores
from kernel_identity import GLOBAL, describe_launch, identify_function
from lineage import COMPUTED, Lineage
from races import RaceLog
from torch.profiler import ProfilerActivity, profile
from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder
from triton.runtime.jit import JITFunction

_synchronize = torch.cuda.synchronize
#: What a launcher is given before the kernel's own arguments: grid, stream, function, metadata and
#: hooks. Source: triton.backends.nvidia.driver.CudaLauncher.
_LAUNCHER_ARGUMENTS = 9
#: Launches of one forward whose kernels and arguments the judge is told.
DESCRIBED = 256


@dataclass(frozen=True, slots=True)
class Change:
    """What is changed about the launches of one call.

    With `suppress` they do nothing. `shuffle` is a seed for the order of their programs, None for
    the usual one; races are looked for meanwhile. `arguments` are given in place of their own, by
    name, by the number of the launch; in the interpreter alone.
    """

    suppress: bool = False
    shuffle: int | None = None
    arguments: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


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
        # beside the names: the function's identity, and its arguments as text
        self.described: list[tuple[str, dict[str, str]]] = []
        # launches of compiled kernels, by function and name; what came without a function has None
        self.compiled: Counter[tuple[object, str]] = Counter()
        # compiled kernels by what launches them
        self._launchers: WeakKeyDictionary[object, CompiledKernel] = WeakKeyDictionary()
        self.lineage = Lineage(by_bytes=triton.knobs.runtime.interpret)
        self._races: RaceLog | None = None  # where Triton interprets
        self._suppressed, self._shuffle = False, None
        self._arguments: Mapping[str, Mapping[str, object]] = {}
        if triton.knobs.runtime.interpret:
            CopyFollower(self.lineage)
            self._wrap(GridExecutor, "__call__")
            self._races = RaceLog()
            self._let_shuffle()
        else:
            # where every launch ends, also those through the handle of a compiled kernel
            self._note_kernels()
            self._wrap(triton.runtime.driver.active.launcher_cls, "__call__")

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
                args, kwargs = self._change_arguments(function, args, kwargs)
                self._note_interpreted(function.fn, args, kwargs)
                self._races.begin_launch()
            self.running += 1
            try:
                self.lineage.note_arguments([args, kwargs])
                with self._globals_changed(function) if self._arguments else nullcontext():
                    done = original(function, *args, **kwargs)
            finally:
                self.running -= 1
            if self._races is not None:
                self._races.end_launch()
            else:
                self._note_compiled(self._launchers.get(function), args[_LAUNCHER_ARGUMENTS:])
            return done

        setattr(owner, name, launch)

    def _change_arguments(
        self, function: GridExecutor, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        changed = self._arguments.get(str(self.count - 1), {})
        names = function.arg_names[: len(args)]
        by_place = [changed.get(name, value) for name, value in zip(names, args, strict=False)]
        by_name = {name: value for name, value in changed.items() if name not in names}
        return (*by_place, *args[len(names) :]), {**kwargs, **by_name}

    @contextmanager
    def _globals_changed(self, executor: GridExecutor) -> Iterator[None]:
        """Meanwhile the kernel reads other globals, if it is to."""
        changed = {
            name.removeprefix(GLOBAL): value
            for name, value in self._arguments.get(str(self.count - 1), {}).items()
            if name.startswith(GLOBAL)
        }
        place = executor.fn.__globals__
        before = {name: place[name] for name in changed}
        place.update(changed)
        try:
            yield
        finally:
            place.update(before)

    def _note_interpreted(
        self, rewritten: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self.names.append(rewritten.__name__)
        if len(self.described) < DESCRIBED:
            functions = InterpretedFunction.rewritten_fn.items()
            written = inspect.unwrap(rewritten)
            own = next((one for one, other in functions if other is written), written)
            arguments = describe_launch(own, args, kwargs)
            self.described.append((identify_function(own), arguments))

    def _note_kernels(self) -> None:
        """Remember of each launcher which compiled kernel it was made for."""
        original = CompiledKernel._init_handles

        def prepare(kernel: CompiledKernel) -> None:
            original(kernel)
            self._launchers[kernel._run] = kernel

        CompiledKernel._init_handles = prepare

    def _note_compiled(self, kernel: CompiledKernel | None, values: Sequence[object]) -> None:
        """One launch of a compiled kernel with these arguments, constants among them."""
        source = getattr(kernel, "src", None)
        self.compiled[getattr(source, "fn", None), getattr(kernel, "name", "")] += 1
        if kernel is None or not self.lineage.is_on:
            return
        names = getattr(getattr(kernel.src, "fn", None), "arg_names", ())
        types = getattr(kernel.src, "signature", {})
        places = {
            name: place
            for name, value in zip(names, values)  # noqa: B905 - hidden ones come after
            if (place := _address(value, str(types.get(name, "")))) is not None
        }
        stores = read_stores(kernel.asm["ttir"]) if len(names) == len(values) else None
        if stores is None:  # whatever it is given it may have worked out
            for place in places.values():
                self.lineage.add(place, COMPUTED)
            return
        for stored in stores:
            carried = [self.lineage.origins_at(places[name]) for name in stored.carried & {*places}]
            origins = functools.reduce(operator.or_, carried, COMPUTED if stored.computed else 0)
            for name in stored.targets & {*places}:
                self.lineage.add(places[name], origins)

    @contextmanager
    def observing(self, change: Change) -> Iterator[None]:
        """Count from zero, with launches changed."""
        shuffle = change.shuffle
        self._arguments = change.arguments
        self.count = 0
        self.names, self.described = [], []
        self._suppressed = change.suppress
        self._shuffle = None if shuffle is None else random.Random(shuffle)
        if self._races is not None:
            self._races.is_on, self._races.found = shuffle is not None, 0
        try:
            yield
        finally:
            self._suppressed, self._shuffle = False, None
            self._arguments = {}
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


def _address(value: object, kind: str) -> int | None:
    """Where the memory begins that a pointer or a tensor descriptor leads to.

    Args:
        kind: the parameter's type; a launcher takes a number for a pointer ("*fp32") too.
    """
    if isinstance(value, int) and kind.startswith("*"):
        return value
    value = getattr(value, "base", value)
    ask = getattr(value, "data_ptr", None)
    return ask() if callable(ask) else None


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
