"""A launcher as data: what it launches, over which grid, with which arguments.

A recipe writes `launch` as plain Python: constants, allocations, launches. `read_launcher` puts
the constants where they are used, so that what is left are tensors and numbers.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kmem.codegen.text.evaluating import evaluate
from kmem.errors import RecipeError
from kmem.host.syntax import parse_python

#: Allocations: what nothing reads of them is left out.
ALLOCATIONS = {"torch.empty", "torch.empty_strided", "torch.empty_like", "torch.zeros"}
#: Library calls that make one tensor in memory of its own and change none; `is_library` knows them.
_LIBRARY = {"torch.convolution", "torch.cudnn_convolution", "torch.cudnn_convolution_transpose"}
#: What such a call may be told of the process; asking changes nothing.
_ASKED_OF_TORCH = "torch.are_deterministic_algorithms_enabled"


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """One launch of a launcher: `call` is a node of its tree."""

    call: ast.Call
    kernel: str

    @property
    def grid(self) -> ast.expr:
        assert isinstance(self.call.func, ast.Subscript)
        return self.call.func.slice


def read_launcher(source: str) -> ast.FunctionDef:
    """The tree of a launcher, its constants where they are used.

    Raises RecipeError: if the source does not define `launch` and nothing else that matters.
    """
    found = [
        statement
        for statement in parse_python(source).body
        if isinstance(statement, ast.FunctionDef) and statement.name == "launch"
    ]
    if len(found) != 1:
        raise RecipeError("An emission's launcher must define a top-level function named launch")
    (function,) = found
    assigned = [
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    propagation = _Propagation()
    left: list[ast.stmt] = []
    for statement in function.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        is_new = isinstance(target, ast.Name) and assigned.count(target.id) == 1
        if not is_new or not propagation.learn(statement, assigned):
            left.append(statement)
    function.body = left
    propagated = propagation.visit(function)
    assert isinstance(propagated, ast.FunctionDef)
    return propagated


class _Propagation(ast.NodeTransformer):
    """Puts literals in the place of expressions that constants decide, and one name for two."""

    def __init__(self) -> None:
        self.known: dict[str, object] = {}
        self.aliases: dict[str, str] = {}

    def learn(self, statement: ast.Assign, assigned: list[str]) -> bool:
        """Whether a statement gives a constant or another value a name."""
        target, value = statement.targets[0], statement.value
        assert isinstance(target, ast.Name)
        try:
            self.known[target.id] = evaluate(value, self.known)
        except ValueError:
            if not isinstance(value, ast.Name) or assigned.count(value.id) > 1:
                return False
            self.aliases[target.id] = self.aliases.get(value.id, value.id)
        return True

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            try:
                return literal(evaluate(node, self.known))
            except ValueError:
                pass
        visited = super().visit(node)
        assert isinstance(visited, ast.AST)
        return visited

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.aliases.get(node.id, node.id), node.ctx)


def literal(value: object) -> ast.expr:
    """A number, a word or a tuple of them as an expression."""
    if isinstance(value, tuple):
        return ast.Tuple([literal(item) for item in value], ast.Load())
    assert value is None or isinstance(value, str | bool | int | float)
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


def find_launches(function: ast.FunctionDef, kernels: Collection[str]) -> Iterator[LaunchCall]:
    """The launches of a launcher, in the order of its text."""
    for node in _in_order(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            value = node.func.value
            if isinstance(value, ast.Name) and value.id in kernels:
                yield LaunchCall(node, value.id)


def is_library(statement: ast.stmt) -> bool:
    """Whether a statement gives a name to what the library computes, and does nothing else."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
    known = [ast.unparse(call.func) in _LIBRARY for call in calls]
    rest = [call.func for call, is_known in zip(calls, known, strict=True) if not is_known]
    return any(known) and all(
        isinstance(function, ast.Attribute)
        and (function.attr == "contiguous" or ast.unparse(function) == _ASKED_OF_TORCH)
        for function in rest
    )


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def drop_unused_allocations(function: ast.FunctionDef) -> None:
    """Leave out, in place, memory that nothing reads."""
    while True:
        read = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        left = [statement for statement in function.body if not _is_unused(statement, read)]
        if len(left) == len(function.body):
            return
        function.body = left


def _is_unused(statement: ast.stmt, read: Collection[str]) -> bool:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    value = statement.value
    is_memory = isinstance(value, ast.Name | ast.Constant) or (
        isinstance(value, ast.Call) and ast.unparse(value.func) in ALLOCATIONS
    )
    return is_memory and statement.targets[0].id not in read
