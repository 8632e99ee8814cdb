"""What the top level of a problem file defines, and which of it reaches which function.

It is read from the text; the file is not run.
"""

import ast
import symtable
from collections.abc import Mapping

from kmem.records import Problem

#: The functions of the contract whose numbers are sizes: of inputs, and of parameters.
INPUT_FUNCTIONS = ("get_inputs",)
SIZE_FUNCTIONS = ("get_inputs", "get_init_inputs")


def assigned_constants(statement: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Names that a top-level statement assigns, each with its expression.

    It may read `M = 4`, `M: int = 4`, or `M, N = 4, 8`.
    """
    if (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.value is not None
    ):
        return [(statement.target.id, statement.value)]
    if not isinstance(statement, ast.Assign):
        return []
    found: list[tuple[str, ast.expr]] = []
    for target in statement.targets:
        if isinstance(target, ast.Name):
            found.append((target.id, statement.value))
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(statement.value, ast.Tuple)
            and len(target.elts) == len(statement.value.elts)
        ):
            pairs = zip(target.elts, statement.value.elts, strict=True)
            found += [(name.id, value) for name, value in pairs if isinstance(name, ast.Name)]
    return found


def top_level_reads(problem: Problem, tree: ast.Module) -> dict[str, set[str]]:
    """The module-level names that each top-level name reads.

    Of functions and classes bodies, defaults and bases are looked at.
    """
    reads: dict[str, set[str]] = {}
    for statement in tree.body:
        for name, expression in assigned_constants(statement):
            reads[name] = names_in(expression)
    for scope in symtable.symtable(problem.source, problem.path, "exec").get_children():
        reads.setdefault(scope.get_name(), set()).update(_globals_read(scope))
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            reads[statement.name].update(*map(names_in, statement.bases))
        elif isinstance(statement, ast.FunctionDef):
            reads[statement.name].update(*map(names_in, statement.args.defaults))
    return reads


def _globals_read(scope: symtable.SymbolTable) -> set[str]:
    """Module-level names that a function or class reads.

    A parameter of the same name is another thing.
    """
    names = {
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
    }
    return names.union(*(_globals_read(child) for child in scope.get_children()))


def reached_from(roots: tuple[str, ...], reads: Mapping[str, set[str]]) -> set[str]:
    """Everything the roots read, directly or through other constants, functions and classes."""
    reached: set[str] = set()
    waiting = set(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting |= reads.get(name, set())
    return reached


def names_in(node: ast.AST) -> set[str]:
    """The names that an expression reads."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
