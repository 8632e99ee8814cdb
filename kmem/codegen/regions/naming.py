"""Names of a region's values that do not count the graph's nodes.

A network repeats its blocks. With the graph's numbers in the names each would be a kernel of its
own, written and compiled: ResNet101's module had 228 Triton functions so, and has 58.
"""

import re
from collections.abc import Collection
from dataclasses import replace

from kmem.codegen.regions.region import Load, Map, Reduce, Region, Store
from kmem.problem.operators.expressions import variable

#: How graphs count equal names: conv2d_12, relu__3.
_COUNT = re.compile(r"_+\d+(?=_|$)")
_VALUE = re.compile(rf"\b{variable('')}\w+")


def without_counts(region: Region, nodes: Collection[str]) -> Region:
    """The region with values named after operators: v_conv2d_53_mean becomes v_conv2d_mean.

    Of several that would be called the same, those behind the first are numbered in order.

    Args:
        nodes: the graph's, that the region is of.
    """
    known = {*nodes, *(operand.name for operand in (*region.inputs, *region.outputs))}
    longest_first = sorted(known, key=len, reverse=True)
    names: dict[str, str] = {}
    regions = region, *region.beside
    for statement in (item for each in regions for item in each.statements):
        for name in statement.names if isinstance(statement, Reduce) else (statement.name,):
            names[name] = _unlike(_short(name, longest_first), {*names.values()})

    def renamed(text: str) -> str:
        return _VALUE.sub(lambda found: names.get(found[0], found[0]), text)

    def rename(statement: Load | Map | Reduce) -> Load | Map | Reduce:
        if isinstance(statement, Load):
            return replace(statement, name=names[statement.name])
        if isinstance(statement, Reduce):
            own = tuple(names[name] for name in statement.names)
            beside = names.get(statement.beside, "")
            return replace(statement, names=own, read=names[statement.read], beside=beside)
        return replace(
            statement,
            name=names[statement.name],
            text=renamed(statement.text),
            reads=tuple(names[name] for name in statement.reads),
            share_of=names.get(statement.share_of, statement.share_of),
        )

    def rename_stored(store: Store) -> Store:
        return replace(store, value=names[store.value])

    def rename_region(each: Region) -> Region:
        total = each.total
        if total is not None:
            total = replace(total, values=tuple(names[name] for name in total.values))
        return replace(
            each,
            statements=tuple(map(rename, each.statements)),
            stores=tuple(map(rename_stored, each.stores)),
            total=total,
            beside=tuple(map(rename_region, each.beside)),
        )

    return rename_region(region)


def _short(name: str, nodes: Collection[str]) -> str:
    """A value's name with the count of the node that it is named after left out."""
    for node in nodes:
        mine = variable(node)
        rest = name.removeprefix(mine)
        if name.startswith(mine) and (not rest or rest.startswith("_")):
            return variable(_COUNT.sub("", node) or node) + rest
    return name


def _unlike(name: str, taken: Collection[str]) -> str:
    other, number = name, 2
    while other in taken:
        other, number = f"{name}_{number}", number + 1
    return other
