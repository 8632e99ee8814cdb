"""Complex products as products of real pairs: where, and that they are the same."""

from functools import cache

import pytest
from module_problems import SKILLS, problem

from kmem.codegen.regions.matching import find_part_regions
from kmem.devices import named_target
from kmem.explore.recipes.rewriting import find_rewritten
from kmem.problem.costs.bound import graph_bound
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Problem, Workload
from kmem.rewrites import Rewrite, Rewrites
from kmem.skills import load_rewrite, load_skill
from kmem.testing import check_rewrite, trace_source

H200 = named_target("h200")
PAIRS = "torch.view_as_complex(x.float().reshape(2, 5, 3, -1, 2))"
TURNS = "self.register_buffer('turns', torch.polar(torch.ones(9, 4), torch.randn(9, 4)))"
TURNED = f"torch.view_as_real({PAIRS} * self.turns[None, :5, None, :])"


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "fuse-rotary-embedding"))
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "expression",
    [
        f"{TURNED}.flatten(3).type_as(x)",
        # its pairs are not next to each other
        f"{TURNED}.sum(-1)",
        # both factors are computed
        f"torch.view_as_real({PAIRS} * {PAIRS.replace('x.', '(x + 1).')})",
        # two readers of one product
        f"(lambda z: torch.view_as_real(z) * 2 + torch.view_as_real(z))({PAIRS} * self.turns[:3])",
    ],
)
def test_a_complex_product_is_that_of_its_parts(expression: str, dtype: str) -> None:
    text = problem(expression, f"torch.randn(2, 5, 3, 8).to(torch.{dtype})", TURNS)
    _, graph = trace_source(text)
    (found,) = rewrite().rewritings(graph, Contract())
    multiplied = [
        node
        for node in found.graph.nodes
        if node.target == "aten.mul.Tensor" and node.spec.dtype == "complex64"
    ]
    assert not multiplied
    assert found.flags == ()
    check_rewrite(rewrite(), text)


@pytest.mark.parametrize(
    "expression",
    [
        f"{PAIRS} * self.turns[:3]",  # which is what the module returns
        f"torch.view_as_real({PAIRS} * 2.0)",  # a number that is real
        f"torch.view_as_real({PAIRS} + self.turns[:3])",
        f"({PAIRS} * self.turns[:3]).abs()",
    ],
)
def test_other_complex_values_stay(expression: str) -> None:
    _, graph = trace_source(problem(expression, "torch.randn(2, 5, 3, 8)", TURNS))
    assert not rewrite().rewritings(graph, Contract())


def test_a_rotation_is_rewritten_because_one_kernel_writes_all_of_it() -> None:
    text = problem(f"{TURNED}.flatten(3).type_as(x)", "torch.randn(2, 5, 3, 8).half()", TURNS)
    _, graph = trace_source(text)
    traced = TracedProblem(
        Problem("rotation", "<inline>", text),
        Contract(),
        H200,
        {"full": Workload("full")},
        {"full": graph},
        graph_bound(graph, H200, Contract()),
    )
    found = find_rewritten(traced, Rewrites({"fuse-rotary-embedding": rewrite()}))
    (region,) = find_part_regions(found["fuse-rotary-embedding"].traced.graph)
    assert {operand.name for operand in region.region.outputs} == {"type_as"}
