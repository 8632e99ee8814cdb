"""The pieces of a captured model, equal ones as one, with what they take and could take."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kmem.problem.costs.bound import graph_bound, node_cost_ms, part_bound
from kmem.problem.graph import Node, OpGraph
from kmem.records import Contract, Device
from kmem.whole.cutting.cut import Piece, cut, stretches
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.joint import Joint

#: What a kernel for a piece reaches of its bound before anything is known. Source: the median of 54
#: winners of runs on KernelBench level 2, one H200, 2026-11-22.
EXPECTED_SPEED_OF_LIGHT = 0.23
#: Where eager reaches as much already, this part of what is left between it and the bound.
_EXPECTED_PART = 0.1
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class Place:
    """One occurrence of a piece: the number of its segment, and the piece there."""

    segment: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class PieceGroup:
    """Equal pieces of a model.

    Times are of one call, in milliseconds: as eager runs it, and the least that it could take.
    `calls` is how often one forward runs it.
    """

    name: str  # also of its files
    module: str  # numbers of repeated blocks as stars; "" is the model itself
    operators: tuple[str, ...]
    places: tuple[Place, ...]
    calls: int
    eager_ms: float
    least_ms: float
    is_stretch: bool = False  # which several pieces make up
    joint: Joint | None = None  # its forward and backward, where it is trained

    @property
    def graph(self) -> OpGraph:
        return self.places[0].piece.graph

    @property
    def forward(self) -> OpGraph:
        """What a kernel of it computes: what it saves for a backward, too."""
        return self.graph if self.joint is None else self.joint.forward

    @property
    def backward_name(self) -> str:
        """The name of its backward, also of that's files."""
        return f"{self.name}_backward"

    @property
    def total_ms(self) -> float:
        """Of all calls of one forward."""
        return self.eager_ms * self.calls

    def expected_ms(self, reached: float = EXPECTED_SPEED_OF_LIGHT) -> float:
        """What a call may take with a kernel that reaches such a share of the bound."""
        little = self.eager_ms - _EXPECTED_PART * (self.eager_ms - self.least_ms)
        return min(little, self.least_ms / reached)

    def saved_ms(self, reached: float = EXPECTED_SPEED_OF_LIGHT) -> float:
        """What that would save of one forward."""
        return (self.eager_ms - self.expected_ms(reached)) * self.calls


@dataclass(frozen=True, slots=True)
class Cost:
    """What a forward takes: each node of each segment, in milliseconds, and all together."""

    nodes: tuple[Mapping[str, float], ...]
    estimated: bool
    wall_ms: float | None = None  # measured around the whole forward
    launches: tuple[tuple[str, float], ...] = ()  # measured: names of kernels with their times

    def total_ms(self, captured: Captured) -> float:
        """The sum over all operators of one forward."""
        return sum(
            sum(found.values()) * segment.calls
            for found, segment in zip(self.nodes, captured.segments, strict=True)
        )


def estimate_cost(captured: Captured, device: Device, contract: Contract) -> Cost:
    """What eager takes for each operator, as a cost model says."""
    return Cost(
        tuple(
            {
                node.name: node_cost_ms(segment.graph, node, device, contract)
                for node in segment.graph.nodes
            }
            for segment in captured.segments
        ),
        estimated=True,
    )


def find_pieces(
    captured: Captured, cost: Cost, device: Device, contract: Contract, *, backward: bool = False
) -> tuple[PieceGroup, ...]:
    """The pieces, those that take most of a forward first.

    Args:
        backward: whether they are to have one.
    """
    return _groups(partial(cut, backward=backward), captured, cost, device, contract)


def find_stretches(
    captured: Captured, cost: Cost, device: Device, contract: Contract, *, backward: bool = False
) -> tuple[PieceGroup, ...]:
    """What several pieces make up that run one after another, as pieces: often the whole forward.

    They overlap with `find_pieces`: `holds` says with which.
    """
    parted = partial(stretches, backward=backward)
    found = _groups(parted, captured, cost, device, contract)
    return tuple(replace(group, is_stretch=True) for group in found)


def holds(stretch: PieceGroup, group: PieceGroup) -> bool:
    """Whether a stretch has a place of a piece in it."""
    taken = {(place.segment, name) for place in stretch.places for name in place.piece.nodes}
    return any(
        (place.segment, name) in taken for place in group.places for name in place.piece.nodes
    )


def _groups(
    parted: Callable[[OpGraph, Mapping[str, float]], tuple[Piece, ...]],
    captured: Captured,
    cost: Cost,
    device: Device,
    contract: Contract,
) -> tuple[PieceGroup, ...]:
    """Equal pieces together, those that take most of a forward first."""
    # cut by estimates, which do not vary: a run that is resumed must find its pieces again
    told = cost if cost.estimated else estimate_cost(captured, device, contract)
    places: dict[str, list[Place]] = {}
    for number, segment in enumerate(captured.segments):
        for piece in parted(segment.graph, told.nodes[number]):
            places.setdefault(piece.graph.hash, []).append(Place(number, piece))
    groups = [_group(captured, cost, found, device, contract) for found in places.values()]
    groups.sort(key=lambda group: -group.total_ms)
    return tuple(replace(group, name=_name(group)) for group in groups)


def _group(
    captured: Captured, cost: Cost, places: Sequence[Place], device: Device, contract: Contract
) -> PieceGroup:
    first = places[0]
    segment = captured.segments[first.segment]
    nodes = [segment.graph.node(name) for name in first.piece.nodes]
    busy = [node for node in nodes if cost.nodes[first.segment][node.name] > 0]
    totals = [
        sum(cost.nodes[place.segment][name] for name in place.piece.nodes) for place in places
    ]
    eager_ms = sum(totals) / len(totals)
    bound = part_bound(segment.graph, nodes, device, contract)
    bound = bound or graph_bound(first.piece.graph, device, contract)
    modules = {_NUMBER.sub("*", place.piece.module) for place in places}
    return PieceGroup(
        "",
        min(modules, key=len),
        tuple(map(operator_name, busy)),
        tuple(places),
        sum(captured.segments[place.segment].calls for place in places),
        eager_ms,
        min(max(bound.time_ms if bound is not None else 0.0, device.launch_ms), eager_ms),
    )


def operator_name(node: Node) -> str:
    """ "linear" for aten.linear.default."""
    words = node.target.split(".")
    return words[1] if len(words) > 1 else words[0]


def _name(group: PieceGroup) -> str:
    """Where a piece is or what it does, and a part of its hash: the same in every process."""
    words = group.module.replace("*", "n") or "_".join(dict.fromkeys(group.operators[:3]))
    slug = re.sub(r"\W+", "_", words).strip("_").lower()
    return f"{slug[:40]}_{group.graph.hash[:6]}"
