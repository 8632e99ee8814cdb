"""Distances of all pairs as products: where, that nothing changes, and what is written of them."""

from functools import cache

import pytest
import torch
from module_problems import SKILLS, problem, recipe

from kmem.devices import named_target
from kmem.problem.costs.bound import node_cost_ms
from kmem.records import Contract
from kmem.rewrites import Rewrite
from kmem.skills import load_rewrite, load_skill
from kmem.testing import check_rewrite, emit_source, import_source, trace_source

H200 = named_target("h200")
MANY = "torch.randn(28, 6), torch.randn(23, 6)"
FEW = "torch.randn(25, 6), torch.randn(23, 6)"
NEVER, ALWAYS = "'donot_use_mm_for_euclid_dist'", "'use_mm_for_euclid_dist'"


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "distances-as-product"))
    assert loaded is not None
    return loaded


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("torch.cdist(x, y)", MANY),
        ("torch.exp(-0.5 * torch.cdist(y, x, p=2.0).pow(2)).sum(1)", MANY),
        ("torch.cdist(x, y)", "torch.randn(3, 7, 6), torch.randn(3, 26, 6)"),
        ("torch.cdist(x, y)", "torch.randn(2, 1, 7, 6), torch.randn(3, 26, 6)"),
        (f"torch.cdist(x, y, compute_mode={ALWAYS})", FEW),
    ],
)
def test_distances_are_a_product_where_eager_multiplies(body: str, inputs: str) -> None:
    check_rewrite(rewrite(), problem(body, inputs, parameters="x, y"), expect=1)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("torch.cdist(x, y)", FEW),
        (f"torch.cdist(x, y, compute_mode={NEVER})", MANY),
        ("torch.cdist(x, y, p=1.0)", MANY),
        ("torch.cdist(x.double(), y.double())", MANY),
    ],
)
def test_other_distances_stay(body: str, inputs: str) -> None:
    _, graph = trace_source(problem(body, inputs, parameters="x, y"))
    assert not rewrite().rewritings(graph, Contract())


@pytest.mark.parametrize("skill", ["tile-matmul", "split-fp16-matmul"])
def test_norms_and_what_follows_are_written_where_tiles_are_stored(skill: str) -> None:
    torch.manual_seed(0)
    body = "torch.exp(-0.5 * torch.cdist(x, y).pow(2))"
    source = problem(body, "torch.randn(37, 19), torch.randn(51, 19)", parameters="x, y")
    module, graph = trace_source(source)
    (found,) = rewrite().rewritings(graph, Contract())
    product, sums = recipe(skill), recipe("split-reduction")
    (site,) = product.match(found.graph, Contract())
    assert site.outputs[0].name == graph.outputs[0]
    setting = {"block_m": 32, "block_n": 32, "block_k": 16, "warps": 4, "stages": 3, "group": 8}
    row = {"STRATEGY": "registers", "BK": 2, "BR": 32, "SPLIT": 1, "num_warps": 4}
    choices = [(product, site, {**setting, "splits": 1})]
    choices += [(sums, each, row) for each in sums.match(found.graph, Contract())]
    model = import_source(emit_source(source, found.graph, choices)).ModelNew()
    x, y = torch.randn(37, 19) * 0.2, torch.randn(51, 19) * 0.2
    torch.testing.assert_close(model(x, y), module.Model()(x, y), rtol=1e-5, atol=1e-6)
    x[3, 5], x[4, 6], x[7, 0], y[9, 2] = torch.tensor(
        [float("inf"), float("-inf"), 1e25, torch.nan]
    )
    torch.testing.assert_close(
        model(x, y), module.Model()(x, y), rtol=1e-5, atol=1e-6, equal_nan=True
    )


def test_eagers_passes_around_its_product_are_counted() -> None:
    costs = []
    for mode in (ALWAYS, NEVER):
        body = f"torch.cdist(x, y, compute_mode={mode})"
        shapes = "torch.empty(4096, 64), torch.empty(4096, 64)"
        _, graph = trace_source(problem(body, shapes, parameters="x, y"))
        (node,) = graph.nodes
        costs.append(node_cost_ms(graph, node, H200, Contract()))
    moved_ms = 1e3 * (4 * 2 * 4096 * 64 * 4 + 4 * 4096**2 * 4) / H200.dram_bytes_per_s
    assert costs[0] - costs[1] >= moved_ms
