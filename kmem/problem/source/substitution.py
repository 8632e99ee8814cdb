"""Other sizes put in place of those that a problem file gives, by name or by where they stand.

A workload names what it replaces (`Workload.constants`) in one of four ways:

- `WIDTH`: the top-level constant of that name; what is computed from it follows.
- `1024`: that number wherever the file writes it to make inputs or constructor arguments: in
  `get_inputs`, `get_init_inputs`, and in functions, classes, dicts and calls at top level that
  these read and `Model` does not (emitted modules contain `Model` as it is).
- `1024@14:24`: that number where it stands at line 14, column 24.
- `inputs[0].1`: axis 1 of the first tensor that `get_inputs` returns, of which a part is kept.
"""

import __future__

import ast
import copy
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from kmem.host.syntax import parse_python
from kmem.problem.source.reach import (
    SIZE_FUNCTIONS,
    assigned_constants,
    reached_from,
    top_level_reads,
)
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
    """The file's tree with other sizes in it; axes of tensors are `keep_parts`'s.

    Statements that hold none of them are shared between all trees of a file: they are not to be
    changed.
    """
    file = _read(problem)
    changed = _changed_statements(file, values)
    body = [changed.get(place, statement) for place, statement in enumerate(file.tree.body)]
    return ast.Module(body, file.tree.type_ignores)


def compiled(
    problem: Problem, values: Mapping[str, int | tuple[int, ...]]
) -> Iterator[types.CodeType]:
    """What `substitute` gives as code, to be executed in this order.

    The search for small sizes runs a file a thousand times: what stays the same is compiled once.
    """
    file = _read(problem)
    changed = _changed_statements(file, values)
    for place, statement in enumerate(file.tree.body):
        if place in changed:
            yield file.compile(changed[place])
        elif place not in file.codes:
            yield file.codes.setdefault(place, file.compile(statement))
        else:
            yield file.codes[place]


@dataclass(frozen=True, slots=True)
class _File:
    """A problem file as it was read, with what was compiled of it by the place of the statement."""

    path: str
    tree: ast.Module
    sizes: Sequence[ast.Constant]
    holders: Mapping[int, int]  # of an expression that may be replaced, by its id: the statement
    flags: int  # of what it imports from __future__
    codes: dict[int, types.CodeType] = field(default_factory=dict)

    def compile(self, statement: ast.stmt) -> types.CodeType:
        body = [statement]
        if _is_text(statement) and statement is not self.tree.body[0]:
            body = []  # it would be taken for the module's docstring
        tree = ast.Module(body, [])
        return compile(tree, self.path, "exec", flags=self.flags, dont_inherit=True)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _read(problem: Problem) -> _File:
    return _read_text(problem.source, problem.path)


@functools.lru_cache(maxsize=8)
def _read_text(source: str, path: str) -> _File:
    tree = parse_python(source, filename=path)
    sizes = written_sizes(Problem("", path, source), tree)
    holders = {id(node): place for place, each in enumerate(tree.body) for node in ast.walk(each)}
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for name in statement.names:
                flags |= getattr(__future__, name.name).compiler_flag
    return _File(path, tree, sizes, holders, flags)


def _changed_statements(
    file: _File, values: Mapping[str, int | tuple[int, ...]]
) -> dict[int, ast.stmt]:
    """Copies of the statements in which sizes are replaced, by their places."""
    expressions: dict[int, dict[int, ast.expr]] = {}  # by statement, then by what they replace

    def put(made: ast.expr, old: ast.expr) -> None:
        made = ast.copy_location(made, old)
        expressions.setdefault(file.holders[id(old)], {})[id(old)] = made

    for statement in file.tree.body if values else ():
        for name, expression in assigned_constants(statement):
            if name in values:
                put(ast.parse(_written(values[name], expression), mode="eval").body, expression)
    if any(name[0].isdigit() for name in values):
        for number in file.sizes:
            value = values.get(place_of(number), values.get(str(number.value)))
            if value is not None:
                put(ast.Constant(value), number)
    return {
        place: copy.deepcopy(file.tree.body[place], memo) for place, memo in expressions.items()
    }


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
    """`get_inputs` with a part of each axis that a workload names.

    Parts of a contiguous tensor are contiguous; those of any other keep its strides, to which
    kernels are written.
    """
    parts = [(match, size) for name, size in values.items() if (match := _AXIS.fullmatch(name))]

    def get_parts() -> list[object]:
        inputs = list(get_inputs())
        for match, size in parts:
            place = int(match[1])
            part = inputs[place].narrow(int(match[2]), 0, size)
            inputs[place] = part.contiguous() if inputs[place].is_contiguous() else part
        return inputs

    return get_parts
