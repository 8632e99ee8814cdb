"""The pieces of a model that is trained: each with its forward and backward as problems.

Equal pieces are one, also where their gradients are needed of different values: what any of them
needs is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kmem.problem.costs.bound import graph_bound
from kmem.problem.operators.table import find_operator
from kmem.problem.tracing.backward import take_apart
from kmem.problem.tracing.calls import Untraceable
from kmem.records import Contract, Device
from kmem.whole.cutting.cut import MOST_IN_STRETCH
from kmem.whole.cutting.pieces import PieceGroup, operator_name
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.joint import Joint
from kmem.whole.graphs.needs import recorded
from kmem.whole.training.joint_tracing import find_joint

#: What the backward of a piece takes beside its forward. A product has two gradients, each a
#: product of its size.
BACKWARD_SHARE = 2.0

#: A submodule, and why it runs as it is written.
_Left = tuple[str, str]


def with_backwards(
    captured: Captured, groups: Sequence[PieceGroup]
) -> tuple[tuple[PieceGroup, ...], tuple[_Left, ...]]:
    """The pieces with their backwards; those that can have none are left out, with the reasons.

    A piece without gradients has none, and stays.
    """
    values = [recorded(each.graph, each.recorded) for each in captured.segments]
    found: list[PieceGroup] = []
    left: list[_Left] = []
    for group in groups:
        try:
            joint = find_joint(group.graph, tuple(_leaves(group, values)))
            if joint is not None and group.is_stretch and _size(joint) > MOST_IN_STRETCH:
                continue  # its pieces are tried
        except Untraceable as ex:
            if not group.is_stretch:
                left.append((group.module, str(ex)))
            continue
        found.append(replace(group, joint=joint))
    return tuple(found), tuple(left)


def _leaves(group: PieceGroup, values: Sequence[frozenset[str]]) -> Iterator[str]:
    """Placeholders of a piece's graph whose gradients are needed somewhere."""
    for number, each in enumerate(group.graph.placeholders):
        named = (
            (place.segment, place.piece.graph.placeholders[number].name) for place in group.places
        )
        if any(name in values[segment] for segment, name in named):
            yield each.name


def _size(joint: Joint) -> int:
    """How many operators of a backward compute."""
    return sum(
        node.target != "getitem" and not (operator is not None and operator.is_view)
        for node in joint.backward.nodes
        for operator in (find_operator(node.target),)
    )


def backward_least_ms(group: PieceGroup, device: Device, contract: Contract) -> float:
    """The least that a call of a backward could take, in milliseconds."""
    bound = graph_bound(take_apart(group.joint.backward), device, contract)
    least_ms = BACKWARD_SHARE * group.least_ms if bound is None else bound.time_ms
    return min(max(least_ms, device.launch_ms), BACKWARD_SHARE * group.eager_ms)


def backward_operators(group: PieceGroup) -> tuple[str, ...]:
    """What a backward computes, in the order in which it does."""
    names = (operator_name(node) for node in group.joint.backward.nodes)
    return tuple(dict.fromkeys(name for name in names if name not in ("getitem", "view", "t")))
