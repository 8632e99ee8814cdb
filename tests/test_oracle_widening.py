"""A forward that casts inside, computed in float64 for the oracle."""

import copy
from pathlib import Path

import torch

from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.forward import in_double, widen
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Problem, Workload


class Casting(torch.nn.Module):
    """Casts by every way that there is: constructor, call, factory, argument, autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Linear(8, 8)
        self.low = torch.nn.Linear(8, 8).to(torch.bfloat16)
        self.steps = torch.nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.low(self.into(x).to(torch.bfloat16)).float()
        y = y + torch.arange(8, dtype=torch.float32) / 3 + torch.tensor([0.1] * 8).half()
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.softmax(self.into(y), -1, dtype=torch.float32)
        return self.steps(y.type(torch.float16).to(x))[0]


class Plain(Casting):
    """The same without a cast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.low(self.into(x))
        y = y + torch.arange(8).double() / 3 + torch.tensor([0.1] * 8, dtype=torch.float64)
        return self.steps(torch.softmax(self.into(y), -1))[0]


def test_the_answer_in_float64_has_no_rounding_of_the_forward() -> None:
    casting, plain = Casting(), Plain()
    plain.load_state_dict(casting.state_dict())
    wide, right = (copy.deepcopy(each)._apply(widen) for each in (casting, plain))
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = right(x.double())
        with in_double(Problem("casting", "casting.py", "")):
            found = wide(x.double())
        assert found.dtype is torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(casting(x).double(), expected, rtol=1e-6)


LSTM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(*shape)) for shape in ((64, 16), (64, 16), (64,), (64,))
        )
    def forward(self, x, h, c):
        return torch.ops.aten.lstm.input(
            x, [h, c], list(self.weights), True, 1, 0.0, False, False, True
        )[0]
def get_inputs():
    return [torch.randn(3, 8, 16), torch.randn(1, 3, 16), torch.randn(1, 3, 16)]
"""


def test_what_has_other_shapes_in_float64_has_no_answer(tmp_path: Path) -> None:
    """The operator itself takes states of another batch, and nobody knows what that means."""
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    problem = Problem("lstm", "lstm.py", LSTM)
    reference = Reference(problem, Workload("full"), Contract(), placement, seed=1)
    values = list(reference.inputs.values)
    assert reference.expect_case("drawn", values, 1) is not None
    values[0] = values[0][:1]
    assert reference.expect_case("one row", values, 1) is None
    assert "other shapes in float64" in reference.refused["one row"]
