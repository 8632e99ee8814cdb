"""What a graph shows beside its operators, and what the gate makes of it."""

from dataclasses import replace

import pytest
from test_prescribe import diagnosis, skill

from kmem.prescribe.gate import SkillQuery, gate_skill
from kmem.problem.features.patterns import _PATTERNS, find_patterns
from kmem.problem.source.load import FULL, execute_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Bottleneck, Contract, Precision, Problem
from kmem.vocabulary import GRAPH_PATTERNS, OPERATORS

SOURCE = """
import torch
from torch.nn import functional


class Model(torch.nn.Module):
    def forward(self, x, y):
        return {result}


def get_inputs():
    return [torch.randn(2, 32, 32), torch.randn(32, 32)]
"""
IMAGE, HEADS = "x.view(2, 32, 8, 4)", "x.view(1, 2, 32, 32)"
KEYS = "torch.cat((x.view(1, 2, 32, 32), x.view(1, 2, 32, 32)), 2)"
ATTENTION = "functional.scaled_dot_product_attention"
#: What a module of inputs x (2, 32, 32) and y (32, 32) computes -> the patterns of its graph.
SHOWN = {
    "x + 1.0": set(),
    "(x @ y).mean(dim=1)": {"averaged_product", "outer_reduction", "reduced_product"},
    "(x @ y).sum(dim=-1)": {"product_summed_over_columns", "reduced_product"},
    "x @ y @ y": {"chained_products"},
    "(x @ y).relu() @ y.t().contiguous()": {
        "pointwise_after_product",
        "pointwise_before_product",
        "turned_copy",
    },
    "functional.silu(x @ y) * (x @ y.cos())": {
        "gated_products",
        "pointwise_after_product",
        "pointwise_before_product",
        "readers_of_one_input",
    },
    "(x.mean(dim=1), x.amax(dim=1))": {"outer_reduction", "readers_of_one_input"},
    "x - x.amax(dim=1, keepdim=True)": {"norm_over_outer_axis", "outer_reduction"},
    "functional.layer_norm(x + 1.0, (32,))": {"norm_beside_pointwise"},
    "functional.layer_norm(x, (32,)) @ y": {"pointwise_before_product"},
    "((x - 1.0) ** 2).mean()": {"mean_of_loss"},
    "x.flip(1).cumsum(1)": {"shifted_scan"},
    "torch.cat((-x[..., 16:], x[..., :16]), -1)": {"rotated_halves"},
    "functional.max_pool2d(x.relu(), 2)": {"monotone_before_max"},
    "torch.softmax(x @ y, -1) @ y": {
        "reduced_product",
        "softmax_between_products",
    },
    "(x.permute(0, 2, 1).reshape(64, 32) @ y).view(2, 32, 32).permute(0, 2, 1)": {
        "permuted_product",
        "turned_copy",
    },
    "x.unfold(2, 4, 1).reshape(2, 32, -1)[..., :32] @ y": {"unfolded_product"},
    "functional.nll_loss(torch.log_softmax(y, 1), y[0].long())": {
        "picked_log_softmax",
    },
    "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * y[0]": {"scaled_by_squares"},
    "x / x.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()": {"scaled_by_squares"},
    "x * x.mean(-1, keepdim=True).rsqrt()": set(),
    "x * y.sqrt()": set(),
    "(x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)": {
        "readers_of_one_input",
        "scaled_by_spread",
    },
    "(x - x.mean(-1, True)) / (x - x.mean(-1, True)).pow(2).mean(-1, True).sqrt()": {
        "readers_of_one_input",
        "scaled_by_spread",
    },
    "x.exp() / x.exp().sum(-1, keepdim=True)": {"shared_exponentials"},
    "x.exp() / x.sum(-1, keepdim=True)": set(),
    "(x @ y).exp().sum(-1)": {"pointwise_after_product", "reduced_product"},
    "(x @ y, y.relu() @ y)": {"pointwise_before_product", "readers_of_one_input"},
    "(x @ y[:, :8], y.sin() @ y.cos())": {"independent_products", "pointwise_before_product"},
    "x.amax(-1)": set(),
    "torch.linalg.vector_norm(x, 2, (1,))": {"outer_reduction"},
    "torch.linalg.vector_norm(y, 2, (1,))": set(),
    "torch.softmax(x, 1)": {"norm_over_outer_axis"},
    "torch.softmax(x, -1)": set(),
    "torch.cat((x.sin(), x.cos()), 1)": {"concatenated_results"},
    "torch.cat((x, x), 1)": set(),
    "torch.matmul(x, y).transpose(1, 2).contiguous()": {"turned_result"},
    "x.permute(0, 2, 1).contiguous()": {"turned_copy"},
    "x.permute(1, 0, 2).contiguous()": set(),
    "x.transpose(1, -1).reshape(-1)": {"turned_copy"},
    "y @ y.t()": {"symmetric_product"},
    "y[:2] @ y": {"few_rows"},
    "y[:2] @ y[:, :2]": {"few_rows", "long_sum"},
    "x[:, :4] @ y": set(),
    "y[:1].expand(32, -1) @ y": set(),
    "torch.mv(y, y[0])": {"few_rows"},
    "x.view(2, 4, 8, 32).mean((0, 2, 3))": {"batch_statistics"},
    "x.view(2, 4, 8, 32).mean((2, 3))": {"pooled_planes"},
    "x.expand(2, 32, 32).repeat(1, 32, 64).view(2, -1).sum(1)": {"few_long_rows"},
    "x.repeat(1, 32, 64).view(2, -1).cumsum(1)": {"few_long_rows"},
    "x.repeat(1, 32, 64).view(2, -1).sum()": set(),
    "x.repeat(1, 64, 32).view(-1, 2).sum(1)": {"many_short_rows"},
    "torch.softmax(x.repeat(1, 64, 32).view(-1, 2), 1)": {"many_short_rows"},
    f"functional.conv2d({IMAGE}, y.view(1024, 1, 1, 1)[:288].view(32, 1, 3, 3), groups=32)": {
        "overlapping_windows"
    },
    "functional.max_pool2d(x, 3, 1)": {"overlapping_windows"},
    "functional.max_pool2d(x, 2)": set(),
    "x[..., ::2] * 2.0": {"interleaved_parts"},
    "x[..., :16] * 2.0": set(),
    "x.view(-1, 2)[:, 0] * 2.0": {"interleaved_parts"},
    "torch.where(torch.arange(32) < y[0, :, None], y, 0.0)": {"given_lengths"},
    "torch.where(torch.arange(32) < 16, y, 0.0)": set(),
    "torch.softmax(torch.where(y > 0, y, 0.0), -1)": set(),
    "torch.softmax(torch.where(y > 0, y @ y, 0.0), -1)": {
        "masked_attention",
        "pointwise_after_product",
        "reduced_product",
    },
    "y @ y": set(),
    "(x @ y) * 2.0 + y[0]": {"affine_after_product", "pointwise_after_product"},
    "(x @ y) * x": {"pointwise_after_product"},
    "x * 1.0": {"step_without_effect"},
    "functional.dropout(x, 0.5, False)": {"step_without_effect"},
    f"functional.conv2d({IMAGE}, y.view(1024, 1, 1, 1)[:32], groups=32)": set(),
    f"functional.conv2d({IMAGE}[:, :3], y.view(1, -1, 1, 1)[:, :3])": {"few_channels"},
    f"functional.conv2d({IMAGE}, y.view(32, 32, 1, 1))": set(),
    f"functional.conv2d(functional.conv2d({IMAGE}, y.view(1024, 1, 1, 1)[:32], groups=32), "
    "y.view(32, 32, 1, 1))": {"depthwise_then_pointwise"},
    f"functional.avg_pool2d(functional.conv_transpose2d({IMAGE}, y.view(32, 32, 1, 1)), 2)": {
        "averaged_product",
        "pooled_transposed",
    },
    f"{ATTENTION}({HEADS}, {HEADS}, {HEADS})": set(),
    f"{ATTENTION}({HEADS}, {KEYS}, {KEYS})": set(),
    f"{ATTENTION}({HEADS}[:, :, :1], {KEYS}, {KEYS})": {"few_queries"},
    f"{ATTENTION}({HEADS}, {HEADS}, {HEADS}, is_causal=True)": {"masked_attention"},
    f"{ATTENTION}({HEADS}, {HEADS}[:, :1].expand(-1, 2, -1, -1), {HEADS})": {"repeated_heads"},
    f"{ATTENTION}({HEADS}, {HEADS}, {HEADS}).transpose(1, 2).reshape(1, 32, 64)": {"turned_result"},
}


