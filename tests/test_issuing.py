"""What a launch costs in a forward: the stream's share, or the host's where the host is late."""

import pytest

from kmem.devices import TARGETS
from kmem.problem.costs.bound import node_cost_ms, node_costs_ms
from kmem.problem.costs.issuing import priced_device
from kmem.problem.graph import OpGraph
from kmem.records import Contract
from kmem.testing import trace_source

H200 = TARGETS["h200"]
MATCH = Contract()


def chain(operators: int, elements: int) -> OpGraph:
    """Additions one after the other."""
    return trace_source(f"""
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range({operators}):
            x = x + 1.0
        return x


def get_inputs():
    return [torch.empty({elements})]
""")[1]


def test_of_a_few_operators_or_large_ones_a_launch_costs_what_the_stream_takes() -> None:
    for graph in (chain(8, 1024), chain(60, 1 << 29)):
        priced = priced_device(graph, H200, MATCH)
        assert node_costs_ms(graph, priced, MATCH) == node_costs_ms(graph, H200, MATCH)
        assert priced.launch_ms == H200.launch_ms


def test_of_many_small_operators_it_costs_what_the_host_takes() -> None:
    graph = chain(60, 1024)
    device = priced_device(graph, H200, MATCH)
    assert device.call_ms > device.launch_ms > 4 * H200.launch_ms
    assert node_cost_ms(graph, graph.nodes[0], device, MATCH) == pytest.approx(
        device.call_ms, rel=0.01
    )
    assert priced_device(chain(600, 1024), H200, MATCH) == device


def test_in_between_it_costs_a_share() -> None:
    whole = priced_device(chain(60, 1024), H200, MATCH).launch_ms
    graph = chain(60, 1 << 24)
    busy_ms = sum(node_costs_ms(graph, H200, MATCH).values()) - 60 * H200.launch_ms
    assert busy_ms > 1.0  # longer than the host takes
    assert H200.launch_ms < priced_device(graph, H200, MATCH).launch_ms < whole
