"""Pointwise expressions: accuracy against float64 over wide ranges, NaN, infinities, broadcasting,
layouts and types.
"""

import itertools
import re
import warnings

import pytest
import torch

from kmem.codegen.regions.matching import find_pointwise_regions
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.codegen.rows.recipe import PointwiseRecipe
from kmem.devices import named_target
from kmem.records import Contract, Precision
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
SETTING = {"BLOCK": 512, "num_warps": 4, "HINT": "stream"}


def problem(
    expression: str,
    inputs: str = "torch.randn(3, 5, 7), torch.randn(3, 5, 7)",
    parameters: str = "x, y",
) -> str:
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, {parameters}):
        return {expression}

def get_inputs():
    return [{inputs}]
"""


def run_emitted(source: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    recipe = PointwiseRecipe()
    _, graph = trace_source(source)
    sites = recipe.match(graph, Contract())
    module = import_source(emit_source(source, graph, [(recipe, site, SETTING) for site in sites]))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "ModelNew runs the reference")
        return module.ModelNew()(*inputs)


UNARY = [
    "torch.relu(x)",
    "F.leaky_relu(x, 0.2)",
    "torch.sigmoid(x)",
    "torch.tanh(x)",
    "F.silu(x)",
    "F.gelu(x)",
    "F.gelu(x, approximate='tanh')",
    "F.selu(x)",
    "F.elu(x, 0.7)",
    "F.celu(x, 2.0)",
    "F.hardsigmoid(x)",
    "F.hardswish(x)",
    "F.hardtanh(x)",
    "F.relu6(x)",
    "F.softplus(x)",
    "F.softplus(x, 2.0, 5.0)",
    "F.softsign(x)",
    "F.mish(x)",
    "F.logsigmoid(x)",
    "torch.exp(x)",
    "torch.expm1(x)",
    "torch.log1p(torch.abs(x))",
    "x.clamp(-1, 0.5)",
    "x ** 2",
    "x ** 3",
    "torch.where(x > 0, x, 0.1 * x)",
    "x.to(torch.bfloat16).to(torch.float32) * 2",
    "1 - x",
    "torch.abs(x) / 3",
    "torch.sign(x) * x",
    "torch.sin(x)",
]


@pytest.mark.parametrize("expression", UNARY)
def test_a_unary_function_is_as_accurate_as_eager_at_every_magnitude(expression: str) -> None:
    torch.manual_seed(1)
    source = problem(expression, "torch.randn(512)", "x")
    recipe = PointwiseRecipe()
    _, graph = trace_source(source)
    module = import_source(
        emit_source(
            source, graph, [(recipe, site, SETTING) for site in recipe.match(graph, Contract())]
        )
    )
    for scale in (1e-4, 1.0, 30.0):
        with torch.no_grad():
            hold_to_eager(expression, torch.randn(512) * scale, module.ModelNew())


def hold_to_eager(expression: str, x: torch.Tensor, model: torch.nn.Module) -> None:
    """At most twice eager's error against float64, or the judge's floor for fp32."""
    found = model(x)
    namespace = {"torch": torch, "F": torch.nn.functional}
    eager = eval(expression, {**namespace, "x": x})  # noqa: S307 - expressions of this file
    # the interpreter truncates to bfloat16 where a GPU rounds: one unit of its last place
    if "bfloat16" in expression:
        assert (found - eager).abs().max() <= 2**-7 * eager.abs().max()
        return
    oracle = eval(expression, {**namespace, "x": x.double()})  # noqa: S307
    error = (found.double() - oracle).norm() / oracle.norm()
    allowed = max(2 * (eager.double() - oracle).norm() / oracle.norm(), torch.tensor(1e-6))
    assert found.dtype == eager.dtype
    assert error <= allowed


@pytest.mark.parametrize(
    "expression",
    [
        "torch.relu(x)",
        "x.clamp(-1, 1)",
        "F.hardtanh(x)",
        "F.relu6(x)",
        "torch.tanh(x)",
        "torch.exp(x)",
        "torch.sigmoid(x)",
    ],
)
def test_nan_and_infinities_come_out_as_in_eager(expression: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e30, 100.0])
    found = run_emitted(problem(expression, "torch.randn(8)", "x"), [x])
    expected = eval(expression, {"torch": torch, "F": torch.nn.functional, "x": x})  # noqa: S307
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    ["softplus", "mish", "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid"],
)
def test_extremes_hand_nan_on(function: str) -> None:
    """Unlike the interpreter's, a GPU's min and max drop a NaN unless they are told not to; that
    shows in the text alone.
    """
    _, graph = trace_source(problem(f"F.{function}(x)", "torch.randn(8)", "x"))
    written = (write_pointwise(graph, node, lambda name: name) for node in graph.nodes)
    text = next(filter(None, written)).text
    extremes = re.findall(r"tl\.(?:minimum|maximum)\(", text)
    assert extremes and text.count("PropagateNan.ALL") == len(extremes)


BINARY = [
    ("x + y", "torch.randn(2, 3, 5), torch.randn(3, 1)"),
    ("torch.add(x, y, alpha=2)", "torch.randn(2, 3, 5), torch.randn(5)"),
    ("torch.sub(x, y, alpha=0.5)", "torch.randn(2, 1, 5), torch.randn(1, 3, 5)"),
    ("x * y + y", "torch.randn(17, 33).t(), torch.randn(33, 17)"),
    (
        "torch.relu(x) * y",
        (
            "torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, "
            "5).to(memory_format=torch.channels_last)"
        ),
    ),
    ("torch.where(x > y, x, y)", "torch.randn(40)[::2], torch.randn(20)"),
    ("torch.maximum(x, y) / (y.abs() + 1)", "torch.randn(1, 1), torch.randn(1, 1)"),
    ("x * y", "torch.randn(6, 4), torch.rand(6, 4) > 0.5"),
    ("x.masked_fill(y, -1.0)", "torch.randn(6, 4), torch.rand(6, 4) > 0.5"),
]


@pytest.mark.parametrize(("expression", "inputs"), BINARY)
def test_broadcast_strided_and_bool_operands_are_read_in_place(
    expression: str, inputs: str
) -> None:
    check_recipe(
        PointwiseRecipe(), problem(expression, inputs), H200, settings=[SETTING], tolerance=1e-6
    )


@pytest.mark.parametrize(
    "setting",
    PointwiseRecipe()
    .space(PointwiseRecipe().match(trace_source(problem("x + y"))[1], Contract())[0], H200)
    .settings()[:4],
)
def test_every_setting_agrees_when_the_tail_is_masked(setting: dict) -> None:
    check_recipe(
        PointwiseRecipe(), problem("F.gelu(x) + y"), H200, settings=[setting], tolerance=1e-6
    )


def test_bfloat16_is_computed_in_fp32_and_rounded_once() -> None:
    errors = check_recipe(
        PointwiseRecipe(),
        problem("F.silu(x) * y"),
        H200,
        settings=[SETTING],
        contract=Contract(Precision.BF16),
        tolerance=5e-3,
    )
    assert len(errors) == 1


def test_a_chain_is_one_region_and_a_library_call_splits_it() -> None:
    _, graph = trace_source(
        problem("torch.relu(torch.relu(x + 1) @ y) * 2", "torch.randn(4, 4), torch.randn(4, 4)")
    )
    found = find_pointwise_regions(graph)
    assert [len(region.nodes) for region in found] == [2, 2]


def test_what_cannot_be_written_exactly_is_not_matched() -> None:
    for expression, inputs in itertools.product(
        ["x.double() + 1", "x.long() + 1", "torch.pow(x, 2.5)", "F.dropout(x, 0.5, True)"],
        ["torch.randn(8)"],
    ):
        _, graph = trace_source(problem(expression, inputs, "x"))
        assert all(
            node not in region.nodes
            for region in find_pointwise_regions(graph)
            for node in [graph.outputs[0]]
        ), expression


def test_an_in_place_activation_on_an_argument_is_left_to_eager() -> None:
    _, graph = trace_source(problem("F.relu(x, inplace=True)", "torch.randn(8)", "x"))
    assert find_pointwise_regions(graph) == []
    _, graph = trace_source(problem("F.relu(x + 1, inplace=True)", "torch.randn(8)", "x"))
    assert [len(region.nodes) for region in find_pointwise_regions(graph)] == [2]
