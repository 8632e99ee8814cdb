"""Cuts of a graph: the cheapest one, smaller sites, chains that leave the library nothing."""

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.devices import named_target
from kmem.explore.recipes.cover import (
    SiteOption,
    cover_graph,
    find_options,
    smaller_options,
)
from kmem.explore.recipes.cutting import Offer, cheapest_cut
from kmem.explore.recipes.writing import plan_site
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.graph import Node, OpGraph, Placeholder, Ref
from kmem.recipes import Recipe, find_site
from kmem.records import Contract, Purity, TensorSpec
from kmem.serialize import from_json, to_json
from kmem.skills import load_recipe, load_skill
from kmem.testing import import_source, trace_source

H200 = named_target("h200")
TRITON = Contract(purity=Purity.TRITON)
SKILLS = Path(__file__).resolve().parent.parent / "skills"

CHAIN = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
{layers}
    def forward(self, x):
{forward}
def get_inputs():
    return [torch.randn({shape})]
def get_init_inputs():
    return []
"""

#: Chains of which one anchor used to push another to the library: layers, forward, input, pieces.
CHAINS = {
    "conv, relu, group norm": (
        "self.conv = torch.nn.Conv2d(8, 16, 3)\nself.norm = torch.nn.GroupNorm(4, 16)",
        "return self.norm(torch.relu(self.conv(x)))",
        "2, 8, 10, 10",
        2,
    ),
    "linear, gelu, softmax": (
        "self.linear = torch.nn.Linear(40, 24)",
        "return torch.softmax(torch.nn.functional.gelu(self.linear(x)), dim=1)",
        "17, 40",
        2,
    ),
    "linear, sum, and reductions of the one element that it leaves": (
        "self.linear = torch.nn.Linear(40, 24)",
        "x = torch.sum(self.linear(x), dim=1, keepdim=True)\n"
        "x = torch.max(x, dim=1, keepdim=True)[0]\n"
        "x = torch.logsumexp(torch.mean(x, dim=1, keepdim=True), dim=1, keepdim=True)\n"
        "return torch.amax(x * 2, dim=1, keepdim=True)",
        "17, 40",
        1,
    ),
    "conv, gelu, adaptive pool": (
        "self.conv = torch.nn.Conv2d(8, 16, 3)\nself.pool = torch.nn.AdaptiveAvgPool2d(1)",
        "return self.pool(torch.nn.functional.gelu(self.conv(x)))",
        "2, 8, 10, 10",
        1,
    ),
    "adaptive maximum of volumes, scaled": (
        "self.pool = torch.nn.AdaptiveMaxPool3d(1)",
        "return self.pool(x) * 2.0 - x.mean((2, 3, 4), keepdim=True)",
        "3, 5, 4, 3, 7",
        1,
    ),
    "linear, scale, logsumexp, mish": (
        "self.linear = torch.nn.Linear(40, 24)",
        "x = self.linear(x) * 0.5\nx = torch.logsumexp(x + x, dim=1, keepdim=True)\n"
        "return x * torch.nn.functional.mish(x)",
        "17, 40",
        1,
    ),
}


@cache
def shipped_recipes() -> Mapping[str, Recipe]:
    skills = [load_skill(place) for place in sorted(SKILLS.iterdir()) if place.is_dir()]
    return {skill.name: found for skill in skills if (found := load_recipe(skill)) is not None}


def write_chain(layers: str, forward: str, shape: str) -> str:
    def indented(text: str) -> str:
        return "".join(f"        {line}\n" for line in text.split("\n"))

    return CHAIN.format(layers=indented(layers), forward=indented(forward), shape=shape)


def cut_wholly(graph: OpGraph) -> list[SiteOption]:
    recipes = shipped_recipes()
    options = find_options({"full": graph}, recipes, TRITON, H200)
    options += smaller_options({"full": graph}, recipes, TRITON, H200, options)
    return cover_graph(graph, options, TRITON, H200)


@pytest.mark.parametrize("name", CHAINS)
def test_what_neighbours_take_is_put_out_of_reach_so_that_nothing_is_left_over(name: str) -> None:
    import torch

    *text, pieces = CHAINS[name]
    source = write_chain(*text)
    module, graph = trace_source(source)
    chosen = cut_wholly(graph)
    covered = {node for option in chosen for node in option.site.nodes}
    costs = node_costs_ms(graph, H200, TRITON)
    assert not [node.name for node in graph.nodes if node.name not in covered and costs[node.name]]
    assert len(chosen) == pieces
    sites = tuple(plan_site(graph, each, each.ranked[0][1], TRITON) for each in chosen)
    plan = WorkloadPlan("full", graph, sites)
    emitted = import_source(assemble_module(name, source, [plan]).source)
    torch.manual_seed(0)
    model, inputs = module.Model(), module.get_inputs()
    candidate = emitted.ModelNew()
    candidate.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(candidate(*inputs), model(*inputs), rtol=3e-3, atol=1e-3)


def test_a_choice_of_a_smaller_site_names_its_members_and_finds_it_again() -> None:
    *text, _ = CHAINS["conv, relu, group norm"]
    _, graph = trace_source(write_chain(*text))
    smaller = [option for option in cut_wholly(graph) if option.members is not None]
    assert smaller
    for option in smaller:
        choice = option.choice(option.ranked[0][1])
        assert from_json(type(choice), to_json(choice)) == choice
        site = find_site(option.recipe, graph, TRITON, choice)
        assert site is not None and site.nodes == choice.members == option.site.nodes


def chain_graph(length: int) -> OpGraph:
    spec = TensorSpec((4,), (1,), "float32")
    nodes = tuple(
        Node(f"n{place}", "aten.relu.default", (Ref(f"n{place - 1}" if place else "x"),), {}, spec)
        for place in range(length)
    )
    given = (Placeholder("x", "input", "", spec),)
    return OpGraph(given, nodes, (nodes[-1].name,), False, False, False)


def every_cut(offers: list[Offer], taken: frozenset[str] = frozenset()) -> list[tuple[int, ...]]:
    cuts: list[tuple[int, ...]] = [()]
    for place, offer in enumerate(offers):
        free = [cut for cut in cuts if not any(offers[each].nodes & offer.nodes for each in cut)]
        cuts += [(*cut, place) for cut in free]
    return cuts


@pytest.mark.parametrize("wholly", [False, True])
def test_the_cheapest_of_all_cuts_is_taken(wholly: bool) -> None:
    generator = random.Random(7)
    for _ in range(20):
        graph = chain_graph(8)
        names = [node.name for node in graph.nodes]
        library = {name: generator.choice([0.0, 1.0, 2.0]) for name in names}
        offers = []
        for _ in range(8):
            start = generator.randrange(8)
            nodes = frozenset(names[start : start + generator.randint(1, 4)])
            prize = generator.choice([0, 0, 0, 1])
            offers.append(Offer(nodes, generator.random() * 3, prize))

        def rank(
            cut: tuple[int, ...], offers: list[Offer] = offers, library: dict = library
        ) -> tuple[int, int, float]:
            covered = {name for place in cut for name in offers[place].nodes}
            left = [ms for name, ms in library.items() if name not in covered]
            time = sum(offers[place].cost_ms for place in cut) + sum(left)
            prize = sum(offers[place].prize for place in cut)
            return -prize, sum(ms > 0 for ms in left) if wholly else 0, time

        best = min(map(rank, every_cut(offers)))
        assert rank(tuple(cheapest_cut(graph, offers, library, wholly=wholly))) == pytest.approx(
            best
        )


def test_sites_that_would_wait_for_each_other_are_not_taken_together() -> None:
    spec = TensorSpec((4,), (1,), "float32")
    wires = {"a": "x", "b": "x", "after_a": "a", "after_b": "b"}
    nodes = tuple(
        Node(name, "aten.relu.default", (Ref(read),), {}, spec) for name, read in wires.items()
    )
    graph = OpGraph(
        (Placeholder("x", "input", "", spec),), nodes, ("after_a", "after_b"), True, False, False
    )
    offers = [
        Offer(frozenset({"a", "after_b"}), 0.1),
        Offer(frozenset({"b", "after_a"}), 0.2),
    ]
    assert cheapest_cut(graph, offers, dict.fromkeys(wires, 1.0), wholly=False) == [0]


ROWS = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, x, s, t):
        return {forward}
def get_inputs():
    return [torch.ones({x}), torch.ones({s}), torch.ones({s})]
"""


