"""The suite of `Recipe`: each way to break the contract is named. Tests of recipes use it."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kmem.codegen.row_recipe import PointwiseRecipe
from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.recipes import Emission, Recipe, Settings, Site
from kmem.records import Contract, Device
from kmem.testing import check_recipe

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0

def get_inputs():
    return [torch.randn(3, 5)]
"""
SETTINGS = [{"BLOCK": 512, "num_warps": 4, "HINT": "stream"}]
H200 = named_target("h200")


class FindsItTwice(PointwiseRecipe):
    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [*super().match(graph, contract)] * 2


class HidesItsOutput(PointwiseRecipe):
    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [replace(site, outputs=()) for site in super().match(graph, contract)]


class NamesNoOperator(PointwiseRecipe):
    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [replace(site, operator="magic") for site in super().match(graph, contract)]


class CostsNothingKnown(PointwiseRecipe):
    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return float("nan")


class NeverWritesTheSame(PointwiseRecipe):
    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def emit(self, site: Site, settings: Settings) -> Emission:
        self.written += 1
        emission = super().emit(site, settings)
        return replace(emission, launcher=f"{emission.launcher}\n# {self.written}\n")


class Replaced(PointwiseRecipe):
    """Writes a launcher without a kernel."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self._body = body

    def emit(self, site: Site, settings: Settings) -> Emission:
        return Emission((), f"def launch(x):\n    {self._body}\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (FindsItTwice, "2 sites, expected 1"),
        (HidesItsOutput, "are used outside and not among its outputs"),
        (NamesNoOperator, "no operator 'magic'"),
        (CostsNothingKnown, "cost_ms is a time, not nan"),
        (NeverWritesTheSame, "emission is not a pure function"),
        (lambda: Replaced("return torch.relu(x) * 2.01"), "relative error 5.00e-03 above 1e-05"),
        (lambda: Replaced("return torch.empty_like(x)"), "relative error inf"),
        (lambda: Replaced("return (torch.relu(x) * 2.0).double()"), "torch.float64, expected"),
        (lambda: Replaced("return x.relu_().mul_(2.0)"), "an input was changed"),
    ],
)
def test_a_recipe_that_breaks_the_contract_is_told_how(
    make: Callable[[], Recipe], message: str
) -> None:
    assert list(check_recipe(PointwiseRecipe(), SOURCE, H200, settings=SETTINGS).values()) == [0.0]
    with pytest.raises(AssertionError, match=message):
        check_recipe(make(), SOURCE, H200, settings=SETTINGS)


def test_two_sites_of_one_recipe_must_not_share_a_node() -> None:
    with pytest.raises(AssertionError, match="both write relu"):
        check_recipe(FindsItTwice(), SOURCE, H200, settings=SETTINGS, expect_sites=2)


def test_the_suites_load_no_torch_before_the_interpreter_is_chosen() -> None:
    code = "import sys, kmem.testing; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
