"""Triton's interpreter without half of its work, which changes nothing.

Runs inside the worker, from a copy of this file. Triton 3.9 puts its interpreter's functions into
triton.language anew for every launch, and again for every call of a device function, and looks for
what to replace among all names each time. Here it is once a launch for each module that functions
come from, and the names are looked up once in a process.

Source: triton/runtime/interpreter.py, _patch_lang and InterpretedFunction.__call__.
"""

import inspect
from collections.abc import Callable
from functools import cache

import numpy
import triton.language as tl
from triton.runtime import interpreter


class _NothingToRestore:
    """The scope of a patch that was there already."""

    def restore(self) -> None:
        """The launch that patched restores."""


_NOTHING = _NothingToRestore()


def patch_once_a_launch() -> Callable[[], None]:
    """Change the interpreter of this process; what is returned changes it back."""
    run, patch_language = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patch_builtin, find_type = interpreter._patch_builtin, interpreter._get_np_dtype
    # globals of the functions whose language is patched, during one launch
    patched: set[int] = set()
    builtins: dict[object, list[tuple[str, object]]] = {}  # by module or class, as Triton has them

    def launch(executor, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
        patched.clear()
        try:
            return run(executor, *args, **kwargs)
        finally:
            patched.clear()

    def patch_once(function: Callable) -> object:
        if id(function.__globals__) in patched:
            return _NOTHING
        scope = patch_language(function)
        patched.add(id(function.__globals__))
        return scope

    def patch_known(package, builder, scope):  # noqa: ANN001, ANN202 - Triton's own signature
        if package not in builtins:  # the first launch patches before it runs anything
            builtins[package] = [
                (name, member)
                for name, member in inspect.getmembers(package)
                if tl.core.is_builtin(member)
            ]
        for name, member in builtins[package]:
            if getattr(package, name) is member:  # else it is patched already
                interpreter._patch_attr(package, name, member, builder, scope)

    find_type_once = cache(find_type)

    def numpy_type(dtype: tl.dtype) -> numpy.dtype:
        """NumPy's type for a value or a block of values."""
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        is_pointer = isinstance(element, tl.pointer_type)  # Triton cannot hash these
        return find_type(element) if is_pointer else find_type_once(element)

    def undo() -> None:
        interpreter.GridExecutor.__call__ = run
        interpreter._patch_lang, interpreter._patch_builtin = patch_language, patch_builtin
        interpreter._get_np_dtype = find_type

    interpreter.GridExecutor.__call__ = launch
    interpreter._patch_lang, interpreter._patch_builtin = patch_once, patch_known
    interpreter._get_np_dtype = numpy_type
    return undo
