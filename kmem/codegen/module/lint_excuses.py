"""Rules of linters that say otherwise for ordinary Python, excused in a module that breaks them."""

import ast
from collections.abc import Callable


def excuse_rules(tree: ast.Module) -> str:
    """Comments that excuse what kernels in a text do for a reason; empty if they do nothing."""
    nodes = list(ast.walk(tree))
    found = [(rule, reason) for rule, reason, breaks in _RULES if any(map(breaks, nodes))]
    return "".join(f"# ruff: noqa: {rule} - {reason}\n" for rule, reason in found)


def _compares_with_itself(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and len(node.comparators) == 1
        and ast.dump(node.left) == ast.dump(node.comparators[0])
    )


def _is_minimum(node: ast.AST) -> bool:
    """Whether an expression chooses one of the two numbers that it compares."""
    if not isinstance(node, ast.IfExp) or not isinstance(node.test, ast.Compare):
        return False
    compared = {ast.dump(node.test.left), *map(ast.dump, node.test.comparators)}
    return compared == {ast.dump(node.body), ast.dump(node.orelse)}


def _only_nests(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and not node.orelse
        and len(node.body) == 1
        and isinstance(node.body[0], ast.If)
        and not node.body[0].orelse
    )


_RULES: tuple[tuple[str, str, Callable[[ast.AST], bool]], ...] = (
    ("PLR0124", "NaN differs from itself", _compares_with_itself),
    ("FURB136", "`min` makes no constant", _is_minimum),
    ("SIM102", "`and` is not for tensors", _only_nests),
)
