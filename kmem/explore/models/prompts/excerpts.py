"""What matters of a kernel file: its kernels, who launches them, and the constants they read.

Whole functions and statements only, in the order of the file; what a reader needs no example of
(imports, inputs, fall-backs, wrappers of launches) is left out.
"""

import ast
import re
from dataclasses import dataclass

from kmem.host.syntax import parse_python
from kmem.records import Attempt

#: A constant longer than this is a table, which shows nothing.
_LONGEST_CONSTANT = 200
#: Where a log names a line of the candidate's file.
_AT_LINE = re.compile(r'(?:File "[^"]*", line |\.py:|\bat )(\d+)(?=[,:)\s]|$)')
_UNTOLD = frozenset({"get_inputs", "get_init_inputs", "get_small_inputs"})


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What one kernel of a file does, by count of what stands in its text."""

    name: str
    lines: int
    loads: int
    stores: int
    dots: int
    loops: int
    reductions: int
    atomics: int


def kernel_excerpt(source: str) -> str:
    """The part of a file that shows how its kernels work; all of it if it has none."""
    tree = _tree(source)
    kernels = _kernels(tree)
    if tree is None or not kernels:
        return source.strip("\n")
    launchers = {kernel.name for kernel in kernels}
    called = set().union(*map(_names_in, kernels))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _names_in(statement) & launchers:
            launchers |= {each.id for each in statement.targets if isinstance(each, ast.Name)}
    kept = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef | ast.ClassDef)
        and statement.name not in _UNTOLD
        and (statement in kernels or statement.name in called or _names_in(statement) & launchers)
    ]
    read = set().union(*map(_names_in, kept))
    lines = source.split("\n")
    parts = []
    for statement in tree.body:
        if statement in kept:
            parts.append("\n" + _text(statement, lines))
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and _targets(statement) & read:
            text = _text(statement, lines)
            if len(text) <= _LONGEST_CONSTANT:
                parts.append(text)
    return "\n".join(parts).strip("\n")


def kernel_shapes(source: str) -> list[KernelShape]:
    """What each kernel of a file does, in the order of the file."""
    shapes = []
    for kernel in _kernels(_tree(source)):
        called = [
            node.func.attr
            for node in ast.walk(kernel)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]
        shapes.append(
            KernelShape(
                kernel.name,
                (kernel.end_lineno or kernel.lineno) - kernel.lineno + 1,
                called.count("load"),
                called.count("store"),
                called.count("dot") + called.count("dot_scaled"),
                sum(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel)),
                sum(called.count(name) for name in ("sum", "max", "min", "argmax", "argmin")),
                sum(name.startswith("atomic_") for name in called),
            )
        )
    return shapes


def failing_lines(attempt: Attempt) -> str:
    """The lines of a failed file around the last one that its log names; empty if it names none."""
    source = attempt.candidate.kernel.source
    count = len(source.split("\n"))
    named = [int(match[1]) for match in _AT_LINE.finditer(attempt.measurement.log)]
    inside = [line for line in named if 1 < line <= count]
    return _lines_around(source, inside[-1]) if inside else ""


def _lines_around(source: str, line: int, reach: int = 4) -> str:
    """The lines around one of a file, numbered, the line itself marked."""
    lines = source.split("\n")
    first, last = max(1, line - reach), min(len(lines), line + reach)
    return "\n".join(
        f"{'>' if number == line else ' '}{number:4d} {lines[number - 1]}"
        for number in range(first, last + 1)
    )


def _tree(source: str) -> ast.Module | None:
    try:
        return parse_python(source)
    except (SyntaxError, ValueError):
        return None


def _kernels(tree: ast.Module | None) -> list[ast.FunctionDef]:
    """The functions that Triton compiles."""
    return [
        statement
        for statement in (tree.body if tree else ())
        if isinstance(statement, ast.FunctionDef)
        and any("jit" in ast.unparse(decorator) for decorator in statement.decorator_list)
    ]


def _names_in(node: ast.AST) -> set[str]:
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def _targets(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _text(statement: ast.stmt, lines: list[str]) -> str:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(lines[first - 1 : statement.end_lineno])
