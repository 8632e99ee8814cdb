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
class Signature:
    """What a forward takes: its positional parameters, each with the text of its default if it has
    one, and whether it takes anything else.
    """

    positional: tuple[tuple[str, str | None], ...]
    takes_more: bool


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """The text of a problem, its imports, one statement each, and the signature of the forward of
    its `Model`, if it is written there.
    """

    text: str
    imports: tuple[str, ...]
    signature: Signature | None


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
    lines_of_imports = tuple(line for item in imports for line in _imports(item, read))
    return ReferenceText(text, lines_of_imports, _signature(body))


def _signature(body: Sequence[ast.stmt]) -> Signature | None:
    """Of the forward that `Model`, or the first class of the file that it is derived from, has."""
    classes = {item.name: item for item in body if isinstance(item, ast.ClassDef)}
    model = classes.pop("Model", None)
    while model is not None:
        for item in model.body:
            if isinstance(item, ast.FunctionDef) and item.name == "forward":
                return _signature_of(item.args)
        bases = [base.id for base in model.bases if isinstance(base, ast.Name)]
        model = next((classes.pop(name) for name in bases if name in classes), None)
    return None


def _signature_of(arguments: ast.arguments) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    defaults = {
        positional[first + place].arg: _default(value, place)
        for place, value in enumerate(arguments.defaults)
    }
    more = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs)
    taken = tuple((each.arg, defaults.get(each.arg)) for each in positional[1:])
    return Signature(taken, any(more))


def _default(value: ast.expr, place: int) -> str:
    """A default as another class can write it: a name may be one of the class it stands in."""
    nodes = list(ast.walk(value))
    has_names = any(isinstance(node, ast.Name) for node in nodes)
    is_plain = all(isinstance(node, _PLAIN) for node in nodes) and not has_names
    return ast.unparse(value) if is_plain else f"Model.forward.__defaults__[{place}]"


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
