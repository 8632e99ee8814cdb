"""Expressions of literals and known names, worked out when a module is written."""

import ast
import operator
from collections.abc import Callable, Mapping

Known = Mapping[str, object]


class _Undecided(Exception):  # noqa: N818 - no error: a value that is not known yet
    """An expression holds something that is not known."""


_BINARY: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[object], object]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type[ast.cmpop], Callable[[object, object], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
#: Functions of numbers that a launcher's or a kernel's constants may be computed with.
_FUNCTIONS: dict[str, Callable[..., object]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "triton.cdiv": lambda number, by: -(-number // by),
    "tl.cdiv": lambda number, by: -(-number // by),
}


def evaluate(node: ast.expr, known: Known) -> object:
    """The value of an expression of known names and literals.

    Raises ValueError: if it holds anything else.
    """
    try:
        return _evaluate(node, known)
    except (_Undecided, TypeError, ZeroDivisionError) as ex:
        raise ValueError(ast.unparse(node)) from ex


def _evaluate(node: ast.expr, known: Known) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_evaluate(item, known) for item in node.elts)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_evaluate(node.operand, known))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_evaluate(node.left, known), _evaluate(node.right, known))
    if isinstance(node, ast.BoolOp):
        return _evaluate_boolean(node, known)
    if isinstance(node, ast.Compare):
        return _evaluate_comparison(node, known)
    if isinstance(node, ast.IfExp):
        return _evaluate(node.body if _evaluate(node.test, known) else node.orelse, known)
    if isinstance(node, ast.Call) and not node.keywords:
        function = _FUNCTIONS.get(ast.unparse(node.func))
        if function is not None:
            return function(*(_evaluate(argument, known) for argument in node.args))
    raise _Undecided


def _evaluate_boolean(node: ast.BoolOp, known: Known) -> object:
    stops = isinstance(node.op, ast.Or)
    value: object = None
    for item in node.values:
        value = _evaluate(item, known)
        if bool(value) is stops:
            break
    return value


def _evaluate_comparison(node: ast.Compare, known: Known) -> bool:
    left = _evaluate(node.left, known)
    for kind, item in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(item, known)
        if not _COMPARE[type(kind)](left, right):
            return False
        left = right
    return True
