"""How much of a device's memory lies between a graph's inputs and its outputs."""

import pytest

from kmem.problem.costs.footprint import least_bytes, most_inner_bytes
from kmem.testing import trace_source

#: Bytes of one value of the tests.
_VALUE = 16 * 32 * 4


def inner_values(*statements: str) -> float:
    """Most values at once between input and output, each as large as the input."""
    forward = "\n        ".join(statements)
    graph = trace_source(f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(16, 32)]
""")[1]
    assert graph.opaque_reason is None
    return most_inner_bytes(graph) / _VALUE


@pytest.mark.parametrize(
    ("statements", "values"),
    [
        (("return torch.exp(x)",), 0),
        (("return torch.sin(torch.exp(x))",), 1),
        # each lives until the next is there
        (("return torch.cos(torch.sin(torch.exp(x)))",), 2),
        (("y = torch.exp(x)", "return torch.tanh(torch.cos(torch.sin(y)) + y)"), 3),
        # a view keeps what it is of, and takes nothing
        (("y = torch.exp(x).t()", "z = torch.sin(x)", "return y @ torch.cos(z)"), 3),
        # what is changed in place is one value
        (("y = torch.exp(x)", "y = y.add_(1).mul_(2)", "return torch.sin(y)"), 1),
        # an output is counted elsewhere
        (("y = torch.exp(x)", "return y, torch.sin(y)"), 0),
        # both halves are parts of one value
        (("a, b = torch.exp(x).split(16, 1)", "return torch.sin(a) + torch.cos(b)"), 2),
    ],
)
def test_values_count_while_somebody_will_read_them(
    statements: tuple[str, ...], values: float
) -> None:
    assert inner_values(*statements) == values


def test_a_scores_matrix_is_there_though_inputs_and_outputs_are_small() -> None:
    graph = trace_source("""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.t(), -1) @ x

def get_inputs():
    return [torch.rand(512, 4)]
""")[1]
    assert most_inner_bytes(graph) == 2 * 512 * 512 * 4
    assert least_bytes(graph) == 2 * 512 * 4 * 4
