"""Products stored as their reader copies them: where, and that nothing is copied any more."""

from functools import cache

import pytest
import torch
from module_problems import SKILLS, problem, recipe

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.problem.costs.bound import node_cost_ms
from kmem.problem.graph import OpGraph
from kmem.records import Contract
from kmem.rewrites import Rewrite
from kmem.skills import load_rewrite, load_skill
from kmem.testing import check_rewrite, import_source, trace_source

H200 = named_target("h200")
HEADS = "x.view(2, 12, 3, 8).transpose(1, 2)"
WEIGHTED = f"torch.softmax({HEADS} @ {HEADS}.transpose(2, 3), -1) @ {HEADS}"
MERGED = ".transpose(1, 2).contiguous().view(2, 12, 24)"


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "write-where-copied"))
    assert loaded is not None
    return loaded


def rewritten(expression: str) -> tuple[OpGraph, OpGraph]:
    """The graph of an expression, and what the rewrite makes of it."""
    _, graph = trace_source(problem(expression, "torch.randn(2, 12, 24)"))
    (found,) = rewrite().rewritings(graph, Contract())
    return graph, found.graph


@pytest.mark.parametrize(
    "expression",
    [
        f"({WEIGHTED}){MERGED}",
        f"({WEIGHTED}).permute(0, 2, 1, -1).contiguous() * 2",
        "(x @ x.transpose(1, 2) @ x).transpose(0, 1).contiguous().relu()",
        f"({WEIGHTED}).transpose(1, 2).contiguous()",  # which is what the module returns
    ],
)
def test_a_product_that_is_turned_and_copied_is_stored_as_the_copy_lies(expression):
    graph, placed = rewritten(expression)
    check_rewrite(rewrite(), problem(expression, "torch.randn(2, 12, 24)"))
    costs = [
        {node.name: node_cost_ms(each, node, H200, Contract()) for node in each.nodes}
        for each in (graph, placed)
    ]
    assert [name for name in costs[0] if costs[0][name] != costs[1][name]] == ["contiguous"]
    assert costs[0]["contiguous"] > costs[1]["contiguous"] == 0


@pytest.mark.parametrize(
    "expression",
    [
        f"(lambda y: y.transpose(1, 2).contiguous().view(2, 12, 24) + y.sum())({WEIGHTED})",
        f"(lambda y: y.contiguous().sum(3) + y.sum(3))(({WEIGHTED}).transpose(1, 2))",
        f"({WEIGHTED}).transpose(2, 3).contiguous()",  # single elements would lie apart
        f"({WEIGHTED}).transpose(1, 2).clone()",  # copies whatever lies there
        f"{HEADS}.relu().transpose(1, 2).contiguous()",  # no product
        f"({WEIGHTED}).transpose(0, 0).contiguous()",  # nothing to do
    ],
)
def test_products_that_others_read_or_that_nothing_copies_keep_their_order(expression):
    _, graph = trace_source(problem(expression, "torch.randn(2, 12, 24)"))
    assert rewrite().rewritings(graph, Contract()) == []


@pytest.mark.parametrize(
    ("expression", "skill"),
    [
        (f"({WEIGHTED}){MERGED}", "flash-attention"),
        ("(x @ x.transpose(1, 2) @ x).transpose(0, 1).contiguous().relu()", "tile-matmul"),
    ],
)
def test_kernels_store_what_is_turned_so_that_making_it_dense_copies_nothing(expression, skill):
    source = problem(expression, "torch.randn(2, 12, 24)")
    module, _ = trace_source(source)
    _, placed = rewritten(expression)
    site = recipe(skill).match(placed, Contract())[-1]
    settings = recipe(skill).space(site, H200).settings()[0]
    plan = SitePlan(site, recipe(skill).emit(site, settings), skill)
    text = assemble_module("test", source, [WorkloadPlan("full", placed, (plan,))]).source
    seen: list[bool] = []
    make_dense = torch.Tensor.contiguous

    def look(value: torch.Tensor, *args: object) -> torch.Tensor:
        seen.append(value.is_contiguous())
        return make_dense(value, *args)

    candidate, (x,) = import_source(text).ModelNew(), module.get_inputs()
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous", look)
        found = candidate(x)
    assert seen and all(seen), "it copies"
    torch.testing.assert_close(found, module.Model()(x), rtol=1e-4, atol=1e-5)
