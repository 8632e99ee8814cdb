"""Where the time of a model goes: by operator, by submodule, by launch, and by piece.

The last is the table of Amdahl: what the whole model gains if one piece alone gets as fast as it
could, and if it gets infinitely fast.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kmem.problem.breakdown import Breakdown, TimePart
from kmem.problem.costs.bound import part_bound
from kmem.problem.graph import Node
from kmem.records import Contract, Device
from kmem.whole.cutting.pieces import Cost, PieceGroup, operator_name
from kmem.whole.graphs.capture import Captured

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
#: Levels of submodules that are told by name.
_LEVELS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: times of one forward in milliseconds."""

    name: str
    calls: int
    ms: float
    share: float
    least_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PieceLine:
    """A piece in the table of Amdahl.

    `attainable_ms` is what all its calls could take, `remembered_ms` what memory holds of such a
    piece on this device. `model_gain` is the speed-up of the whole model if this piece alone gets
    to `attainable_ms`, `most_gain` if it takes no time at all.
    """

    name: str
    module: str
    operators: tuple[str, ...]
    calls: int
    ms: float
    share: float
    attainable_ms: float
    remembered_ms: float | None
    model_gain: float
    most_gain: float


@dataclass(frozen=True, slots=True)
class Account:
    """All tables of a model.

    `gaps_ms` is the time between launches, where it was measured; `launch_ms` is what the launches
    themselves cost, where times are estimated.
    """

    model: str
    device: str
    estimated: bool
    total_ms: float
    wall_ms: float | None
    gaps_ms: float | None
    launch_ms: float
    parameters: int
    parameter_bytes: int
    operators: tuple[Line, ...]
    modules: tuple[Line, ...]
    launches: tuple[Line, ...]
    pieces: tuple[PieceLine, ...]
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def account_for(
    captured: Captured,
    cost: Cost,
    groups: Sequence[PieceGroup],
    device: Device,
    contract: Contract,
    known: Mapping[str, float] = MappingProxyType({}),
) -> Account:
    """The tables of a model whose costs are known.

    Args:
        known: by name of a piece, what memory holds for one call of it.
    """
    total = cost.total_ms(captured)
    nodes = [
        (node, cost.nodes[number][node.name], segment.calls)
        for number, segment in enumerate(captured.segments)
        for node in segment.graph.nodes
        if cost.nodes[number][node.name] > 0
    ]
    launches = cost.launches or [(f"{node.name} ({node.target})", ms) for node, ms, _ in nodes]
    busy = sum(ms for _, ms in cost.launches)
    return Account(
        captured.name,
        device.name,
        cost.estimated,
        total,
        cost.wall_ms,
        max(0.0, cost.wall_ms - busy) if cost.wall_ms is not None and cost.launches else None,
        device.launch_ms * sum(calls for _, _, calls in nodes) if cost.estimated else 0.0,
        captured.parameters,
        captured.parameter_bytes,
        _lines(((operator_name(node), ms * n, n) for node, ms, n in nodes), total),
        _lines(((_module(node), ms * n, n) for node, ms, n in nodes), total),
        _lines(((name, ms, 1) for name, ms in launches), total),
        tuple(_piece_line(group, total, known.get(group.name)) for group in groups),
        captured.left,
        captured.notes,
    )


def _module(node: Node) -> str:
    path = _NUMBER.sub("*", node.module)
    return ".".join(path.split(".")[:_LEVELS]) or "(the model itself)"


def _lines(entries: Iterable[tuple[str, float, int]], total: float) -> tuple[Line, ...]:
    found: dict[str, tuple[float, int]] = {}
    for name, ms, calls in entries:
        before_ms, before = found.get(name, (0.0, 0))
        found[name] = before_ms + ms, before + calls
    ranked = sorted(found.items(), key=lambda entry: -entry[1][0])
    return tuple(Line(name, calls, ms, _share(ms, total)) for name, (ms, calls) in ranked)


def _share(ms: float, total: float) -> float:
    return ms / total if total > 0 else 0.0


def _piece_line(group: PieceGroup, total: float, remembered_ms: float | None) -> PieceLine:
    attainable = group.least_ms * group.calls
    return PieceLine(
        group.name,
        group.module,
        group.operators,
        group.calls,
        group.total_ms,
        _share(group.total_ms, total),
        attainable,
        remembered_ms * group.calls if remembered_ms is not None else None,
        _gain(total, group.total_ms - attainable),
        _gain(total, group.total_ms),
    )


def _gain(total: float, saved: float) -> float:
    left = total - saved
    return total / left if left > 0 else float("inf")


def breakdown_of(captured: Captured, cost: Cost, device: Device, contract: Contract) -> Breakdown:
    """Parts by submodule and operator, for the treemap."""
    parts: dict[tuple[str, str], TimePart] = {}
    for number, segment in enumerate(captured.segments):
        groups: dict[tuple[str, str], list[Node]] = {}
        for node in segment.graph.nodes:
            if cost.nodes[number][node.name] > 0:
                groups.setdefault((_module(node), operator_name(node)), []).append(node)
        for name, nodes in groups.items():
            found = [part_bound(segment.graph, [node], device, contract) for node in nodes]
            ms = sum(cost.nodes[number][node.name] for node in nodes) * segment.calls
            least = sum(each.time_ms for each in found if each is not None) * segment.calls
            before = parts.get(name, TimePart(*name, 0, 0.0, 0.0))
            parts[name] = TimePart(
                *name,
                before.calls + len(nodes) * segment.calls,
                before.eager_ms + ms,
                before.least_ms + min(ms, least),
            )
    ranked = sorted(parts.values(), key=lambda part: -part.eager_ms)
    calls = sum(part.calls for part in ranked)
    bound = sum(part.least_ms for part in ranked)
    return Breakdown(device.name, calls, tuple(ranked), None, bound)
