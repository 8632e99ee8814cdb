"""Other sizes put in place of those that a problem file gives, by name or by where they stand.

A workload names what it replaces (`Workload.constants`) in one of four ways:

- `WIDTH`: the top-level constant of that name; what is computed from it follows.
- `1024`: that number wherever the file writes it to make inputs or constructor arguments: in
  `get_inputs`, `get_init_inputs`, and in functions, classes, dicts and calls at top level that
  these read and `Model` does not (emitted modules contain `Model` as it is).
- `1024@14:24`: that number where it stands at line 14, column 24.
- `inputs[0].1`: axis 1 of the first tensor that `get_inputs` returns, of which a part is kept.
"""

import ast
import re
from collections.abc import Callable, Mapping

import torch

from kmem.host.syntax import parse_python
from kmem.problem.reach import SIZE_FUNCTIONS, assigned_constants, reached_from, top_level_reads
from kmem.records import Problem

Sizes = dict[str, int | tuple[int, ...]]
_AXIS = re.compile(r"inputs\[(\d+)\]\.(\d+)")
#: What may hold numbers at top level beside functions and classes; plain numbers have a name.
_CONTAINERS = (ast.Dict, ast.Call)


def place_of(number: ast.Constant) -> str:
    """The name of one written number: its value and where it stands."""
    return f"{number.value}@{number.lineno}:{number.col_offset}"


def written_sizes(problem: Problem, tree: ast.Module) -> list[ast.Constant]:
    """Integers that are written to make inputs or constructor arguments, in the file's order."""
    reads = top_level_reads(problem, tree)
    wanted = reached_from(SIZE_FUNCTIONS, reads) - reached_from(("Model",), reads)
    found = []
    for statement in tree.body:
        for name, node in _definitions(statement):
            if name in wanted:
                found += [
                    item
                    for item in ast.walk(node)
                    if isinstance(item, ast.Constant) and type(item.value) is int
                ]
    return found


def _definitions(statement: ast.stmt) -> list[tuple[str, ast.AST]]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [(statement.name, statement)]
    return [
        (name, expression)
        for name, expression in assigned_constants(statement)
        if isinstance(expression, _CONTAINERS)
    ]


def substitute(problem: Problem, values: Mapping[str, int | tuple[int, ...]]) -> ast.Module:
    """The file's tree with other sizes in it; axes of tensors are `keep_parts`'s."""
    tree = parse_python(problem.source, filename=problem.path)
    if not values:
        return tree
    expressions: dict[ast.expr, ast.expr] = {}
    for statement in tree.body:
        for name, expression in assigned_constants(statement):
            if name in values:
                written = _written(values[name], expression)
                expressions[expression] = ast.parse(written, mode="eval").body
    if any(name[0].isdigit() for name in values):
        for number in written_sizes(problem, tree):
            value = values.get(place_of(number), values.get(str(number.value)))
            if value is not None:
                expressions[number] = ast.Constant(value)
    return ast.fix_missing_locations(_Substitution(expressions).visit(tree))


class _Substitution(ast.NodeTransformer):
    """Puts other expressions in place of some."""

    def __init__(self, expressions: Mapping[ast.expr, ast.expr]) -> None:
        self.expressions = expressions

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and node in self.expressions:
            return ast.copy_location(self.expressions[node], node)
        return super().generic_visit(node)

    visit_Constant = generic_visit  # NodeTransformer treats constants apart


def _written(value: int | tuple[int, ...], expression: ast.expr) -> str:
    """The value as source: a list where the file has one.

    A list and a tuple do not concatenate.
    """
    if isinstance(value, int):
        return repr(value)
    return repr(list(value) if isinstance(expression, ast.List) else tuple(value))


def axes_of(inputs: list[object]) -> Sizes:
    """Every axis of every tensor by the name that a workload gives it, with its size."""
    return {
        f"inputs[{place}].{axis}": int(size)
        for place, value in enumerate(inputs)
        if isinstance(value, torch.Tensor)
        for axis, size in enumerate(value.shape)
    }


def keep_parts(
    get_inputs: Callable[[], list[object]], values: Mapping[str, int | tuple[int, ...]]
) -> Callable[[], list[object]]:
    """`get_inputs` with a part of each axis that a workload names."""
    parts = [(match, size) for name, size in values.items() if (match := _AXIS.fullmatch(name))]

    def get_parts() -> list[object]:
        inputs = list(get_inputs())
        for match, size in parts:
            place = int(match[1])
            inputs[place] = inputs[place].narrow(int(match[2]), 0, size).contiguous()
        return inputs

    return get_parts
