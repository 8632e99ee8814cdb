"""What is to be written out: a graph with the sites in it, and the order of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kmem.errors import RecipeError
from kmem.problem.graph import Node, OpGraph
from kmem.recipes import Emission, Site


@dataclass(frozen=True, slots=True)
class SitePlan:
    """One site of one workload's graph with the text that a recipe wrote for it."""

    site: Site
    emission: Emission
    origin: str = ""  # the skill and its knobs, for the comment above the kernels


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What to write out for one workload: its graph, and the sites that replace parts of it."""

    name: str  # "full", "small"
    graph: OpGraph
    sites: tuple[SitePlan, ...]


def schedule(graph: OpGraph, sites: Sequence[SitePlan]) -> list[Node | SitePlan]:
    """Nodes and sites in an order in which everything is made before it is read.

    Of what may come next, what stands first in the graph does; so in-place nodes keep their place
    among nodes.

    Raises RecipeError: if there is no order, which means that a site is not convex.
    """
    owner = {name: place for place, entry in enumerate(sites) for name in entry.site.nodes}
    steps: list[Node | SitePlan] = []
    seen: set[int] = set()
    for node in graph.nodes:
        place = owner.get(node.name)
        if place is None:
            steps.append(node)
        elif place not in seen:
            seen.add(place)
            steps.append(sites[place])
    placeholders = {placeholder.name for placeholder in graph.placeholders}
    missing = [reads(step) - placeholders for step in steps]
    readers: dict[str, list[int]] = {}
    for number, names in enumerate(missing):
        for name in names:
            readers.setdefault(name, []).append(number)
    ready = [number for number, names in enumerate(missing) if not names]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for name in makes(steps[order[-1]]):
            for number in readers.get(name, ()):
                missing[number].discard(name)
                if not missing[number]:
                    heappush(ready, number)
    if len(order) < len(steps):
        waiting = [
            _step_name(steps[number]) for number in sorted(set(range(len(steps))) - {*order})
        ]
        raise RecipeError(f"No order of execution exists: {waiting} wait for each other")
    return [steps[number] for number in order]


def reads(step: Node | SitePlan) -> set[str]:
    """Names of the values that a step reads."""
    if isinstance(step, Node):
        return set(step.refs())
    return {operand.name for operand in step.site.inputs}


def makes(step: Node | SitePlan) -> set[str]:
    """Names of the values that a step makes."""
    if isinstance(step, Node):
        return {step.name}
    return {operand.name for operand in step.site.outputs}


def _step_name(step: Node | SitePlan) -> str:
    return step.name if isinstance(step, Node) else step.site.name
