"""Every shipped problem keeps the contract, traces, and has a small workload and a bound."""

from pathlib import Path

import pytest

from kmem.devices import TARGETS
from kmem.problem.costs.bound import graph_bound, node_cost_ms
from kmem.problem.sizing.search import MAX_SMALL_ELEMENTS
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Contract

DIRECTORY = Path(__file__).parents[1] / "problems"
NAMES = sorted(place.parent.name for place in DIRECTORY.glob("*/problem.py"))
SHOW_PIECES = {"matvec", "rms_norm", "max_pool3d", "conv_transpose3d", "depthwise_conv2d"}


def test_the_show_pieces_and_at_least_forty_problems_ship() -> None:
    assert set(NAMES) >= SHOW_PIECES and len(NAMES) >= 40


@pytest.mark.slow(after=15)
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_problem_is_complete(name: str) -> None:
    problem = load_problem(DIRECTORY / name)
    module = execute_problem(problem)
    assert problem.name == name and module.__doc__.endswith(".")
    graph = trace_problem(module)
    assert graph.opaque_reason is None
    for device in TARGETS.values():
        bound = graph_bound(graph, device, Contract())
        costs = [node_cost_ms(graph, node, device, Contract()) for node in graph.nodes]
        assert 0 < bound.time_ms < sum(costs)
    at_small_sizes = execute_problem(problem, derive_small_workload(problem))
    small = trace_problem(at_small_sizes, both_modes=False)
    assert [node.target for node in small.nodes] == [node.target for node in graph.nodes]
    elements = sum(
        placeholder.spec.numel
        for placeholder in small.placeholders
        if placeholder.kind == "input" and placeholder.spec
    )
    elements += sum(small.spec(output).numel for output in small.outputs)
    assert elements <= MAX_SMALL_ELEMENTS
