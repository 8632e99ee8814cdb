"""Which rewritten graphs of a problem are worth writing kernels for.

Rewrites are applied one after another, each time the one that takes most off what is predicted.
Each rewrite that begins or carries such a chain is a direction of its own; the judge decides
between the rewritten graphs and the one as traced.
"""

from collections.abc import Mapping, Sequence

from kmem.codegen.regions.matching import find_part_regions
from kmem.problem.costs.bound import node_cost_ms
from kmem.problem.graph import Node, OpGraph
from kmem.problem.homes import find_homes
from kmem.problem.operators.row import Pointwise
from kmem.problem.operators.table import lowering_of
from kmem.problem.traced import TracedProblem
from kmem.rewrites import Rewrites, Rewritten

#: Steps of one chain.
_MOST_STEPS = 12
#: A chain must take off at least this share of a launch; a step may add such a share of the time.
_LEAST_GAIN, _MOST_LOSS = 0.01, 0.1


def predicted_ms(traced: TracedProblem) -> float:
    """What a problem's graph is predicted to take with a kernel for each node.

    A pointwise node that only pointwise ones read costs nothing, and what recipes write around a
    concatenation is one kernel. Of each graph it is worked out once: the same forms are met on the
    way of each rewrite by itself, and of all together.
    """
    device, contract = traced.device, traced.contract
    # the device is held, so that its id stays its own
    found = traced.graph.found_by(predicted_ms)
    key = id(device), contract
    if key not in found:
        found[key] = device, _predict_ms(traced)
    return found[key][1]


def _predict_ms(traced: TracedProblem) -> float:
    graph, device = traced.graph, traced.device
    homes = find_homes(graph)
    regions = find_part_regions(graph)
    written = {name for region in regions for name in region.nodes}
    moved_s = sum(region.region.bytes for region in regions) / device.dram_bytes_per_s
    return (
        1e3 * moved_s
        + len(regions) * device.launch_ms
        + sum(
            node_cost_ms(graph, node, device, traced.contract, homes)
            for node in graph.nodes
            if node.name not in written and not _is_inner(graph, node)
        )
    )


def _is_inner(graph: OpGraph, node: Node) -> bool:
    """Whether a node is pointwise, and only pointwise ones read it."""
    users = graph.users(node.name)
    is_read = bool(users) and node.name not in graph.outputs
    return (
        is_read and _is_pointwise(graph, node) and all(_is_pointwise(graph, user) for user in users)
    )


def _is_pointwise(graph: OpGraph, node: Node) -> bool:
    return not node.is_in_place and isinstance(lowering_of(graph, node), Pointwise)


def find_rewritten(
    traced: TracedProblem, rewrites: Rewrites, names: Sequence[str] | None = None
) -> dict[str, Rewritten]:
    """Rewritten forms of a problem, by the rewrite that is their direction, best first.

    The first is the best chain of all rewrites, named after the one that takes most off. Others
    are what a rewrite reaches by itself, where it takes something off and reaches another graph.

    Args:
        names: of the rewrites that may act; None for all that are loaded.

    Raises RecipeError: if the code of a rewrite raises anything.
    """
    names = sorted(rewrites.loaded if names is None else names)
    if traced.graph.opaque_reason is not None or not names:
        return {}
    whole = Rewritten(traced, (), (), ())
    chain, gains = _descend(whole, rewrites, names)
    if not chain.steps:
        return {}
    found = {max(gains, key=gains.__getitem__): chain}
    for name in [name for name in names if name not in found]:
        alone, _ = _descend(whole, rewrites, [name])
        known = [each.traced.graph.hash for each in found.values()]
        if alone.steps and alone.traced.graph.hash not in known:
            found[name] = alone
    best, *others = found
    others.sort(key=lambda name: predicted_ms(found[name].traced))
    return {name: found[name] for name in (best, *others)}


def _descend(
    rewritten: Rewritten, rewrites: Rewrites, names: Sequence[str]
) -> tuple[Rewritten, Mapping[str, float]]:
    """The cheapest form on the steepest chain of these rewrites, and what each took off in ms.

    A step may cost a little, for only the next ones may show what it is good for.
    """
    device = rewritten.traced.device
    gains: dict[str, float] = {}
    cost_ms = least_ms = predicted_ms(rewritten.traced)
    best = rewritten
    for _ in range(_MOST_STEPS):
        further = rewrites.next_steps(rewritten, names)
        costs = [predicted_ms(each.traced) for each in further]
        if not costs or min(costs) > (1 + _MOST_LOSS) * cost_ms:
            break
        rewritten = further[costs.index(min(costs))]
        name = rewritten.steps[-1].recipe
        gains[name] = gains.get(name, 0.0) + cost_ms - min(costs)
        cost_ms = min(costs)
        if cost_ms < least_ms - _LEAST_GAIN * device.launch_ms:
            best, least_ms = rewritten, cost_ms
    kept = {step.recipe for step in best.steps}
    return best, {name: gain for name, gain in gains.items() if name in kept}
