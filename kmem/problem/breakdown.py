"""What a forward spends its time on as eager runs it, part by part, and what each part could take.

A part is an operator in a submodule. A model of hundreds of nodes is told in few parts: repeated
blocks are one ("layers.*.mlp"), then whole submodules, until those that are named take nearly all
of the time.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.problem.costs.bound import node_costs_ms, part_bound
from kmem.problem.graph import Node
from kmem.problem.traced import TracedProblem

#: Parts that are told by name; what is left stands together.
MOST_PARTS = 40
#: Names are fine enough where what they leave over takes at most this share.
_LEFT_OVER = 0.05

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_FAMILY_NUMBER = re.compile(r"(?<=[A-Za-z_])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class TimePart:
    """Some nodes of a graph: their operator, where they are, and their times in milliseconds.

    `module` is "" for the module itself, with a star for the number of a repeated block. `calls`
    counts the nodes. `least_ms` is the bound of these nodes as one kernel.
    """

    module: str
    operator: str
    calls: int
    eager_ms: float
    least_ms: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a forward goes, largest part first: estimates for a device.

    `rest` are the nodes that no part tells of. The least time of all together, `bound_ms`, is below
    the sum of the parts: one kernel keeps to itself what the parts hand on.
    """

    device: str
    nodes: int
    parts: tuple[TimePart, ...]
    rest: TimePart | None
    bound_ms: float

    @property
    def eager_ms(self) -> float:
        """The whole."""
        return sum(part.eager_ms for part in (*self.parts, *filter(None, [self.rest])))


def break_down(traced: TracedProblem) -> Breakdown | None:
    """The estimate for a traced problem; None for one that is opaque or computes nothing."""
    graph = traced.graph
    device, contract = traced.device, traced.contract
    costs = node_costs_ms(graph, device, contract)
    busy = [node for node in graph.nodes if costs[node.name] > 0]
    if traced.bound is None or not busy:
        return None

    def tell(name: tuple[str, str], nodes: Sequence[Node]) -> TimePart:
        bound = part_bound(graph, nodes, device, contract)
        eager_ms = sum(costs[node.name] for node in nodes)
        least_ms = min(bound.time_ms if bound is not None else 0.0, eager_ms)
        return TimePart(*name, len(nodes), eager_ms, least_ms)

    ranked = _group(busy, costs.__getitem__)
    parts = [tell(name, nodes) for name, nodes in ranked[:MOST_PARTS]]
    left = [node for _, nodes in ranked[MOST_PARTS:] for node in nodes]
    rest = tell(("", f"{len(ranked) - MOST_PARTS} smaller parts"), left) if left else None
    return Breakdown(device.name, len(busy), tuple(parts), rest, traced.bound.time_ms)


_Named: TypeAlias = "list[tuple[tuple[str, str], list[Node]]]"


def _group(nodes: Sequence[Node], cost: Callable[[str], float]) -> _Named:
    """Nodes by the finest names that are few enough, those that take most first."""
    total = sum(cost(node.name) for node in nodes)
    ranked: _Named = []
    for name_of in _NAMINGS:
        found: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            found.setdefault((name_of(node.module), _operator(node)), []).append(node)
        ranked = sorted(found.items(), key=lambda entry: -sum(cost(node.name) for node in entry[1]))
        left = sum(cost(node.name) for _, group in ranked[MOST_PARTS:] for node in group)
        if left <= _LEFT_OVER * total:
            break
    return ranked


def _operator(node: Node) -> str:
    """ "linear" for aten.linear.default."""
    words = node.target.split(".")
    return words[1] if len(words) > 1 else words[0]


def _numberless(path: str) -> str:
    """ "layers.*.mlp" for layers.3.mlp; "layer*.*.conv1" stays apart from layer*.*.conv2."""
    names = _NUMBER.sub("*", path).split(".")
    return ".".join([_FAMILY_NUMBER.sub("*", names[0]), *names[1:]])


#: Names of a submodule, finest first.
_NAMINGS: tuple[Callable[[str], str], ...] = (
    lambda path: path,
    lambda path: _NUMBER.sub("*", path),
    _numberless,
    lambda path: ".".join(_numberless(path).split(".")[:2]),
    lambda path: _numberless(path).split(".")[0],
    lambda path: "",
)
