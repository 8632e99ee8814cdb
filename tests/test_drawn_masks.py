"""Dropout where the library may compute nothing: its masks are drawn apart, and that alone is."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from corpus.judging import SharedWorkers, judge_once
from module_problems import problem, recipe

from kmem.host.own_operators import own_body
from kmem.measure.examine.provenance import computing_operators, library_share
from kmem.measure.worker.lineage import Lineage
from kmem.measure.worker.operators import DRAWN_MASK, OperatorLog
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import execute_problem
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.trace import trace_under
from kmem.records import Contract, Problem, Purity, Status
from kmem.testing import emit_source, import_source

TRITON = Contract(purity=Purity.TRITON)
INPUTS = "torch.randn(7, 37)"
#: Two masks of one size, one after the other: the second is drawn after the first.
TWICE = problem("F.dropout(F.dropout(x.exp(), 0.4), 0.2) + x", INPUTS)


def traced(text: str, contract: Contract = TRITON) -> OpGraph:
    return trace_under(execute_problem(Problem("inline", "<inline>", text)), contract)


def targets(graph: OpGraph) -> list[str]:
    return [node.target for node in graph.nodes]


# --- the graph


def test_masks_drawn_apart_are_those_that_dropout_draws() -> None:
    graph = traced(TWICE)
    assert targets(graph).count("aten.native_dropout.default") == 2
    assert "aten.dropout.default" not in targets(graph)
    assert graph.spec("dropout").shape == (7, 37), "what it makes keeps its name"
    model = import_source(TWICE).Model()
    x = torch.randn(7, 37)
    x[0, 0], x[1] = float("nan"), float("inf")
    torch.manual_seed(5)
    right, state = model(x), torch.get_rng_state()
    torch.manual_seed(5)
    (found,) = evaluate_graph(graph, {"x": x})
    torch.testing.assert_close(found, right, equal_nan=True, rtol=1e-6, atol=0.0)
    assert torch.equal(torch.get_rng_state(), state)


def test_where_the_library_may_compute_dropout_stays_whole() -> None:
    assert targets(traced(TWICE, Contract())).count("aten.dropout.default") == 2


@pytest.mark.parametrize(
    "expression",
    [
        "F.dropout(x, 0.5, False)",
        "F.dropout(x, 0.0)",
        "F.dropout(x, 1.0)",
        "F.dropout(x.T, 0.5)",  # numbers go by how values lie
        "F.dropout(x.double(), 0.5)",
        "F.dropout2d(x[None, :, :, None], 0.5)",
        "F.alpha_dropout(x, 0.5, training=True)",
    ],
)
def test_what_is_no_usual_dropout_stays_as_it_is(expression: str) -> None:
    assert "aten.native_dropout.default" not in targets(traced(problem(expression, INPUTS)))


# --- what it counts as


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        (lambda x: torch.zeros(7, 37), DRAWN_MASK),
        (lambda x: torch.empty_like(x).fill_(1.0), DRAWN_MASK),
        (lambda x: x, "aten.native_dropout.default"),
        (lambda x: torch.empty_like(x).copy_(x), "aten.native_dropout.default"),
        (lambda x: torch.zeros_like(x).add_(x), "aten.native_dropout.default"),
    ],
)
def test_a_mask_of_a_constant_is_drawn_and_dropout_of_anything_else_computes(
    given: Callable[[torch.Tensor], torch.Tensor], counted: str
) -> None:
    x = torch.randn(7, 37)
    log = OperatorLog(lambda: False, Lineage(by_bytes=True), own_body)
    log.observe(lambda: SimpleNamespace(leaves=torch.native_dropout(given(x), 0.5, True)))
    assert [name for name in log.counts if "dropout" in name or name == DRAWN_MASK] == [counted]
    assert (DRAWN_MASK in computing_operators(log.counts)) is False
    assert ("aten.native_dropout.default" in computing_operators(log.counts)) is (
        counted != DRAWN_MASK
    )


def test_a_gpu_kernel_that_draws_a_mask_computes_nothing() -> None:
    mask = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float>"
    assert library_share([("row_sum", 10.0), (mask, 30.0)], {"row_sum": 1}) == 0.0
    # a kernel of another file that only calls itself so
    assert (
        library_share([("row_sum", 10.0), ("fused_dropout_kernel", 30.0)], {"row_sum": 1}) == 0.75
    )


# --- the judge


@pytest.mark.slow
@pytest.mark.parametrize("is_apart", [True, False])
def test_the_judge_takes_a_drawn_mask_and_refuses_the_librarys_dropout(
    is_apart: bool, workers: SharedWorkers, tmp_path: Path
) -> None:
    graph = traced(TWICE, TRITON if is_apart else Contract())
    chosen = recipe("fuse-pointwise-chain")
    sites = chosen.match(graph, TRITON)
    settings = {"BLOCK": 64, "HINT": "keep", "num_warps": 4}
    source = emit_source(TWICE, graph, [(chosen, site, settings) for site in sites])
    measurement = judge_once(TWICE, source, Purity.TRITON, workers, tmp_path)
    wanted = Status.PASSED if is_apart else Status.IMPURE
    assert measurement.status is wanted, measurement.log
