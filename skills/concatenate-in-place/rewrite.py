"""Parts of concatenations get the strides of the whole, so that they are written where they go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.algebra.editing import with_strides
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.homes import Concatenation, Home, possible_homes, read_concatenation
from kmem.problem.operators.table import find_operator
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting


class ConcatenateInPlace(Rewrite):
    """cat([a, b, c]) = cat([cat([a, b]), c]), and a part lies in its slice of the result."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All concatenations of a graph at once: growing ones share one allocation."""
        placed = _lay_parts(_share_fronts(graph))
        if placed.hash == graph.hash:
            return []
        homes = possible_homes(placed)
        first = next(
            node for node in placed.nodes if any(home.cat == node.name for home in homes.values())
        )
        reason = (
            f"{len(homes)} values are written where {len({each.cat for each in homes.values()})} "
            "concatenations have them, instead of being copied there"
        )
        name = find_operator(first.target).name
        return [Rewriting(first.name, name, placed, reason, flags=())]


def _share_fronts(graph: OpGraph) -> OpGraph:
    """Concatenations that begin with all parts of an earlier one begin with that one instead."""
    before: list[Concatenation] = []
    fronts: dict[str, Concatenation] = {}
    for node in graph.nodes:
        cat = read_concatenation(graph, node)
        if cat is None:
            continue
        found = [each for each in before if _is_front(each, cat)]
        if found:
            fronts[cat.name] = max(found, key=lambda each: len(each.parts))
        before.append(cat)
    homes = possible_homes(_beginning_with(graph, fronts))
    # one that could not lie there would be copied as a whole
    kept = {name: front for name, front in fronts.items() if _lies_in(homes, front.name, name)}
    return _beginning_with(graph, kept)


def _lies_in(homes: Mapping[str, Home], part: str, whole: str) -> bool:
    return part in homes and homes[part].cat == whole


def _is_front(front: Concatenation, cat: Concatenation) -> bool:
    count = len(front.parts)
    return front.dim == cat.dim and count < len(cat.parts) and front.parts == cat.parts[:count]


def _beginning_with(graph: OpGraph, fronts: Mapping[str, Concatenation]) -> OpGraph:
    """The graph in which these concatenations begin with others."""
    if not fronts:
        return graph
    nodes = tuple(
        _begin(node, fronts[node.name]) if node.name in fronts else node for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _begin(node: Node, front: Concatenation) -> Node:
    tensors = (Ref(front.name), *node.args[0][len(front.parts) :])
    return replace(node, args=(tensors, *node.args[1:]))


def _lay_parts(graph: OpGraph) -> OpGraph:
    """Every value that may lie in a concatenation with the strides that it has there."""
    strides: dict[str, tuple[int, ...]] = {}
    for name, home in possible_homes(graph).items():
        strides[name] = strides.get(home.cat, graph.spec(home.cat).stride)
    return with_strides(graph, strides)


REWRITE = ConcatenateInPlace()