@pytest.mark.parametrize("result", SHOWN)
def test_the_patterns_of_a_graph(result: str) -> None:
    problem = Problem("p", "p.py", SOURCE.format(result=result))
    graph = trace_problem(execute_problem(problem, FULL), Precision.MATCH)
    assert graph.opaque_reason is None
    assert set(find_patterns(graph)) == SHOWN[result]


def test_a_sum_that_is_stepped_through_by_hand_is_a_recurrence() -> None:
    source = SOURCE.replace(
        "        return {result}",
        "        z = y[0]\n"
        "        for i in range(1, 32):\n"
        "            z = torch.addcmul(y[i], z, z)\n"
        "        return z + x",
    )
    graph = trace_problem(execute_problem(Problem("p", "p.py", source), FULL), Precision.MATCH)
    assert find_patterns(graph) == ("recurrence",)


def test_what_is_made_of_parameters_alone_is_a_prepared_weight() -> None:
    source = SOURCE.replace("{result}", "functional.linear(x, self.weight.MADE)").replace(
        "    def forward",
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.randn(32, 32))\n\n"
        "    def forward",
    )
    for made, shown in (("t().contiguous()", True), ("abs()", True), ("t()", False)):
        problem = Problem("p", "p.py", source.replace("MADE", made))
        graph = trace_problem(execute_problem(problem, FULL), Precision.MATCH)
        assert ("prepared_weight" in find_patterns(graph)) is shown, made


def test_the_vocabulary_has_every_pattern_and_each_spells_an_operator() -> None:
    assert list(_PATTERNS) == list(GRAPH_PATTERNS)
    spelled = {pattern.spells for pattern in GRAPH_PATTERNS.values()} - {""}
    assert spelled <= set(OPERATORS)


def test_the_gate_takes_a_pattern_for_operator_figures_and_bottleneck() -> None:
    gated = skill(
        operators=("linear",), patterns=("gated_products",), bottlenecks=(Bottleneck.ALGORITHMIC,)
    )
    said = replace(diagnosis(), bottleneck=Bottleneck.DRAM_BANDWIDTH, estimated=True)

    def ask(patterns: tuple[str, ...] | None, operators: tuple[str, ...]):
        found = replace(said, patterns=patterns)
        return gate_skill(gated, SkillQuery(found, operators, "sm_90", Contract()))

    shown = ask(("gated_products",), ("layout",))
    assert shown.applies and shown.relevance == 1.0
    assert "the graph has a gated_products" in shown.reasons
    assert not ask((), ("layout",)).applies and not ask(None, ("linear",)).applies
    spelled = skill(operators=("conv",), bottlenecks=())
    query = SkillQuery(replace(said, patterns=("unfolded_product",)), (), "sm_90", Contract())
    assert gate_skill(spelled, query).reasons[0] == "operator conv"
