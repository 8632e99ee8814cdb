"""Nodes that join a region of rows only together: what several reductions of a row read.

A value that others read as well stays outside, for it must be written anyhow. Where all that
becomes of it are further reductions of the same rows, these join with it: then nothing is written.
So do further reductions of what a region reads from memory and, where a program holds a row,
elements made of it that the forward returns: then nothing is read twice.
"""

from collections.abc import Callable, Iterator
from math import prod

from kmem.codegen.regions.pointwise import write_pointwise
from kmem.codegen.regions.space import RowSpace, space_of
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.expressions import variable
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of
from kmem.records import TensorSpec

#: Nodes that join at once.
_MOST = 32
#: Elements of a row that one program holds in registers whatever else it reads.
_HELD_COLUMNS = 4096


def starts_of_company(graph: OpGraph, space: RowSpace, chosen: set[str]) -> Iterator[str]:
    """Nodes outside a region with which company may begin.

    These are pointwise nodes that make elements of its space, if need be in another shape, and what
    else reads the elements that it reads.
    """
    if not space.dims:
        return
    size = prod(space.shape)
    read = {name for member in chosen for name in graph.node(member).refs()} - chosen
    for name in sorted(read):
        if graph.spec(name).numel != size:
            continue
        node = graph.node(name)
        if node is not None and lowering_of(graph, node) is Layout.RESHAPE:
            node = graph.node(node.refs()[0])
        if node is not None and _is_pointwise(graph, node):
            yield node.name
        for user in graph.users(name):
            if user.name not in chosen:
                yield user.name


def find_company(
    graph: OpGraph,
    first: str,
    space: RowSpace,
    chosen: set[str],
    unit_of: Callable[[Node], set[str]],
) -> set[str] | None:
    """A node and all that becomes of it, up to reductions of the space's rows and results.

    Returns: None if anything else becomes of it.

    Args:
        unit_of: the nodes that must go where a node goes.
    """
    company: set[str] = set()
    waiting = [graph.node(first)]
    while waiting:
        node = waiting.pop()
        if node.name in chosen or node.name in company:
            continue
        members = unit_of(node)
        company |= members
        if len(company) > _MOST:
            return None
        if space_of(graph, node) == space and _leaves_rows(node, space):
            continue
        users = [user for name in members for user in graph.users(name)]
        is_inner = _is_pointwise(graph, node) or lowering_of(graph, node) is Layout.RESHAPE
        is_returned = not users or bool(members & set(graph.outputs))
        if not is_inner or is_returned and not _may_return(node, space):
            return None
        waiting += users
    return company


def _may_return(node: Node, space: RowSpace) -> bool:
    """Whether a row's elements can be results beside its reductions, and the row is read once."""
    return space.columns <= _HELD_COLUMNS and node.spec.shape == space.shape


def _leaves_rows(node: Node, space: RowSpace) -> bool:
    """Whether every result has one value for each row."""
    results = node.output if isinstance(node.output, tuple) else (node.output,)
    return all(isinstance(spec, TensorSpec) and spec.numel == space.rows for spec in results)


def _is_pointwise(graph: OpGraph, node: Node) -> bool:
    return not node.is_in_place and write_pointwise(graph, node, variable) is not None
