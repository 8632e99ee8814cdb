"""Parts of concatenations get the strides of the whole, so that they are written where they go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.homes import Concatenation, possible_homes, read_concatenation
from kmem.problem.operators.table import find_operator
from kmem.records import Contract, TensorSpec
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
    for node in graph.nodes:
        cat = read_concatenation(graph, node)
        if cat is None:
            continue
        fronts = [each for each in before if _is_front(each, cat)]
        if fronts:
            front = max(fronts, key=lambda each: len(each.parts))
            shared = _with_node(graph, _beginning_with(node, front))
            home = possible_homes(shared).get(front.name)
            if home is not None and home.cat == cat.name:
                graph = shared
        before.append(cat)
    return graph


def _is_front(front: Concatenation, cat: Concatenation) -> bool:
    count = len(front.parts)
    return front.dim == cat.dim and count < len(cat.parts) and front.parts == cat.parts[:count]


def _beginning_with(node: Node, front: Concatenation) -> Node:
    tensors = (Ref(front.name), *node.args[0][len(front.parts) :])
    return replace(node, args=(tensors, *node.args[1:]))


def _with_node(graph: OpGraph, node: Node) -> OpGraph:
    nodes = tuple(node if each.name == node.name else each for each in graph.nodes)
    return replace(graph, nodes=nodes)


def _lay_parts(graph: OpGraph) -> OpGraph:
    """Every value that may lie in a concatenation with the strides that it has there."""
    strides: dict[str, tuple[int, ...]] = {}
    for name, home in possible_homes(graph).items():
        strides[name] = strides.get(home.cat, graph.spec(home.cat).stride)
    return replace(graph, nodes=tuple(_laid(node, strides) for node in graph.nodes))


def _laid(node: Node, strides: Mapping[str, tuple[int, ...]]) -> Node:
    if node.name not in strides or not isinstance(node.output, TensorSpec):
        return node
    return replace(node, output=replace(node.output, stride=strides[node.name]))


REWRITE = ConcatenateInPlace()