@pytest.mark.parametrize(
    ("forward", "x", "s"),
    [
        ("F.layer_norm(x, (1152,)) * (1 + s) + t", "32, 256, 1152", "32, 1, 1152"),
        ("F.layer_norm(x, (1024,)) + s", "64, 256, 1024", "64, 256, 1024"),
        ("F.group_norm(x, 8) * s + t", "64, 64, 32, 32", "64, 64, 32, 32"),
    ],
)
def test_what_scales_a_norm_is_written_with_it_at_full_size(forward: str, x: str, s: str) -> None:
    """What is read behind the last reduction is not held through it."""
    _, graph = trace_source(ROWS.format(forward=forward, x=x, s=s))
    recipes = {
        name: load_recipe(load_skill(SKILLS / name))
        for name in ("row-norm", "fuse-pointwise-chain")
    }
    options = find_options({"full": graph}, recipes, Contract(), H200)
    smaller = smaller_options({"full": graph}, recipes, Contract(), H200, options)
    (chosen,) = cover_graph(graph, [*options, *smaller], Contract(), H200)
    assert chosen.recipe.name == "row-norm" and len(chosen.site.nodes) == len(graph.nodes)


def test_one_site_that_does_what_several_do_is_not_passed_over_for_their_number() -> None:
    """A skill's own sites go first: three sums of rows read at once are as many as three sums."""
    forward = "(lambda p: (p * s).sum(1) / (p.sum(1) + s.sum(1)))(torch.sigmoid(x))"
    _, graph = trace_source(ROWS.format(forward=forward, x="16, 1048576", s="16, 1048576"))
    recipes = {
        name: load_recipe(load_skill(SKILLS / name))
        for name in ("split-reduction", "fuse-pointwise-chain")
    }
    options = find_options({"full": graph}, recipes, Contract(), H200)
    options += smaller_options({"full": graph}, recipes, Contract(), H200, options)
    own = [option.place for option in options if option.recipe.name == "split-reduction"]
    assert len(own) > 3
    (chosen,) = cover_graph(graph, options, Contract(), H200, prefer=[own])
    assert chosen.recipe.name == "split-reduction" and chosen.members is None
