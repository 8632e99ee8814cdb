"""Statements of kernels that only make what nothing reads, and names that nothing reads."""

import ast
import re
from collections.abc import Collection, Mapping

from kmem.codegen.edited_text import EditedText, pass_instead, read_tree, without_spare_passes

#: What a statement may call and still do nothing but compute a value.
_IMPURE = re.compile(r"tl\.(?:store|atomic_\w+|debug_barrier|device_\w+|inline_asm\w*|static_\w+)$")
_IS_TRITON = re.compile(r"tl(?:\.\w+)+$")
_PURE_CALLS = re.compile(r"(?:tl\.[\w.]+|range|min|max|abs|float|int)$")


def drop_unused(text: str, pure: Collection[str] = ()) -> str:
    """A text without statements of functions that only make what nothing reads.

    Args:
        pure: functions of the file whose call changes nothing.
    """
    while True:
        edited = EditedText(text)
        for function in read_tree(text).body:
            if isinstance(function, ast.FunctionDef):
                for statement in _dead_statements(function, pure):
                    assert statement.end_lineno is not None
                    edited.replace_lines(
                        statement.lineno, statement.end_lineno, pass_instead(statement)
                    )
        shorter = without_spare_passes(edited.result())
        if shorter == text:
            return _mark_unused(text)
        text = shorter


def _mark_unused(text: str) -> str:
    """A text in which an underscore leads the names of parts that nothing reads."""
    edited = EditedText(text)
    for function in read_tree(text).body:
        read = _names_read(function, {})
        targets = (
            target
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
            for target in node.targets[0].elts
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id not in read and target.id[0] != "_":
                edited.replace(target, f"_{target.id}")
    return edited.result()


def _dead_statements(function: ast.FunctionDef, pure: Collection[str]) -> list[ast.stmt]:
    candidates: dict[int, tuple[ast.stmt, str]] = {}
    for node in ast.walk(function):
        target = _target(node)
        if isinstance(node, ast.stmt) and target is not None and _is_pure(node, pure):
            candidates[id(node)] = (node, target)
    live = _names_read(function, candidates)
    waiting = dict(candidates)
    while found := [key for key, (_, target) in waiting.items() if target in live]:
        for key in found:
            live |= _names_read(waiting.pop(key)[0], {})
    dead = [statement for statement, _ in waiting.values()]
    return dead + [node for node in ast.walk(function) if _does_nothing(node, pure)]


def _target(node: ast.AST) -> str | None:
    """The one name that a statement assigns to."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value):
        target = node.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _names_read(root: ast.AST, skipped: Mapping[int, object]) -> set[str]:
    names: set[str] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return names


def _is_pure(node: ast.AST, pure: Collection[str]) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            name = ast.unparse(inner.func)
            is_method = isinstance(inner.func, ast.Attribute) and not _IS_TRITON.match(name)
            if not is_method and name not in pure and not _PURE_CALLS.match(name):
                return False
            if _IMPURE.match(name):
                return False
    return True


def _does_nothing(node: ast.AST, pure: Collection[str]) -> bool:
    """Whether a statement is a branch or a loop around nothing, or gives a value its own name."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
        return node.value.id == _target(node)
    if not isinstance(node, ast.If | ast.For):
        return False
    is_empty = all(isinstance(item, ast.Pass) for item in (*node.body, *node.orelse))
    return is_empty and _is_pure(node.test if isinstance(node, ast.If) else node.iter, pure)
