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
    later = priced_device(chain(600, 1024), H200, MATCH)  # of more the head start is less
    assert device.launch_ms < later.launch_ms < 1.25 * device.launch_ms


def test_in_between_it_costs_a_share() -> None:
    whole = priced_device(chain(60, 1024), H200, MATCH).launch_ms
    graph = chain(60, 1 << 22)
    busy_ms = sum(node_costs_ms(graph, H200, MATCH).values()) - 60 * H200.launch_ms
    assert busy_ms > 0.4  # half of what the host takes
    assert H200.launch_ms < priced_device(graph, H200, MATCH).launch_ms < whole


@pytest.mark.parametrize("elements", [1024, 1 << 20])
def test_one_operator_more_costs_no_more_than_the_host_takes_for_it(elements: int) -> None:
    of_library, of_kernels = [], []
    for operators in range(8, 33):
        graph = chain(operators, elements)
        device = priced_device(graph, H200, MATCH)
        of_library.append(sum(node_costs_ms(graph, device, MATCH).values()))
        of_kernels.append(operators * device.launch_ms)
    on_device_ms = node_cost_ms(graph, graph.nodes[0], H200, MATCH)
    for totals, call_ms in ((of_library, 0.030 + on_device_ms), (of_kernels, 0.017)):
        steps = [two - one for one, two in zip(totals, totals[1:], strict=False)]
        assert min(steps) > 0.0 and max(steps) <= call_ms * (1 + 1e-6)
    assert of_library[-1] > 1.5 * 32 * on_device_ms  # the host is late by then
