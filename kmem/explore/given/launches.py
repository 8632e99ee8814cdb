"""The Triton kernels of a file, and where the numbers stand that their launches hand them.

Read from the syntax tree; nothing is run. A number counts if it is an integer literal: in the
launch itself, in a local variable assigned once, in a constant of the module, or in the list of
configurations of `triton.autotune`. What is computed is the author's own business.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: Settings of a launch that every Triton kernel has, with Triton's own values.
LAUNCH_DEFAULTS = {"num_warps": 4, "num_stages": 3}
#: Names of numbers that choose how work is cut up, not how large it is: another value gives another
#: kernel with the same result.
_TILE = re.compile(r"BLOCK|TILE|GROUP|CHUNK|SPLIT|UNROLL|STAGES|WARPS|PROGRAMS", re.IGNORECASE)
#: Arguments of `triton.autotune` that do nothing but choose among the configurations.
_CHOOSING = {"configs", "key", "warmup", "rep", "use_cuda_graph", "do_bench", "cache_results"}


@dataclass(frozen=True, slots=True)
class Place:
    """Text in a file: lines count from 1, columns in bytes of UTF-8, as ast counts them."""

    line: int
    start: int
    end_line: int
    end: int

    @classmethod
    def of(cls, node: ast.expr) -> "Place":
        return cls(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that a launch hands to a kernel.

    `constant` names the module-level constant that it is already; `place` is where it is written
    otherwise. A number without either is Triton's default: `behind` is where it could be written.
    """

    kernel: str
    name: str
    value: int
    constant: str = ""
    place: Place | None = None
    behind: Place | None = None


@dataclass(frozen=True, slots=True)
class Autotuned:
    """The configurations that `triton.autotune` chooses among, all of the same names."""

    kernel: str
    place: Place  # of the list
    config: str  # how the file calls triton.Config
    tiles: tuple[str, ...]  # the names within the dictionary of a configuration
    settings: tuple[Mapping[str, int], ...]  # num_warps and num_stages included


def find_numbers(tree: ast.Module, source: str) -> tuple[list[Number], list[Autotuned]]:
    """Every number of a launch that chooses how work is cut up, and the autotuned kernels."""
    kernels = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
    }
    autotuned = [
        found
        for name, node in kernels.items()
        for decorator in node.decorator_list
        if (found := _read_autotune(name, decorator, source)) is not None
    ]
    decorated = {
        name
        for name, node in kernels.items()
        if any(_called_name(decorator) == "autotune" for decorator in node.decorator_list)
    }
    numbers = []
    for scope, launch in _launches(tree, kernels):
        name = launch.func.value.id
        numbers += _launch_numbers(kernels[name], launch, scope, tree)
        if name not in decorated:
            numbers += _defaults(kernels[name], launch)
    return numbers, autotuned


