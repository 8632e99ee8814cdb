"""Which rewritten graphs of a problem are worth writing kernels for.

Rewrites are applied one after another, each time the one that takes most off what eager is
predicted to take, until none takes anything off. Each rewrite that begins or carries such a chain
is a direction of its own; the judge decides between the rewritten graphs and the one as traced.
"""

from collections.abc import Mapping, Sequence

from kmem.problem.bound import node_cost_ms
from kmem.problem.traced import TracedProblem
from kmem.rewrites import Rewrites, Rewritten

#: Steps of one chain; each must take something off, so that chains end by themselves.
_MOST_STEPS = 12
#: A step must take off at least this share of a launch.
_LEAST_GAIN = 0.01


def predicted_ms(traced: TracedProblem) -> float:
    """What eager is predicted to take for a problem's graph, node by node."""
    return sum(
        node_cost_ms(traced.graph, node, traced.device, traced.contract)
        for node in traced.graph.nodes
    )


def find_rewritten(traced: TracedProblem, rewrites: Rewrites) -> dict[str, Rewritten]:
    """Rewritten forms of a problem, by the rewrite that is their direction, best first.

    The first is the best chain of all rewrites, named after the one that takes most off. Others
    are what a rewrite reaches by itself, where it takes something off and reaches another graph.

    Raises RecipeError: if the code of a rewrite raises anything.
    """
    if traced.graph.opaque_reason is not None or not rewrites.loaded:
        return {}
    whole = Rewritten(traced, (), (), ())
    chain, gains = _descend(whole, rewrites, sorted(rewrites.loaded))
    if not chain.steps:
        return {}
    found = {max(gains, key=gains.__getitem__): chain}
    for name in sorted(rewrites.loaded):
        alone, _ = _descend(whole, rewrites, [name])
        known = [each.traced.graph.hash for each in found.values()]
        if name not in found and alone.steps and alone.traced.graph.hash not in known:
            found[name] = alone
    best, *others = found
    others.sort(key=lambda name: predicted_ms(found[name].traced))
    return {name: found[name] for name in (best, *others)}


def _descend(
    rewritten: Rewritten, rewrites: Rewrites, names: Sequence[str]
) -> tuple[Rewritten, Mapping[str, float]]:
    """The end of the steepest chain of these rewrites, and what each took off in all, in ms."""
    gains: dict[str, float] = {}
    cost_ms = predicted_ms(rewritten.traced)
    least_ms = _LEAST_GAIN * rewritten.traced.device.launch_ms
    for _ in range(_MOST_STEPS):
        further = rewrites.next_steps(rewritten, names)
        costs = [predicted_ms(each.traced) for each in further]
        if not costs or min(costs) > cost_ms - least_ms:
            break
        rewritten = further[costs.index(min(costs))]
        name = rewritten.steps[-1].recipe
        gains[name] = gains.get(name, 0.0) + cost_ms - min(costs)
        cost_ms = min(costs)
    return rewritten, gains
