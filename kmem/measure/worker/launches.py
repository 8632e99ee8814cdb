"""The Triton kernels that one call launches, and all kernels that the GPU ran for it.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
functions it uses are bound before a candidate could replace them.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import torch
import triton
from copying import CopyDetector
from torch.profiler import ProfilerActivity, profile
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import GridExecutor, InterpretedFunction
from triton.runtime.jit import JITFunction

_synchronize = torch.cuda.synchronize


class LaunchCounter:
    """Counts Triton launches, compiled or interpreted, and can turn them into no-ops.

    If the answer is still right when no launch does anything, the kernels were not needed for it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.running = 0  # how many are at work, one in another
        self.suppressed = False
        self.names: Counter[str] = Counter()  # of the compiled kernels that were launched
        self.copies: CopyDetector | None = None  # where Triton interprets
        if triton.knobs.runtime.interpret:
            self.copies = CopyDetector()
            self._wrap(GridExecutor, "__call__")
        else:
            self._wrap(JITFunction, "run")

    def is_running(self) -> bool:
        """Whether a launch is at work."""
        return self.running > 0

    def _wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def launch(function, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
            self.count += 1
            if self.suppressed:
                return None
            self.running += 1
            try:
                kernel = original(function, *args, **kwargs)
            finally:
                self.running -= 1
            if kernel is not None and not kwargs.get("warmup"):
                self.names[str(getattr(kernel, "name", ""))] += 1
            return kernel

        setattr(owner, name, launch)


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
