"""One text from the same program at several sizes: where its numbers differ, a constant stands.

`align` walks the syntax trees of one function, written for several workloads, side by side.
Numbers, and tuples of numbers, that differ become constants of the module; any other difference
is a `Misaligned`.
"""

import ast
from collections.abc import Callable, Sequence

from kmem.errors import RecipeError

#: Makes the name of a constant for these expressions, one for each workload.
Hoist = Callable[[Sequence[ast.expr]], str]


class Misaligned(RecipeError):
    """The programs of two workloads differ in more than numbers."""


def is_number(node: ast.AST) -> bool:
    """Whether an expression is a literal, or a tuple or list of them."""
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(is_number, node.elts))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and is_number(node.operand)
    return isinstance(node, ast.Constant) and not isinstance(node.value, str)


def align(nodes: Sequence[ast.AST], hoist: Hoist) -> ast.AST:
    """The first tree, changed in place: a constant's name where the numbers of the trees differ.

    Raises Misaligned: if the trees differ in anything else.
    """
    first = nodes[0]
    if len({ast.dump(node) for node in nodes}) == 1:
        return first
    if all(is_number(node) for node in nodes):
        return ast.Name(hoist([node for node in nodes if isinstance(node, ast.expr)]), ast.Load())
    if len({type(node) for node in nodes}) > 1:
        raise Misaligned(f"{_show(first)} is {_show(nodes[1])} at another size")
    for name, value in ast.iter_fields(first):
        others = [getattr(node, name) for node in nodes]
        if isinstance(value, ast.AST):
            setattr(first, name, align(others, hoist))
        elif isinstance(value, list):
            if len({len(other) for other in others}) > 1:
                raise Misaligned(f"{_show(first)} has other parts at another size")
            items = list(zip(*others, strict=True))
            if value and isinstance(value[0], ast.AST):
                value[:] = [align(item, hoist) for item in items]
            elif any(item[0] != other for item in items for other in item):
                raise Misaligned(f"{_show(first)} has other names at another size")
        elif any(value != other for other in others):
            raise Misaligned(f"{_show(first)} is {_show(nodes[1])} at another size")
    return first


def _show(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
