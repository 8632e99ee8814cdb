"""What a run would make of a problem: traced, matched and bounded, but nothing compiled or run."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.codegen.module.counters import is_counter
from kmem.explore.recipes.cover import matching_sites
from kmem.plugins import Registry
from kmem.problem.costs.footprint import least_bytes
from kmem.problem.features.naming import name_operators
from kmem.problem.graph import OpGraph
from kmem.problem.operators.table import may_be_view
from kmem.records import Bound, Contract, Device, Problem
from kmem.run.setup.tracing import trace_for_run
from kmem.skills import load_library, load_recipes


@dataclass(frozen=True, slots=True)
class Preview:
    """What is known of a problem before a run.

    `sites` are (recipe, site, operator) of all that recipes could write; they overlap. `library`
    are the operators that no recipe writes. `inputs` and `small_inputs` are shapes; the latter are
    empty if the problem has no small sizes, and then nothing can be proved without a GPU.
    """

    problem: str
    device: str
    operators: tuple[str, ...]
    training: bool
    mode_matters: bool
    bound: Bound | None
    least_bytes: int
    inputs: tuple[tuple[int, ...], ...]
    small_inputs: tuple[tuple[int, ...], ...]
    replaced: tuple[tuple[str, int | tuple[int, ...]], ...]
    sites: tuple[tuple[str, str, str], ...]
    library: tuple[str, ...]
    notes: tuple[str, ...]


def preview_problem(
    problem: Problem, contract: Contract, device: Device, registry: Registry
) -> Preview:
    """Trace a problem and match recipes on it.

    Raises ProblemError, DeviceMemoryError: as `trace_for_run` does.
    """
    traced, notes = trace_for_run(problem, contract, device, needs_small=False)
    graph = traced.graph
    recipes, left_out = load_recipes(load_library(registry.skills).values())
    found = [
        (name, site)
        for name, recipe in recipes.items()
        for site in matching_sites(traced.graphs, recipe, contract)
    ]
    covered = {node for _, site in found for node in site.nodes}
    left = {
        node.target
        for node in graph.nodes
        if node.name not in covered and not may_be_view(node.target) and not is_counter(graph, node)
    }
    small = traced.workloads.get("small")
    return Preview(
        problem=problem.name,
        device=device.name,
        operators=name_operators(
            graph, [(site.operator, site.nodes) for _, site in found], device, contract
        ),
        training=graph.training,
        mode_matters=graph.mode_matters,
        bound=traced.bound,
        least_bytes=least_bytes(graph),
        inputs=_shapes(traced.graphs, "full"),
        small_inputs=_shapes(traced.graphs, "small"),
        replaced=small.constants if small is not None else (),
        sites=tuple((name, site.name, site.operator) for name, site in found),
        library=tuple(sorted(left)),
        notes=(*notes, *left_out),
    )


def _shapes(graphs: Mapping[str, OpGraph], name: str) -> tuple[tuple[int, ...], ...]:
    return tuple(
        placeholder.spec.shape
        for placeholder in (graphs[name].placeholders if name in graphs else ())
        if placeholder.kind == "input" and placeholder.spec is not None
    )
