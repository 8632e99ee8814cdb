"""The cheapest cut of a graph into pieces: which sites of those offered, and what the library does.

Nodes are passed in the order in which they run; after each, of all ways to have come so far that
take the same nodes ahead, the cheapest is kept. That is exact as long as no more than `_MOST_WAYS`
are kept, and they are few where sites are local, as in chains.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from kmem.problem.graph import OpGraph

#: Ways kept after a node: 20 is what the widest of KernelBench's level 2 needs.
_MOST_WAYS = 256


@dataclass(frozen=True, slots=True)
class Offer:
    """A site as a cut sees it.

    `prize` goes before all: the cut with the highest sum of prizes is taken, whatever it costs.
    """

    nodes: frozenset[str]
    cost_ms: float
    prize: int = 0


@dataclass(frozen=True, slots=True)
class _Way:
    """What was taken up to a node: less is better, by prizes, nodes left over, then time."""

    prize: int
    left: int
    cost_ms: float
    offers: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int, float]:
        return -self.prize, self.left, self.cost_ms


def cheapest_cut(
    graph: OpGraph, offers: Sequence[Offer], library_ms: Mapping[str, float], *, wholly: bool
) -> list[int]:
    """The places of the offers that the cheapest cut takes, in graph order; no two share a node.

    Args:
        library_ms: by node, what the library takes for it.
        wholly: whether to leave the library as few nodes that cost anything as can be, rather than
            to take as little time as can be.
    """
    allowed = list(range(len(offers)))
    while True:
        chosen = _cut(graph, offers, allowed, library_ms, wholly)
        circle = _circle(graph, [offers[place].nodes for place in chosen])
        if not circle:
            return chosen
        # of sites that wait for each other the dearest goes
        allowed.remove(max((chosen[each] for each in circle), key=lambda at: offers[at].cost_ms))


def _cut(
    graph: OpGraph,
    offers: Sequence[Offer],
    allowed: Sequence[int],
    library_ms: Mapping[str, float],
    wholly: bool,
) -> list[int]:
    starting: dict[int, list[tuple[int, int]]] = {}
    for place in allowed:
        places = sorted(graph.place(name) for name in offers[place].nodes)
        mask = sum(1 << at for at in places)
        starting.setdefault(places[0], []).append((place, mask))
    ways: dict[int, _Way] = {0: _Way(0, 0, 0.0, ())}  # by the nodes that are taken, as bits
    for at, node in enumerate(graph.nodes):
        after: dict[int, _Way] = {}
        bit = 1 << at
        for taken, way in ways.items():
            if taken & bit:
                _keep(after, taken ^ bit, way)
                continue
            cost_ms = library_ms[node.name]
            left = way.left + int(wholly and cost_ms > 0)
            _keep(after, taken, _Way(way.prize, left, way.cost_ms + cost_ms, way.offers))
            for place, mask in starting.get(at, ()):
                if not taken & mask:
                    offer = offers[place]
                    further = _Way(
                        way.prize + offer.prize,
                        way.left,
                        way.cost_ms + offer.cost_ms,
                        (*way.offers, place),
                    )
                    _keep(after, (taken | mask) ^ bit, further)
        ways = dict(sorted(after.items(), key=lambda item: item[1].rank)[:_MOST_WAYS])
    return list(ways[0].offers)


def _keep(ways: dict[int, _Way], taken: int, way: _Way) -> None:
    known = ways.get(taken)
    if known is None or way.rank < known.rank:
        ways[taken] = way


def _circle(graph: OpGraph, sites: Sequence[Collection[str]]) -> list[int]:
    """Sites that wait for each other; empty if there are none."""
    owner: dict[str, int | str] = {name: at for at, nodes in enumerate(sites) for name in nodes}
    waits: dict[int | str, set[int | str]] = {}
    for node in graph.nodes:
        step = owner.get(node.name, node.name)
        before = waits.setdefault(step, set())
        before.update(owner.get(name, name) for name in node.refs())
        before.discard(step)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as ex:
        return [step for step in ex.args[1] if isinstance(step, int)]
    return []
