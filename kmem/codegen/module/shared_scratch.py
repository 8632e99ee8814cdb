"""One allocation of scratch for a whole forward, whose sites run one after the other.

A launcher's scratch is of use until it returns, so the next one may have the same memory.
"""

import ast
from collections.abc import Collection, Sequence
from dataclasses import replace

from kmem.codegen.module.constants import Constants
from kmem.codegen.module.entries import Launcher
from kmem.host.syntax import parse_python

_SCRATCH = "scratch"  # as launchers.py calls it


def share_scratch(
    launchers: Sequence[Launcher], kept: Collection[int], constants: Constants
) -> tuple[list[Launcher], str]:
    """The launchers, given scratch where several would allocate it, and the name of its size.

    The name is "" where they stay as they are.

    Args:
        kept: places of launchers that do not run at every call: they allocate their own.
    """
    sizes = {
        place: size
        for place, launcher in enumerate(launchers)
        if place not in kept and (size := _scratch_size(launcher)) is not None
    }
    if len(sizes) < 2:
        return list(launchers), ""
    by_workload = zip(*(constants.values[size] for size in sizes.values()), strict=True)
    largest = [str(max(map(int, each))) for each in by_workload]
    return [
        _given_scratch(launcher) if place in sizes else launcher
        for place, launcher in enumerate(launchers)
    ], constants.add("SCRATCH_BYTES", largest)


def _launching(tree: ast.Module, launcher: Launcher) -> ast.FunctionDef:
    return next(
        item
        for item in tree.body
        if isinstance(item, ast.FunctionDef) and item.name == launcher.name
    )


def _is_scratch(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _SCRATCH


def _scratch_size(launcher: Launcher) -> str | None:
    """The constant by which a launcher allocates scratch; None if it does not."""
    function = _launching(parse_python(launcher.text), launcher)
    if function.args.defaults:
        return None
    for statement in filter(_is_scratch, function.body):
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        return ast.unparse(statement.value.args[0])
    return None


def _given_scratch(launcher: Launcher) -> Launcher:
    """The launcher with scratch as its last parameter."""
    tree = parse_python(launcher.text)
    function = _launching(tree, launcher)
    function.body = [statement for statement in function.body if not _is_scratch(statement)]
    function.args.args.append(ast.arg(_SCRATCH))
    text = "\n\n".join(ast.unparse(item) + "\n" for item in tree.body)
    return replace(launcher, text=text, takes_scratch=True)