def _called_name(decorator: ast.expr) -> str:
    """The last name of `triton.jit`, `jit` or `triton.autotune(...)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _is_jit(decorator: ast.expr) -> bool:
    return _called_name(decorator) == "jit"


def _launches(
    tree: ast.Module, kernels: Mapping[str, ast.FunctionDef]
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    """Every `kernel[grid](...)` with the innermost function around it."""

    def walk(
        node: ast.AST, scope: ast.FunctionDef | None
    ) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name in kernels:
                    yield scope, child
            yield from walk(child, child if isinstance(child, ast.FunctionDef) else scope)

    return walk(tree, None)


def _launch_numbers(
    kernel: ast.FunctionDef, launch: ast.Call, scope: ast.FunctionDef | None, tree: ast.Module
) -> Iterator[Number]:
    parameters = [*kernel.args.posonlyargs, *kernel.args.args]
    given = [
        (parameter.arg, value)
        for parameter, value in zip(parameters, launch.args, strict=False)
        if not isinstance(value, ast.Starred)
    ]
    given += [(keyword.arg, keyword.value) for keyword in launch.keywords if keyword.arg]
    constexprs = {
        parameter.arg
        for parameter in [*parameters, *kernel.args.kwonlyargs]
        if parameter.annotation and ast.unparse(parameter.annotation).endswith("constexpr")
    }
    for name, value in given:
        if name not in LAUNCH_DEFAULTS and not (name in constexprs and _TILE.search(name)):
            continue
        if _is_number(value):
            yield Number(kernel.name, name, value.value, place=Place.of(value))
        elif isinstance(value, ast.Name):
            yield from _named_number(kernel.name, name, value.id, scope, tree)


def _named_number(
    kernel: str, name: str, variable: str, scope: ast.FunctionDef | None, tree: ast.Module
) -> Iterator[Number]:
    """The number that a variable of the launch stands for, if it stands for one."""
    local = _assigned(scope, variable) if scope is not None else []
    if local:
        if len(local) == 1 and local[0] is not None and _is_number(local[0]):
            yield Number(kernel, name, local[0].value, place=Place.of(local[0]))
        return
    values = [
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and variable in map(ast.unparse, _targets(statement))
    ]
    if len(values) == 1 and values[0] is not None and _is_number(values[0]):
        yield Number(kernel, name, values[0].value, constant=variable)


def _assigned(scope: ast.FunctionDef, variable: str) -> list[ast.expr | None]:
    """What a function assigns to a local variable; None for what no value can be read of."""
    arguments = scope.args
    found: list[ast.expr | None] = [
        None
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if argument.arg == variable
    ]
    plain = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = _targets(node)
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                plain.add(id(targets[0]))
                if targets[0].id == variable:
                    found.append(node.value)
    found += [
        None
        for node in ast.walk(scope)
        if isinstance(node, ast.Name)
        and node.id == variable
        and id(node) not in plain
        and not isinstance(node.ctx, ast.Load)
    ]
    return found


def _targets(statement: ast.Assign | ast.AnnAssign) -> Sequence[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_number(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Constant)
        and type(value.value) is int
        and value.value > 0
        and value.lineno == value.end_lineno
    )


def _defaults(kernel: ast.FunctionDef, launch: ast.Call) -> Iterator[Number]:
    """Triton's own settings where the launch names none; stages matter where there is a loop."""
    last = [*launch.args, *(keyword.value for keyword in launch.keywords)]
    if not last or any(keyword.arg is None for keyword in launch.keywords):
        return
    named = {keyword.arg for keyword in launch.keywords}
    loops = any(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel))
    behind = Place.of(max(last, key=lambda value: (value.end_lineno or 0, value.end_col_offset)))
    for name, value in LAUNCH_DEFAULTS.items():
        if name not in named and (name == "num_warps" or loops):
            yield Number(kernel.name, name, value, behind=behind)


def _read_autotune(kernel: str, decorator: ast.expr, source: str) -> Autotuned | None:
    """The configurations, if they are a list of literals and nothing but chosen among."""
    if not isinstance(decorator, ast.Call) or _called_name(decorator) != "autotune":
        return None
    by_name = {keyword.arg: keyword.value for keyword in decorator.keywords}
    listed = decorator.args[0] if decorator.args else by_name.get("configs")
    if not isinstance(listed, ast.List) or not listed.elts or not set(by_name) <= _CHOOSING:
        return None
    settings = [_read_config(entry) for entry in listed.elts]
    read = [entry for entry in settings if entry is not None]
    first = listed.elts[0]
    named = dict.fromkeys(name for entry in read for name in entry)
    completed = [{**LAUNCH_DEFAULTS, **entry} for entry in read]
    if len(read) < len(settings) or not all(set(named) <= set(entry) for entry in completed):
        return None
    found = [{name: entry[name] for name in named} for entry in completed]
    tiles = tuple(name for name in found[0] if name not in LAUNCH_DEFAULTS)
    called = ast.get_source_segment(source, first.func) if isinstance(first, ast.Call) else None
    return Autotuned(kernel, Place.of(listed), called or "triton.Config", tiles, tuple(found))


def _read_config(entry: ast.expr) -> dict[str, int] | None:
    """Names and numbers of `triton.Config({...}, num_warps=...)`; None for anything more."""
    if not isinstance(entry, ast.Call) or _called_name(entry) != "Config" or len(entry.args) != 1:
        return None
    tiles = entry.args[0]
    pairs: list[tuple[object, ast.expr]] = []
    if isinstance(tiles, ast.Dict):
        pairs = [
            (key.value if isinstance(key, ast.Constant) else None, value)
            for key, value in zip(tiles.keys, tiles.values, strict=True)
        ]
    pairs += [(keyword.arg, keyword.value) for keyword in entry.keywords]
    if not all(isinstance(key, str) and _is_number(value) for key, value in pairs):
        return None
    if not {keyword.arg for keyword in entry.keywords} <= set(LAUNCH_DEFAULTS):
        return None
    return {str(key): value.value for key, value in pairs}
