"""Tuples that launches and calls pass, taken apart.

A kernel with a port gets the pointers of what it is handed as one tuple, and their steps as another
(ports.py). In a module it takes each of them by itself: a launch passes tensors alone, and a step
is a constant like any other.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from kmem.codegen.jit_text import JitFunction, Parameter

#: What one launch gives each parameter.
Given = Mapping[str, ast.expr]
#: Where in nested tuples an element stands.
Path = tuple[int, ...]


def take_apart(
    function: JitFunction, bound: Sequence[Sequence[Given]]
) -> tuple[JitFunction, list[list[Given]]]:
    """A kernel with a parameter for each element of the tuples that it is given.

    Args:
        bound: for each launch, what is given at each workload.
    Returns: the kernel, and what its launches then give. A parameter whose launches give tuples of
        several shapes, or also something else, stays as it is.
    """
    displays: dict[str, str] = {}
    parameters: list[Parameter] = []
    changed = [[dict(given) for given in group] for group in bound]
    launches = [given for group in changed for given in group]
    taken = {parameter.name for parameter in function.parameters} | function.reads
    for parameter in function.parameters:
        tuples = [given.get(parameter.name) for given in launches]
        trees = [tree for tree in tuples if isinstance(tree, ast.Tuple)]
        if not trees or len(trees) < len(tuples) or len(set(map(_shape, trees))) > 1:
            parameters.append(parameter)
            continue
        names = [_name(path, parameter.name, leaf, taken) for path, leaf in _leaves(trees[0])]
        parameters += [Parameter(name, parameter.is_constexpr, None) for name in names]
        displays[parameter.name] = _display(trees[0], iter(names))
        for given, tree in zip(launches, trees, strict=True):
            del given[parameter.name]
            given.update(zip(names, (leaf for _, leaf in _leaves(tree)), strict=True))
    return function.with_names(displays).with_parameters(parameters), changed


def _shape(node: ast.expr) -> str:
    if not isinstance(node, ast.Tuple):
        return "."
    return f"({''.join(map(_shape, node.elts))})"


def _leaves(
    node: ast.expr, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], ast.expr]]:
    if not isinstance(node, ast.Tuple):
        yield path, node
        return
    for index, item in enumerate(node.elts):
        yield from _leaves(item, (*path, index))


def _name(path: Path, parameter: str, leaf: ast.expr, taken: frozenset[str]) -> str:
    """The launcher's own name of a tensor, or the parameter's with the element's place."""
    if isinstance(leaf, ast.Name) and leaf.id not in taken:
        return leaf.id
    return "_".join([parameter, *map(str, path)])


def _display(node: ast.expr, names: Iterator[str]) -> str:
    if not isinstance(node, ast.Tuple):
        return next(names)
    items = [_display(item, names) for item in node.elts]
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
