"""Loops over time in a graph: steps of the same operators on the same weights, one after another.

torch.export writes every step of a Python loop out. What makes it a recurrence is that a step reads
what the one before it made, and multiplies by weights that all steps share. Such a loop is one
piece, for apart its steps can be no faster than their launches.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kmem.problem.graph import Arg, Node, OpGraph, Ref

#: Fewer steps are written out by hand, or are layers.
_LEAST_STEPS = 8
#: Operators of a step, at most; a block of a network that is applied again and again has more.
_MOST_OPERATORS = 24
#: What gathers the steps' results comes at most so many nodes after the last.
_MOST_BEHIND = 4


@dataclass(frozen=True, slots=True)
class Loop:
    """The nodes of a loop from `start` to before `end`, with what gathers its results."""

    start: int
    end: int


def find_loops(graph: OpGraph) -> list[Loop]:
    """The loops of a graph in order; none overlaps another."""
    signs = [_sign(graph, node) for node in graph.nodes]
    found: list[Loop] = []
    start = 0
    while start < len(signs):
        end = _loop_end(graph, signs, start)
        if end is None:
            start += 1
        else:
            found.append(Loop(start, end))
            start = end
    return found


def _loop_end(graph: OpGraph, signs: Sequence[Hashable], start: int) -> int | None:
    """The end of the loop of the shortest step that begins at a place; None if none does."""
    for period in range(1, _MOST_OPERATORS + 1):
        length = _repeats(signs, start, period)
        steps = length // period
        nodes = graph.nodes[start : start + steps * period]
        if steps >= _LEAST_STEPS and _shares_weights(graph, nodes) and _goes_on(nodes, period):
            return _with_gathering(graph, start, start + length)
    return None


def _sign(graph: OpGraph, node: Node) -> Hashable:
    """What the same operator of another step has in common: all but values and places."""

    def told(arg: Arg) -> Hashable:
        if isinstance(arg, tuple):
            return tuple(map(told, arg))
        if isinstance(arg, Ref):
            held = graph.placeholder(arg.name)
            return arg.name if held is not None and held.kind != "input" else "a value"
        return "a number" if type(arg) is int else arg

    return node.target, node.module, tuple(map(told, node.args)), tuple(map(told, node.kwargs))


def _repeats(signs: Sequence[Hashable], start: int, period: int) -> int:
    """How many signs from a place on are those of a period, again and again."""
    end = start + period
    while end < len(signs) and signs[end] == signs[end - period]:
        end += 1
    return end - start


def _shares_weights(graph: OpGraph, nodes: Sequence[Node]) -> bool:
    return any(
        graph.placeholder(name) is not None and graph.placeholder(name).kind == "parameter"
        for node in nodes
        for name in node.refs()
    )


def _goes_on(nodes: Sequence[Node], period: int) -> bool:
    """Whether something of the first step reaches the last through every step between."""
    carried = {node.name for node in nodes[:period]}
    for start in range(period, len(nodes), period):
        reached: set[str] = set()
        for node in nodes[start : start + period]:
            if not (carried | reached).isdisjoint(node.refs()):
                reached.add(node.name)
        carried = reached
    return bool(carried)


def _with_gathering(graph: OpGraph, start: int, end: int) -> int:
    """The end of a loop with the rest of its last step, and what stacks the results of all."""
    made = {node.name for node in graph.nodes[start:end]}
    for place in range(end, min(len(graph.nodes), end + _MOST_BEHIND)):
        node = graph.nodes[place]
        if len(made & set(node.refs())) >= _LEAST_STEPS:
            return place + 1
    return end
