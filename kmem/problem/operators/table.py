"""The table: every operator that kmem knows, by its aten target.

Built-in rows lie in this package, one module a family. Plugins add rows through the hook
`register_operators`; kmem.plugins gathers these and hands them to `install_operators`. A recipe, a
bound or a prompt asks `find_operator`, and so knows a plugin's operator as it knows torch's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain

from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators import (
    convolutions,
    element_losses,
    layout,
    losses,
    norms,
    pointwise,
    pooling,
    products,
    reductions,
    scans,
)
from kmem.problem.operators.row import Lowering, Operator

#: What kmem knows by itself, families in the order in which a row may stand for other overloads.
BUILT_IN: tuple[Operator, ...] = (
    *reductions.ROWS,
    *norms.ROWS,
    *element_losses.ROWS,
    *losses.ROWS,
    *products.ROWS,
    *convolutions.ROWS,
    *pooling.ROWS,
    *scans.ROWS,
    *layout.ROWS,
    *pointwise.ROWS,
)


def _index(rows: Iterable[Operator]) -> dict[str, Operator]:
    """Rows by target, and the first row of each operator for its other overloads.

    Raises ValueError: if two rows have one target.
    """
    found: dict[str, Operator] = {}
    for row in rows:
        if row.target in found:
            raise ValueError(f"Two rows describe {row.target}; remove one")
        found[row.target] = row
    for row in list(found.values()):
        # other overloads take other arguments: what they mean is known, how they are written is not
        found.setdefault(_packet(row.target), replace(row, lowering=None))
    return found


def _packet(target: str) -> str:
    """ "aten.add" for "aten.add.Tensor" and for the in-place "aten.add_.Tensor"."""
    return ".".join(target.split(".")[:2]).rstrip("_")


_table: Mapping[str, Operator] = _index(BUILT_IN)


def install_operators(rows: Iterable[Operator]) -> None:
    """Make the table hold the built-in rows and these, and no others.

    Raises ValueError: if two rows have one target.
    """
    global _table
    _table = _index(chain(BUILT_IN, rows))
    find_operator.cache_clear()


@cache
def find_operator(target: str) -> Operator | None:
    """The row of a target; None if kmem does not know the operator.

    That is the target's own row, else the one that stands for all overloads.
    """
    return _table.get(target) or _table.get(_packet(target))


def may_be_view(target: str) -> bool:
    """Whether a result may lie in the memory of what it is made from: a view, or a part of it."""
    operator = find_operator(target)
    return target == "getitem" or (operator is not None and operator.is_view)


def lowering_of(graph: OpGraph, node: Node) -> Lowering | None:
    """How recipes can write a node; None if they cannot, or if kmem does not know its operator."""
    operator = find_operator(node.target)
    return None if operator is None else operator.lowering_of(operator.call(graph, node))
