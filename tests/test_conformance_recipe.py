"""The suite of `Recipe`: each way to break the contract is named. Tests of recipes use it."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kmem.codegen.rows.recipe import PointwiseRecipe
from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.recipes import ACCURACY, Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device
from kmem.testing import check_recipe, trace_source

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


class Climbs(PointwiseRecipe):
    """Has a ladder of three rungs; the highest is legal with 8 warps only."""

    rungs: tuple[int, ...] = (0, 1, 2)

    def space(self, site: Site, device: Device) -> Space:
        knobs = {"BLOCK": (256, 512), "num_warps": (4, 8), "HINT": ("stream",)}
        return Space({**knobs, ACCURACY: self.rungs}, self._is_legal)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return settings["num_warps"] / settings["BLOCK"] + settings.get(ACCURACY, 0)

    def _is_legal(self, settings: Settings) -> bool:
        return settings[ACCURACY] < 2 or settings["num_warps"] == 8


class SkipsARung(Climbs):
    rungs = (0, 2)


class GetsCheaper(Climbs):
    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return 9.0 - settings[ACCURACY]


class StandsStill(Climbs):
    def more_accurate(self, site: Site, settings: Settings, device: Device) -> dict:
        return dict(settings)


class GivesUpEarly(Climbs):
    def more_accurate(self, site: Site, settings: Settings, device: Device) -> None:
        return None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (SkipsARung, "are 0, 1, 2"),
        (GetsCheaper, "costs more than the one below"),
        (StandsStill, "rises from"),
        (GivesUpEarly, "below rung 2"),
    ],
)
def test_a_broken_ladder_is_named(make: Callable[[], Recipe], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_recipe(make(), SOURCE, H200, settings=SETTINGS)


def test_a_ladder_is_climbed_with_one_other_change_where_it_needs_one() -> None:
    recipe = Climbs()
    (site,) = recipe.match(trace_source(SOURCE)[1], Contract())
    check_recipe(recipe, SOURCE, H200)
    remembered = {"BLOCK": 256, "num_warps": 4, "HINT": "stream"}  # written without a ladder
    first = recipe.more_accurate(site, remembered, H200)
    assert first == {**remembered, ACCURACY: 1}
    second = recipe.more_accurate(site, first, H200)
    assert second == {**remembered, "num_warps": 8, ACCURACY: 2}
    assert recipe.more_accurate(site, second, H200) is None
    assert PointwiseRecipe().more_accurate(site, SETTINGS[0], H200) is None


def test_whoever_searches_a_space_stays_on_a_rung() -> None:
    recipe = Climbs()
    (site,) = recipe.match(trace_source(SOURCE)[1], Contract())
    space = recipe.space(site, H200)
    assert {setting[ACCURACY] for setting in space.settings()} == {0}
    assert len(space.settings(2)) == 2
    above = space.on_rung(space.settings()[0], 1)
    assert {near[ACCURACY] for near in space.neighbours(above)} == {1}
