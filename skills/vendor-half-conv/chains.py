"""The names of a launcher for several convolutions, one after the other.

Each is written as if it were alone; the names that it gives are then its own.
"""

import ast
from collections.abc import Sequence

from kmem.host.syntax import parse_python

#: What the names begin with that belong to the convolution before.
BEFORE = "before_"
#: What all convolutions of a launcher share.
_SHARED = "x", "out"


def name_in(name: str, place: int) -> str:
    """A name of the convolution at a place of a chain."""
    return name if place == 0 or name in _SHARED else f"{name}_{place}"


def rename(statements: Sequence[str], parameters: Sequence[str], place: int) -> list[str]:
    """Statements of the convolution at a place, whose names no other convolution gives."""
    if place == 0:
        return list(statements)
    tree = parse_python("\n".join(statements) + "\n")
    given = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    own = {*given, *parameters} - {*_SHARED}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id.startswith(BEFORE):
            node.id = name_in(node.id.removeprefix(BEFORE), place - 1)
        elif isinstance(node, ast.Name) and node.id in own:
            node.id = name_in(node.id, place)
    return [ast.unparse(statement) for statement in tree.body]
