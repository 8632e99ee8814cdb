"""The jitted functions of a file as text, after those that it imports from other such files.

Such a file (sums.py, scans/kernels.py, a skill's own) holds kernels: read as text by what emits
them, never edited, importable by tests. A kernel takes sizes, strides and tiles as `tl.constexpr`
arguments and calls functions that it is handed at its ports, see chains/ports.py.
"""

import ast
import re
from functools import cache
from pathlib import Path

from kmem.codegen.text.functions import split_functions
from kmem.host.syntax import parse_python

_ROOM = "kmem.codegen."
_SIGNATURE = re.compile(r"(?P<head>def \w+)\(\n(?P<rest>[^()]*)\):")


def read_anchor(name: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of the functions of a file of kernels, each after those that it calls.

    Args:
        name: of the module below kmem.codegen: `text.sums`.
    """
    return read_kernels(Path(__file__).parents[1] / f"{name.replace('.', '/')}.py")


@cache
def read_kernels(file: Path) -> tuple[tuple[str, str], ...]:
    """(name, text) of the functions of any file, and of the files of kernels that it imports."""
    text = file.read_text(encoding="utf-8")
    statements = parse_python(text).body
    found: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(_ROOM):
            found |= read_anchor(statement.module.removeprefix(_ROOM))
    first = next(each for each in statements if isinstance(each, ast.FunctionDef))
    lines = text.splitlines(keepends=True)[first.decorator_list[0].lineno - 1 :]
    for function in split_functions("".join(lines)):
        found[function.name] = _SIGNATURE.sub(_on_one_line, function.text)
    return tuple(found.items())


def _on_one_line(signature: re.Match[str]) -> str:
    """A signature as a module's layout is given it, which fills lines with it."""
    return f"{signature['head']}({' '.join(signature['rest'].split()).removesuffix(',')}):"
