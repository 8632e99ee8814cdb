"""Triton's interpreter without half of its work, which changes nothing.

Runs inside the worker, from a copy of this file. Triton 3.9 puts its interpreter's functions into
triton.language anew for every launch, and again for every call of a device function, and looks for
what to replace among all names each time. Here it is once a launch for each module that functions
come from, and the names are looked up once in a process. Sums and products of integers are worked
out a second time in 64 bits for an assertion that Triton then leaves out unless it debugs; compiled
code has neither (triton/backends/nvidia/compiler.py, parse_options), and here they go as well. What
a value knows of its shape is worked out once for each shape and not for each value. Two values of
one type and one shape are what they would be cast and broadcast to.

Source: triton/runtime/interpreter.py, _patch_lang and InterpretedFunction.__call__;
triton/language/core.py, tensor and block_type; triton/language/semantic.py,
binary_op_type_checking_impl and broadcast_impl_value.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy
import triton.language as tl
from triton.language.semantic import TritonSemantic
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
    patch_attribute = interpreter._patch_attr
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

    def patch_plainly(obj, name, member, builder, scope) -> None:  # noqa: ANN001 - Triton's own
        inner = getattr(member, "__wrapped__", member)  # without the question for _semantic

        def run_here(*args, _semantic=None, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
            return inner(*args, _semantic=interpreter.interpreter_semantic, **kwargs)

        scope.set_attr(obj, name, run_here)

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

    builder = interpreter.interpreter_builder
    options = builder.options
    forget_shapes, ask_again = _know_shapes(), _take_what_is_alike()

    def undo() -> None:
        ask_again()
        forget_shapes()
        builder.options = options
        interpreter._patch_attr = patch_attribute
        interpreter.GridExecutor.__call__ = run
        interpreter._patch_lang, interpreter._patch_builtin = patch_language, patch_builtin
        interpreter._get_np_dtype = find_type

    builder.options = replace(options, sanitize_overflow=options.debug)
    interpreter.GridExecutor.__call__ = launch
    interpreter._patch_attr = patch_plainly
    interpreter._patch_lang, interpreter._patch_builtin = patch_once, patch_known
    interpreter._get_np_dtype = numpy_type
    return undo


def _know_shapes() -> Callable[[], None]:
    """Let values and blocks of values share what follows from their shape; the way back."""
    new_value, new_block = tl.tensor.__init__, tl.block_type.__init__
    values: dict[tuple, tuple[object, object]] = {}  # by shape: shape and numel of a value
    blocks: dict[tuple, tuple[object, object]] = {}  # shape and numel of a block
    names: dict[tuple, str] = {}  # what a block's name begins with

    def make_value(value: tl.tensor, handle: object, type: tl.dtype) -> None:  # noqa: A002
        shape = tuple(type.shape) if type.is_block() else ()
        known = values.get(shape)
        if known is None:
            new_value(value, handle, type)
            values[shape] = value.shape, value.numel
            return
        value.handle = handle
        value.type, value.dtype = type, type.scalar
        value.shape, value.numel = known

    def make_block(block: tl.block_type, element_ty: tl.dtype, shape: list) -> None:
        sizes = tuple(getattr(size, "value", size) for size in shape)
        known = blocks.get(sizes)
        if known is None:
            new_block(block, element_ty, shape)
            name = f", {element_ty}>"
            if block.name.endswith(name):
                blocks[sizes] = block.shape, block.numel
                names[sizes] = block.name.removesuffix(name)
            return
        block.element_ty = element_ty
        block.shape, block.numel = known
        block.name = f"{names[sizes]}, {element_ty}>"

    def undo() -> None:
        tl.tensor.__init__, tl.block_type.__init__ = new_value, new_block

    tl.tensor.__init__, tl.block_type.__init__ = make_value, make_block
    return undo


def _take_what_is_alike() -> Callable[[], None]:
    """Let operands that are alike already pass as they are; the way back."""
    check, broadcast = (
        TritonSemantic.binary_op_type_checking_impl,
        TritonSemantic.broadcast_impl_value,
    )

    def broadcast_others(
        semantic: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor
    ) -> tuple[tl.tensor, tl.tensor]:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block() and left.shape is right.shape:
            return lhs, rhs
        return broadcast(semantic, lhs, rhs)

    # Triton's own signature: it is called with all of them in order
    def check_others(
        semantic: TritonSemantic,
        lhs: object,
        rhs: object,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[tl.tensor, tl.tensor]:
        if (
            not div_or_mod
            and isinstance(lhs, tl.tensor)
            and isinstance(rhs, tl.tensor)
            and lhs.dtype is rhs.dtype
            and not isinstance(lhs.dtype, tl.pointer_type)
        ):
            return semantic.broadcast_impl_value(lhs, rhs)
        flags = allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        return check(semantic, lhs, rhs, *flags)

    def undo() -> None:
        TritonSemantic.binary_op_type_checking_impl = check
        TritonSemantic.broadcast_impl_value = broadcast

    TritonSemantic.binary_op_type_checking_impl = check_others
    TritonSemantic.broadcast_impl_value = broadcast_others
    return undo
