"""The Triton kernels that one call launches, and all kernels that the GPU ran for it.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
functions it uses are bound before a candidate could replace them.
"""

import hashlib
from collections.abc import Callable
from types import ModuleType

import torch
import triton
from torch.profiler import ProfilerActivity, profile
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

_synchronize = torch.cuda.synchronize


class LaunchCounter:
    """Counts Triton launches, compiled or interpreted, and can turn them into no-ops.

    If the answer is still right when no launch does anything, the kernels were not needed for it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.suppressed = False
        if triton.knobs.runtime.interpret:
            self._wrap(GridExecutor, "__call__")
        else:
            # where every launch ends, also those through the handle of a compiled kernel
            on_device = torch.cuda.is_available()
            owner = triton.runtime.driver.active.launcher_cls if on_device else JITFunction
            self._wrap(owner, "__call__" if on_device else "run")

    def _wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def launch(function, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
            self.count += 1
            return None if self.suppressed else original(function, *args, **kwargs)

        setattr(owner, name, launch)


def gpu_kernels(call: Callable[[], object]) -> list[list[object]]:
    """[name, microseconds] of each GPU kernel, copy and fill of one call, as torch.profiler saw it.

    The call is made twice: the first time compiles and loads what it needs.
    """
    call()
    _synchronize()
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
        if type(value).__name__ in ("JITFunction", "InterpretedFunction"):
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
