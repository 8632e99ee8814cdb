"""The problem's own text as a module carries it: `Model`, to fall back on, and what it needs.

Covered: imports, which move to the module's top, the input functions, and constants that they
alone read, which go. Everything else stays as its author wrote it.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.host.syntax import parse_python

_INPUT_FUNCTIONS = ("get_inputs", "get_init_inputs", "get_small_inputs")


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """The text of a problem, and its imports, one statement each."""

    text: str
    imports: tuple[str, ...]


def reference_source(source: str) -> ReferenceText:
    """What of a problem file's text a module carries.

    Args:
        source: the problem file's text.
    """
    body = parse_python(source).body
    dropped = [
        statement
        for place, statement in enumerate(body)
        if (place == 0 and _is_text(statement)) or _is_input(statement) or _is_script(statement)
    ]
    imports = [item for item in body if isinstance(item, ast.Import | ast.ImportFrom)]
    kept = [item for item in body if item not in dropped and item not in imports]
    while unread := [item for item in kept if _is_unread(item, kept)]:
        dropped += unread
        kept = [item for item in kept if item not in unread]
    read = _names_read(kept)
    gone = {
        number
        for item in (*dropped, *imports)
        for number in range(item.lineno - 1, item.end_lineno or item.lineno)
    }
    lines = source.splitlines()
    text = "\n".join(line for number, line in enumerate(lines) if number not in gone)
    return ReferenceText(text, tuple(line for item in imports for line in _imports(item, read)))


def _imports(statement: ast.Import | ast.ImportFrom, read: set[str]) -> list[str]:
    """The imports of a statement whose names are read, one statement each."""
    is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    found = []
    for alias in statement.names:
        name = (alias.asname or alias.name).split(".")[0]
        if name in read or is_future or name == "*":
            one = ast.Import([alias])
            if isinstance(statement, ast.ImportFrom):
                one = ast.ImportFrom(statement.module, [alias], statement.level)
            found.append(ast.unparse(one))
    return found


def _is_unread(statement: ast.stmt, kept: Sequence[ast.stmt]) -> bool:
    """Whether a statement gives a literal a name that nothing reads any more."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    is_plain = all(
        isinstance(node, _PLAIN) for part in (*targets, statement.value) for node in ast.walk(part)
    )
    names = {node.id for node in targets if isinstance(node, ast.Name)}
    return is_plain and len(names) == len(targets) and not names & _names_read(kept)


_PLAIN = (
    ast.Constant,
    ast.Name,
    ast.Tuple,
    ast.List,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)


def _names_read(statements: Sequence[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_input(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name in _INPUT_FUNCTIONS


def _is_script(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
