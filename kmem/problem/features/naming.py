"""What a traced forward does, in words of the vocabulary.

Skills are gated and remembered kernels are recalled by these words, whether or not a recipe can
write anything of the graph.
"""

from collections.abc import Collection, Iterable

from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.graph import OpGraph
from kmem.problem.operators.table import find_operator
from kmem.records import Contract, Device


def name_operators(
    graph: OpGraph,
    parts: Iterable[tuple[str, Collection[str]]],
    device: Device,
    contract: Contract,
) -> tuple[str, ...]:
    """The operators of a graph, each once, what eager takes longest for first.

    A name counts as much as the costliest node or part that bears it. Views, which cost nothing,
    and operators that kmem does not know have no name.

    Args:
        parts: (name, nodes) of what recipes name as a whole, often more finely than its nodes are
            named: depthwise_conv, matvec, an rms_norm spelled out. Of equal costs a part comes
            first.
    Returns: ("opaque",) for a graph that could not be traced.
    """
    if graph.opaque_reason is not None:
        return ("opaque",)
    costs = node_costs_ms(graph, device, contract)
    weights: dict[str, float] = {}
    for name, nodes in parts:
        weights[name] = max(weights.get(name, 0.0), sum(costs[node] for node in nodes))
    for node in graph.nodes:
        operator = find_operator(node.target)
        if operator is not None and costs[node.name] > 0:
            weights[operator.name] = max(weights.get(operator.name, 0.0), costs[node.name])
    return tuple(sorted(weights, key=lambda name: -weights[name]))
