"""What a launch of a Triton kernel is: the text of its function, and the values it was given.

Two processes describe launches in the same words: the one that interprets a kernel and the one that
compiles it. Used from a copy too (standard library only).

Covered: the text of the function, of what it calls that the file defines, and the globals and
enclosing variables that it reads. Not covered: what lies in objects of other kinds.
"""

import dis
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: Before the name of a global among what a launch is given.
GLOBAL = "global "
_texts: dict[object, str] = {}


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """What one launch of a compiled kernel was.

    `arguments` are what it was given, as `describe_launch` has it; `constants` the names of what is
    compiled in.
    """

    identity: str
    arguments: Mapping[str, str]
    constants: frozenset[str] = frozenset()


def identify_function(function: FunctionType) -> str:
    """SHA-256 of what a kernel's function says, and of the functions that it calls.

    Plain globals of its own file are left out; `describe_launch` has them.
    """
    return hashlib.sha256(_describe_function(function, (), function).encode()).hexdigest()


def find_own(
    launched: Mapping[tuple[object, str], int],
    namespace: Mapping[str, object],
    named: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, int]]:
    """The `@triton.jit` functions of a file, and how often each was launched, by name.

    A function is the file's own if it was written there or is among its names, however it is held.
    A name says nothing: a library's kernel may be called so. So a name counts for as many kernels
    as the file launched under it.

    Args:
        launched: how often, by function and name of the compiled kernel.
        namespace: the globals of the file.
        named: the functions among them.
    """
    own, counts = dict(named), dict.fromkeys(named, 0)
    for (function, name), count in launched.items():
        written = getattr(getattr(function, "fn", None), "__globals__", None) is namespace
        if written or any(known is function for known in named.values()):
            own.setdefault(name, function)
            counts[name] = counts.get(name, 0) + count
    return own, counts


def describe_value(value: object) -> str:
    """A plain value as text; of others only what kind it is."""
    return _describe(value, (), None)


def describe_launch(
    function: FunctionType, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, str]:
    """What one launch is given, as text by name; options of the launch are left out.

    Its arguments, and under names that begin with GLOBAL the globals that its code reads.
    """
    signature = inspect.signature(function)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind_partial(*args, **named)
    bound.apply_defaults()
    given = {name: describe_value(value) for name, value in bound.arguments.items()}
    return {**given, **describe_globals(function)}


def describe_globals(function: FunctionType) -> dict[str, str]:
    """The plain globals of its own file that a kernel reads, or a function that it calls."""
    found: dict[str, str] = {}
    waiting = [function]
    known = {function}
    while waiting:
        for name, value in _read_globals(waiting.pop()).items():
            inner = _function_in(value)
            if inner is not None and inner not in known and _is_beside(inner, function):
                waiting.append(inner)
                known.add(inner)
            elif _is_plain(value):
                found[GLOBAL + name] = describe_value(value)
    return found


def _describe_function(
    function: FunctionType, within: tuple[object, ...], kernel: FunctionType | None
) -> str:
    if function in within:  # it calls itself
        return function.__name__
    code = function.__code__
    if code not in _texts:
        try:
            _texts[code] = inspect.cleandoc("".join(inspect.getsourcelines(function)[0]))
        except (OSError, TypeError):
            _texts[code] = code.co_code.hex()
    read = _read_globals(function)
    if kernel is not None and _is_beside(function, kernel):
        read = {name: value for name, value in read.items() if not _is_plain(value)}
    read.update(inspect.getclosurevars(function).nonlocals)
    parts = [
        f"{name} = {_describe(value, (*within, function), kernel)}"
        for name, value in sorted(read.items())
    ]
    return "\n".join([_texts[code], *parts])


def _read_globals(function: FunctionType) -> dict[str, object]:
    """The globals that the code of a function reads.

    `inspect.getclosurevars` counts the names of attributes too: to it `tl.math` reads a global
    `math` where there is one, and the interpreter puts one there.
    """
    return {
        name: function.__globals__[name]
        for name in sorted(set(_global_names(function.__code__)))
        if name in function.__globals__
    }


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _global_names(inner)


def _is_beside(function: FunctionType, kernel: FunctionType) -> bool:
    """Whether two functions have the same globals."""
    return function.__globals__ is kernel.__globals__


def _is_plain(value: object) -> bool:
    if type(value).__name__ == "constexpr":
        return _is_plain(value.value)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _function_in(value: object) -> FunctionType | None:
    """The function within a jitted or autotuned one; none for a plain function."""
    inner = value
    while not isinstance(inner, FunctionType) and hasattr(inner, "fn"):
        inner = inner.fn
    return inner if isinstance(inner, FunctionType) and inner is not value else None


def _describe(value: object, within: tuple[object, ...], kernel: FunctionType | None) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_describe(item, within, kernel) for item in value)}]"
    if (inner := _function_in(value)) is not None:
        return _describe_function(inner, within, kernel)
    if isinstance(value, FunctionType):  # of triton's language, which an interpreter patches
        return value.__name__
    if type(value).__name__ == "constexpr":
        return _describe(value.value, within, kernel)
    if type(value).__name__ == "dtype":
        return str(value)
    return "something else"
