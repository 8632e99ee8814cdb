"""What matters of a kernel file: its kernels, who launches them, and the constants they read.

Whole functions and statements only, in the order of the file; what a reader needs no example of
(imports, inputs, fall-backs, wrappers of launches) is left out.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.host.syntax import parse_python
from kmem.records import Attempt

#: A constant longer than this is a table, which shows nothing.
_LONGEST_CONSTANT = 200
#: Where a traceback names a line of the candidate's file, which has many names.
_AT_LINE = re.compile(r'File "[^"]*candidate[^"/]*\.py", line (\d+)')
#: Where Triton's compiler names a line of a kernel, counted from its first.
_IN_KERNEL = re.compile(r"^.*\bat (\d+):\d+:\s*\ndef (\w+)\(", re.MULTILINE)
#: What kmem's recipes write for the small workload, which the judge alone runs.
_SMALL = "_launch_small"
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


def kernel_excerpt(source: str, limit: int | None = None) -> str:
    """The part of a file that shows how its kernels work; all of it if it has none.

    Args:
        limit: of characters; functions that do not fit are left out whole, and counted.
    """
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
        and not statement.name.startswith(_SMALL)
        and (statement in kernels or statement.name in called or _names_in(statement) & launchers)
    ]
    hosts = {statement.name for statement in kept if statement not in kernels}
    kept = [
        statement
        for statement in tree.body
        if statement in kept
        or (isinstance(statement, ast.FunctionDef) and _names_in(statement) & hosts)
    ]
    lines = source.split("\n")
    everything = kept
    if limit is not None:
        kept = _that_fit(everything, lines, limit)
    read = set().union(*map(_names_in, kept))
    constants = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    read = read.union(*(_names_in(each) for each in constants if _targets(each) & read))
    parts = []
    for statement in tree.body:
        if statement in kept:
            parts.append("\n" + _text(statement, lines))
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and _targets(statement) & read:
            text = _text(statement, lines)
            if len(text) <= _LONGEST_CONSTANT:
                parts.append(text)
    if len(kept) < len(everything):
        parts.append(f"\n# {len(everything) - len(kept)} more functions are left out")
    return "\n".join(parts).strip("\n")


def _that_fit(
    statements: Sequence[ast.FunctionDef | ast.ClassDef], lines: list[str], limit: int
) -> list[ast.FunctionDef | ast.ClassDef]:
    """The statements, in their order, as long as there is room; one at least."""
    kept: list[ast.FunctionDef | ast.ClassDef] = []
    for statement in statements:
        limit -= len(_text(statement, lines))
        if limit >= 0 or not kept:
            kept.append(statement)
    return kept


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
    """The lines of a failed file around the one that its log names; empty if it names none.

    Where the compiler points into a kernel that is the line, else the innermost of a traceback.
    """
    source, log = attempt.candidate.kernel.source, attempt.measurement.log
    begins = {kernel.name: kernel.lineno for kernel in _kernels(_tree(source))}
    named = [int(match[1]) for match in _AT_LINE.finditer(log)]
    named += [
        begins[match[2]] + int(match[1]) - 1
        for match in _IN_KERNEL.finditer(log)
        if match[2] in begins
    ]
    inside = [line for line in named if line <= len(source.split("\n"))]
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
