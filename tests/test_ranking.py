"""What repeats in a graph is ranked, written and compiled once."""

from itertools import product
from pathlib import Path

import pytest
import torch

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.constants import Constants, swap_constants
from kmem.codegen.module.entries import ModuleKernels
from kmem.codegen.module.launchers import LauncherWriter
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.errors import RecipeError
from kmem.explore.recipes import ranking
from kmem.explore.recipes.cover import find_options
from kmem.recipes import Emission, Recipe, Rule, Settings, Site, Space, match_sites
from kmem.records import Contract, Device
from kmem.skills import load_recipe, load_skill
from kmem.testing import import_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
H200 = named_target("h200")

BLOCKS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d({channels}) for _ in range(3))
    def forward(self, x):
        for norm in self.norms:
            x = torch.relu(norm(x @ x.transpose(2, 3)))
        return x
def get_inputs():
    return [torch.randn(4, {channels}, 6, 6)]
"""
TWO_MEANS = """
import torch

A, B = {a}, {b}

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.mean(x, 1) @ torch.mean(y, 1)
def get_inputs():
    return [torch.randn(64, A), torch.randn(64, B)]
"""


def recipe(name: str) -> Recipe:
    loaded = load_recipe(load_skill(SKILLS / name))
    assert loaded is not None
    return loaded


class Counting(Recipe):
    """A recipe that counts the sites that it is asked to rank."""

    def __init__(self, inner: Recipe) -> None:
        self.inner, self.name, self.asked = inner, inner.name, []
        self.operators = inner.operators

    def match(self, graph: object, contract: Contract) -> list[Site]:
        return self.inner.match(graph, contract)

    def space(self, site: Site, device: Device) -> Space:
        self.asked.append(site.name)
        return self.inner.space(site, device)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return self.inner.cost_ms(site, settings, device)

    def emit(self, site: Site, settings: Settings) -> object:
        return self.inner.emit(site, settings)


def test_sites_that_differ_in_names_alone_are_ranked_once_and_others_each() -> None:
    counting = Counting(recipe("batch-norm-training-statistics"))
    graphs = {}
    for channels in (8, 16):
        _, graph = trace_source(BLOCKS.format(channels=channels))
        options = find_options({"full": graph}, {counting.name: counting}, Contract(), H200)
        graphs[channels] = [option.ranked for option in options]
    assert len(counting.asked) == 2, "three norms of either width are ranked as one"
    assert graphs[8][0] is graphs[8][2] and graphs[8][0] != graphs[16][0]
    site = counting.match(graph, Contract())[-1]
    alone = ranking.rank_settings(counting, site, counting.space(site, H200).settings(), H200)
    assert alone == graphs[16][2], "what is shared is what the site itself would get"


def test_names_do_not_tell_sites_apart_and_numbers_do() -> None:
    _, graph = trace_source(BLOCKS.format(channels=8))
    chains = recipe("batch-norm-training-statistics").match(graph, Contract())
    first, second = (ranking.alike(site) for site in chains[:2])
    assert first == second and chains[0] != chains[1]
    _, wider = trace_source(BLOCKS.format(channels=16))
    other = recipe("batch-norm-training-statistics").match(wider, Contract())[0]
    assert ranking.alike(other) != first


@pytest.mark.parametrize("rung", [None, 1])
def test_a_space_with_rules_has_the_settings_that_all_combinations_leave(rung: int | None) -> None:
    rules = (
        Rule(("a", "c"), lambda a, c: a + c < 5),
        Rule(("b",), lambda b: b != 2),
        Rule(("c", "b"), lambda c, b: c != b),
    )
    knobs = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2, 3), "ACCURACY": (0, 1)}
    space = Space(knobs, lambda settings: settings["a"] != settings["b"], rules=rules)
    expected = [
        dict(zip(knobs, values, strict=True))
        for values in product((1, 2, 3), (1, 2, 3), (1, 2, 3), (rung or 0,))
        if values[0] + values[2] < 5
        and values[1] != 2
        and values[1] != values[2]
        and values[0] != values[1]
    ]
    assert space.settings(rung) == expected and expected
    assert all(map(space.allows, expected))
    assert not space.allows({**expected[0], "b": 2})
    assert all(near in space.settings(rung) for near in space.neighbours(expected[0]))


def plans(source: str, skill: str, workload: str = "full") -> WorkloadPlan:
    _, graph = trace_source(source)
    writer = recipe(skill)
    sites = match_sites(writer, graph, Contract())
    setting = ranking.rank_once(writer, sites[0], H200)[1][0][1]
    return WorkloadPlan(
        workload, graph, tuple(SitePlan(site, writer.emit(site, setting), "") for site in sites)
    )


def test_a_block_that_repeats_is_one_kernel_and_right() -> None:
    source = BLOCKS.format(channels=8)
    module, _ = trace_source(source)
    text = assemble_module(
        "blocks", source, [plans(source, "batch-norm-training-statistics")]
    ).source
    assert text.count("@triton.jit\ndef batch_norm_") == 1
    assert text.count("@triton.jit\ndef kmem_batch_norm") == 1, "one entry, so one compilation"
    model, candidate = module.Model(), import_source(text).ModelNew()
    candidate.load_state_dict(model.state_dict())
    (x,) = module.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), model(x))
    for own, theirs in zip(candidate.norms, model.norms, strict=True):
        torch.testing.assert_close(own.running_var, theirs.running_var)


def test_equal_kernels_that_need_other_numbers_at_another_size_are_two() -> None:
    """Both means divide by 96 at full size, and by 40 and 56 at the small one."""
    full, small = TWO_MEANS.format(a=96, b=96), TWO_MEANS.format(a=40, b=56)
    written = assemble_module(
        "means", full, [plans(full, "split-reduction"), plans(small, "split-reduction", "small")]
    )
    for source, text in (
        (full, written.source),
        (small, swap_constants(written.source, written.constants["small"])),
    ):
        module, _ = trace_source(source)
        inputs = module.get_inputs()
        with torch.no_grad():
            expected = module.Model()(*inputs)
            torch.testing.assert_close(import_source(text).ModelNew()(*inputs), expected)


def test_helpers_of_one_name_and_other_numbers_are_refused_and_not_renamed_for_ever() -> None:
    def emission(count: int) -> Emission:
        text = (
            f"@triton.jit\ndef halve(x):\n    return x * {1 / count}\n\n\n"
            "@triton.jit\ndef first(p0, q):\n    tl.store(q, halve(tl.load(p0)))\n"
        )
        launcher = (
            "def launch(p0):\n    q = torch.empty_like(p0)\n    first[(1,)](p0, q)\n    return q\n"
        )
        return Emission((("first", text),), launcher)

    constants = Constants()
    kernels = ModuleKernels(constants, LauncherWriter(constants))
    kernels.add_site("one", [emission(2), emission(4)])
    with pytest.raises(RecipeError, match="Two kernels named halve have different texts"):
        kernels.add_site("two", [emission(2), emission(8)])
