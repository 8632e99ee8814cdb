"""What a candidate has replaced or left running in the process that it is observed in.

Runs inside the worker, from a copy of this file. What follows from it is for the judge to say.

Covered: functions of torch, triton, time and Python's builtins, names that shadow inherited ones,
global flags, hooks for all modules, modes, tracers, threads of Python and child processes. Not
covered: code that rewrites this check too, and threads that native code starts (libraries keep
pools of these): both must get past the source check first.
"""

import _thread
import builtins
import gc
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

import torch
import triton
import triton.language
from torch.nn.modules import module as module_hooks
from triton.runtime import interpreter

_LIBRARIES = (os.path.dirname(torch.__file__), os.path.dirname(triton.__file__))
_threads, _children = _thread._count, os.waitpid
_all, _map = all, map
_is = operator.is_
#: What a class gains of itself.
_OWN_NAMES = frozenset({"__doc__", "__module__", "__annotations__", "__abstractmethods__"})
_MISSING = object()


class Integrity:
    """Notices what a candidate has replaced, however it reached it.

    Compared by identity with what stood there when the worker started. A name that was added counts
    where it hides an inherited one, or is one that Python itself looks up; other new names are no
    concern, nor are torch's wrappers around its own functions: torch imports parts of itself only
    when they are needed, and importing its compiler wraps some functions.
    """

    def __init__(self, own: Callable[[], list[object]] = list) -> None:
        """Remember how things are.

        Args:
            own: the modules and classes of the worker itself.
        """
        modules = (
            torch,
            torch.nn.functional,
            torch.cuda,
            torch.linalg,
            torch.autograd,
            triton,
            triton.language,
            interpreter,
            time,
            builtins,
        )
        classes = (
            torch.Tensor,
            torch.nn.Parameter,
            torch.nn.Module,
            torch.cuda.Event,
            torch.no_grad,
            torch.utils._python_dispatch.TorchDispatchMode,
            torch.overrides.TorchFunctionMode,
            triton.JITFunction,
            interpreter.GridExecutor,
            interpreter.InterpretedFunction,
            interpreter.InterpreterBuilder,
            *[each for each in own() if isinstance(each, type)],
        )
        modules += tuple(each for each in own() if not isinstance(each, type))
        self._modules = {
            owner: {name: value for name, value in vars(owner).items() if callable(value)}
            for owner in modules
        }
        self._classes = {owner: dict(vars(owner)) for owner in classes}
        self._flags = _global_flags()
        self._threads = _threads()

    def note_flags(self) -> None:
        """Take the global flags as they are now."""
        self._flags = _global_flags()

    def changed(self) -> list[str]:
        """Names of what is no longer what it was; empty if all is well."""
        found = [
            f"{owner.__name__}.{name}"
            for owner, names in self._modules.items()
            if not _holds(vars(owner), names)
            for name, value in names.items()
            if (now := vars(owner).get(name)) is not value
            and not name.startswith("__")
            and not _wraps_itself(name, now)
        ]
        found += [
            f"{owner.__name__}.{name}"
            for owner, names in self._classes.items()
            if len(vars(owner)) != len(names) or not _holds(vars(owner), names)
            for name in names.keys() | vars(owner).keys()
            if _differs(owner, name, names.get(name, _MISSING))
        ]
        found += [name for name, value in _global_flags().items() if value != self._flags[name]]
        return sorted(found) + self._left_running()

    def _left_running(self) -> list[str]:
        found = []
        if _threads() > self._threads:
            found.append("a thread that outlives the call")
        if _has_children():
            found.append("a process that outlives the call")
        return found


def _holds(namespace: Mapping[str, object], names: Mapping[str, object]) -> bool:
    """Whether all names still are what they were: asked at every answer, so quickly."""
    return _all(_map(_is, _map(namespace.get, names), names.values()))


def _differs(owner: type, name: str, before: object) -> bool:
    now = vars(owner).get(name, _MISSING)
    if now is before or name in _OWN_NAMES:
        return False
    if before is _MISSING:
        shadows = any(name in vars(base) for base in owner.__mro__[1:])
        return shadows or (name.startswith("__") and name.endswith("__"))
    return not _wraps_itself(name, now)


def _wraps_itself(name: str, value: object) -> bool:
    """Whether this is a function of the libraries' own files, under its own name."""
    code = getattr(value, "__code__", None)
    return (
        getattr(value, "__name__", None) == name
        and code is not None
        and code.co_filename.startswith(_LIBRARIES)
    )


def _has_children() -> bool:
    """Whether a child still runs; those that have ended are waited for."""
    try:
        while True:
            pid, _ = _children(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


def _global_flags() -> dict[str, object]:
    hooks = {
        name: len(value)
        for name, value in vars(module_hooks).items()
        if name.startswith("_global_") and hasattr(value, "__len__")
    }
    return {
        "the default dtype": str(torch.get_default_dtype()),
        "the default device": str(torch.get_default_device()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "modes of torch's dispatcher": torch._C._len_torch_dispatch_stack(),
        "modes of torch's functions": torch._C._len_torch_function_stack(),
        "a tracer": (
            sys.gettrace(),
            sys.getprofile(),
            threading.gettrace(),
            threading.getprofile(),
        ),
        "callbacks of the garbage collector": len(gc.callbacks),
        "importers": (len(sys.meta_path), len(sys.path_hooks)),
        **{f"hooks of all modules ({name})": count for name, count in hooks.items()},
    }
