"""Calls and attributes by which a file would say one thing and run another.

A kernel that can tell the interpreter, which proves it, from the compiler, and one whose function
is changed after it was defined; texts that reach for attributes. Pure functions of a syntax tree.
"""

import ast
import re

#: What a kernel is made of.
_OF_KERNELS = frozenset(("fn", "src", "raw_src", "rewriter", "run", "configs"))
_UPDATES = "_unsafe_update_src"
#: In an interpreted kernel values are of other classes than in a compiled one.
_TELLING = frozenset(("isinstance", "issubclass", "type", "hasattr", "getattr", "callable"))
_TELLING_ATTRIBUTES = frozenset(("handle", "data"))
#: Methods by which a text takes attributes of what it is given, and a field that does.
_FORMATTING = frozenset(("format", "format_map", "vformat", "get_field"))
_REACHING_FIELD = re.compile(r"\{[^{}]*[.\[]")
_TELLS = (
    "it says one thing in the interpreter, which proves, and another when it is compiled; branch "
    "on the value of a tl.constexpr argument"
)
_CHANGES = "another kernel would run than the file shows; write a second @triton.jit function"
_REACHES = "takes attributes out of sight; write an f-string"


def attribute_faults(node: ast.Attribute, *, in_kernel: bool) -> list[tuple[str, str]]:
    """What is wrong with an attribute, and what to do instead.

    Args:
        in_kernel: whether it stands in a `@triton.jit` function.
    """
    found = []
    if in_kernel and node.attr in _TELLING_ATTRIBUTES:
        found.append((f".{node.attr} in a kernel", _TELLS))
    is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
    if node.attr in _OF_KERNELS and not isinstance(node.ctx, ast.Load) and not is_self:
        found.append((f"assignment to .{node.attr}", _CHANGES))
    if node.attr == _UPDATES:
        found.append((f".{node.attr}", _CHANGES))
    if node.attr in _FORMATTING and not _is_plain_text(node.value):
        found.append((f".{node.attr}", _REACHES))
    return found


def call_faults(node: ast.Call, *, in_kernel: bool) -> list[tuple[str, str]]:
    """The same for a call."""
    name = node.func.id if isinstance(node.func, ast.Name) else None
    return [(f"{name} in a kernel", _TELLS)] if in_kernel and name in _TELLING else []


def _is_plain_text(node: ast.expr) -> bool:
    """Whether it is a literal whose fields take what they are given as it is."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and not _REACHING_FIELD.search(node.value)
