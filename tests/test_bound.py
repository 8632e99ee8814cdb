"""Bytes, operations and least times against figures worked out by hand and against the measured
anchors.
"""

import logging

import pytest

from kmem.devices import TARGETS
from kmem.problem.costs.bound import graph_bound, node_cost_ms, parameter_bytes
from kmem.problem.costs.work import Work, node_work
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Device, Precision
from kmem.testing import trace_source

H200 = TARGETS["h200"]
MATCH = Contract()


def traced(forward: str, inputs: str, init: str = "pass"):
    return trace_source(f"""
import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, *inputs):
        x, y, z = (*inputs, None, None)[:3]
        {forward}


def get_inputs():
    return [{inputs}]
""")[1]


def work_of(forward: str, inputs: str, init: str = "pass") -> Work:
    graph = traced(forward, inputs, init)
    assert graph.opaque_reason is None, graph.opaque_reason
    return node_work(graph, graph.nodes[-1])


@pytest.mark.parametrize(
    ("forward", "inputs", "fma"),
    [
        ("return x @ y", "torch.rand(5, 7), torch.rand(7, 3)", 5 * 7 * 3),
        ("return x @ x", "torch.rand(6, 6)", 216),
        ("return x @ y", "torch.rand(5, 7), torch.rand(7)", 35),
        ("return torch.bmm(x, y)", "torch.rand(2, 5, 7), torch.rand(2, 7, 3)", 210),
        ("return F.linear(x, y, z)", "torch.rand(4, 7), torch.rand(3, 7), torch.rand(3)", 84),
        ("return torch.addmm(z, x, y)", "torch.rand(5, 7), torch.rand(7, 3), torch.rand(3)", 105),
        (
            "return torch.einsum('bijl,lk->bijk', x, y)",
            "torch.rand(2, 3, 4, 5), torch.rand(5, 6)",
            2 * 3 * 4 * 5 * 6,
        ),
        (
            "return F.scaled_dot_product_attention(x, y, z)",
            "torch.rand(2, 3, 4, 8), torch.rand(2, 3, 5, 8), torch.rand(2, 3, 5, 6)",
            6 * 20 * 14,
        ),
        (
            "return F.scaled_dot_product_attention(x, x, x, is_causal=True)",
            "torch.rand(1, 4, 8)",
            10 * 16,
        ),
    ],
)
def test_products_count_one_multiply_add_per_term(forward, inputs, fma) -> None:
    assert work_of(forward, inputs).product_fma == fma


@pytest.mark.parametrize(
    ("forward", "inputs", "fma"),
    [
        (
            "return F.conv2d(x, y)",
            "torch.rand(2, 3, 8, 9), torch.rand(5, 3, 3, 2)",
            2 * 5 * 3 * (6 * 3) * (8 * 2),
        ),
        # one tap on padding at each end
        ("return F.conv1d(x, y, padding=1)", "torch.rand(1, 1, 5), torch.rand(1, 1, 3)", 5 * 3 - 2),
        ("return F.conv1d(x, y, padding='same')", "torch.rand(1, 1, 5), torch.rand(1, 1, 3)", 13),
        (
            "return F.conv1d(x, y, stride=2, dilation=2)",
            "torch.rand(1, 1, 9), torch.rand(1, 1, 3)",
            3 * 3,
        ),
        (
            "return F.conv2d(x, y, groups=4)",
            "torch.rand(1, 4, 4, 4), torch.rand(4, 1, 3, 3)",
            4 * 4 * 9,
        ),
        ("return F.conv_transpose1d(x, y)", "torch.rand(1, 2, 5), torch.rand(2, 3, 3)", 2 * 3 * 15),
        (
            "return F.conv_transpose1d(x, y, stride=2, padding=1, dilation=2)",
            "torch.rand(1, 1, 4), torch.rand(1, 1, 3)",
            4 * 3 - 2,
        ),
    ],
)
def test_convolutions_leave_out_padding_and_structural_zeros(forward, inputs, fma) -> None:
    assert work_of(forward, inputs).conv_fma == fma


def test_taps_counted_by_formula_are_those_found_by_running_on_ones() -> None:
    import torch

    for stride, padding, dilation, output_padding in [
        (1, 0, 1, 0),
        (2, 1, 2, 1),
        (3, 2, 1, 0),
        (5, 1, 2, 0),
    ]:
        arguments = f"stride={stride}, padding={padding}, dilation={dilation}"
        plain = work_of(
            f"return F.conv1d(x, y, {arguments})", "torch.rand(1, 1, 17), torch.rand(1, 1, 3)"
        ).conv_fma
        ones, kernel = torch.ones(1, 1, 17), torch.ones(1, 1, 3)
        assert (
            plain
            == torch.nn.functional.conv1d(
                ones, kernel, stride=stride, padding=padding, dilation=dilation
            ).sum()
        )
        back = work_of(
            f"return F.conv_transpose1d(x, y, {arguments}, output_padding={output_padding})",
            "torch.rand(1, 1, 17), torch.rand(1, 1, 3)",
        )
        ones_back = torch.nn.functional.conv_transpose1d(
            ones,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            output_padding=output_padding,
        )
        assert back.conv_fma == ones_back.sum()


@pytest.mark.parametrize(
    ("forward", "inputs", "work"),
    [
        ("return torch.relu(x)", "torch.rand(10)", Work(simple=10)),
        ("return torch.tanh(x)", "torch.rand(10)", Work(simple=10, special=10)),
        ("return x ** 3", "torch.rand(10)", Work(simple=10)),
        ("return x ** 0.3", "torch.rand(10)", Work(simple=10, special=10)),
        ("return x.reshape(2, 5)", "torch.rand(10)", Work()),
        ("return torch.softmax(x, 1)", "torch.rand(2, 5)", Work(simple=10, special=10)),
        ("return F.max_pool1d(x, 4, stride=1)", "torch.rand(1, 1, 10)", Work(simple=10)),
        ("return torch.max(x, y)", "torch.rand(10), torch.rand(10)", Work(simple=10)),
        ("return x.sum()", "torch.rand(10)", Work(simple=10)),
        ("return F.layer_norm(x, (5,))", "torch.rand(2, 5)", Work(simple=20)),
    ],
)
def test_other_operators_count_elements_and_special_functions(forward, inputs, work) -> None:
    assert work_of(forward, inputs) == work


def test_recurrent_layers_count_every_weight_per_step() -> None:
    # getitem
    assert (
        work_of("return self.rnn(x)[0]", "torch.rand(6, 2, 3)", "self.rnn = torch.nn.RNN(3, 4)")
        == Work()
    )
    graph = traced("return self.rnn(x)[0]", "torch.rand(6, 2, 3)", "self.rnn = torch.nn.RNN(3, 4)")
    recurrent = next(node for node in graph.nodes if "rnn" in node.target)
    assert node_work(graph, recurrent).conv_fma == 12 * (4 * 3 + 4 * 4)


def test_an_operator_without_a_rule_counts_elements_and_is_named_once(caplog) -> None:
    graph = traced("return torch.heaviside(torch.heaviside(x, x), x)", "torch.rand(10)")
    with caplog.at_level(logging.INFO, "kmem.problem.costs.work"):
        assert [node_work(graph, node) for node in graph.nodes] == [Work(simple=10)] * 2
    assert caplog.text.count("aten.heaviside.default") == 1


def test_bytes_are_inputs_and_outputs_once_whatever_happens_between() -> None:
    bound = graph_bound(
        traced("return torch.sigmoid(x * 2 + 1) * x", "torch.rand(1000)"), H200, MATCH
    )
    assert bound.bytes == 8000 and bound.limiter == "bytes"
    assert bound.time_ms == pytest.approx(8000 / 4.8e12 * 1e3)


def test_of_the_bytes_those_of_weights_are_known() -> None:
    graph = traced("return self.a(x)", "torch.rand(4, 7)", "self.a = torch.nn.Linear(7, 3)")
    assert parameter_bytes(graph) == 4 * (7 * 3 + 3)
    bound = graph_bound(graph, H200, MATCH)
    assert bound.bytes == 4 * (4 * 7 + 7 * 3 + 3 + 4 * 3)


def test_what_nothing_depends_on_is_not_counted() -> None:
    bound = graph_bound(
        traced(
            "unused = y @ y; return x.max(dim=1).values", "torch.rand(10, 10), torch.rand(99, 99)"
        ),
        H200,
        MATCH,
    )
    assert bound.bytes == 4 * (100 + 10)  # neither y nor the indices
    assert set(bound.flops) == {"fp32"}


def test_slices_expanded_inputs_and_views_of_inputs_count_what_they_hold() -> None:
    assert graph_bound(traced("return x[3] + 1", "torch.rand(10, 10)"), H200, MATCH).bytes == 4 * (
        10 + 10
    )
    assert (
        graph_bound(
            traced("return x + y", "torch.rand(10, 10), torch.rand(10, 1).expand(10, 10)"),
            H200,
            MATCH,
        ).bytes
        == 4 * 210
    )
    assert graph_bound(traced("return x.t()", "torch.rand(10, 20)"), H200, MATCH).bytes == 800


def test_reading_alone_runs_at_the_read_rate_and_copying_at_the_copy_rate() -> None:
    from dataclasses import replace

    device = replace(H200, dram_bytes_per_s=4.0e12, read_bytes_per_s=4.4e12)
    assert graph_bound(
        traced("return x + 1", "torch.rand(1000)"), device, MATCH
    ).time_ms == pytest.approx(8000 / 4.0e12 * 1e3)
    assert graph_bound(
        traced("return x.sum(0)", "torch.rand(1000)"), device, MATCH
    ).time_ms == pytest.approx((3996 / 4.4e12 + 8 / 4.0e12) * 1e3)


SQUARE = ("return x @ y", "torch.rand(4096, 4096), torch.rand(4096, 4096)")


def test_exact_fp32_products_may_be_three_fp16_products_and_tf32_ones_one() -> None:
    graph, flops = traced(*SQUARE), 2 * 4096**3
    match = graph_bound(graph, H200, MATCH)
    tf32 = graph_bound(graph, H200, Contract(Precision.TF32))
    assert match.flops == {"fp16": 3 * flops} and match.limiter == "fp16"
    assert match.time_ms == pytest.approx(3 * flops / 989.5e12 * 1e3)
    assert tf32.time_ms == pytest.approx(match.time_ms / 3)


def test_where_the_fma_pipe_is_faster_than_three_half_products_it_is_the_floor() -> None:
    assert set(graph_bound(traced(*SQUARE), TARGETS["rtx4090"], MATCH).flops) == {"fp32"}


def test_bf16_products_run_on_the_bf16_tensor_cores() -> None:
    graph = traced(
        "return x @ y", "torch.rand(4096, 4096).bfloat16(), torch.rand(4096, 4096).bfloat16()"
    )
    bound = graph_bound(graph, H200, Contract(Precision.BF16))
    assert bound.flops == {"bf16": 2 * 4096**3} and bound.limiter == "bf16"


def test_a_triangle_of_a_product_needs_only_that_triangle() -> None:
    kept = sum(row + 1 for row in range(64)) * 64
    lower = graph_bound(
        traced("return torch.tril(x @ y)", "torch.rand(64, 64), torch.rand(64, 64)"), H200, MATCH
    )
    upper = graph_bound(
        traced("return torch.triu(x @ y)", "torch.rand(64, 64), torch.rand(64, 64)"), H200, MATCH
    )
    assert lower.flops == upper.flops == {"fp16": 6.0 * kept}


def test_a_product_with_a_diagonal_matrix_is_one_multiplication_per_result() -> None:
    bound = graph_bound(
        traced("return torch.diag(x) @ y", "torch.rand(64), torch.rand(64, 32)"), H200, MATCH
    )
    assert bound.flops == {"fp32": 64 * 32} and bound.bytes == 4 * (64 + 2 * 64 * 32)


def eager_estimate_ms(graph: OpGraph, device: Device) -> float:
    return sum(node_cost_ms(graph, node, device, MATCH) for node in graph.nodes)


def test_an_opaque_graph_has_no_bound() -> None:
    graph = traced("return x if x.sum() > 0 else -x", "torch.rand(4)")
    assert graph_bound(graph, H200, MATCH) is None


# Measured on one H200; 2026-11-20, torch 2.11: bytes of inputs, parameters and outputs, eager and
# compile in ms.
ANCHORS = [
    ("return x @ y", "torch.rand(4096, 4096), torch.rand(4096, 4096)", 201326592, 2.6742, 2.6746),
    (
        "return x @ y",
        "torch.rand(2048, 1 << 20), torch.rand(1 << 20, 1)",
        8594137088,
        2.3196,
        2.3077,
    ),
    ("return x * torch.sigmoid(x)", "torch.rand(4096, 393216)", 12884901888, 7.4607, 3.0237),
    ("return torch.softmax(x, dim=1)", "torch.rand(4096, 393216)", 12884901888, 6.1861, 4.7456),
    (
        "return F.max_pool3d(x, 3, 2, 1, 3)",
        "torch.rand(16, 32, 128, 128, 128)",
        4783063040,
        3.8997,
        5.5004,
    ),
    ("return x.argmax(1)", "torch.rand(128, 4096, 4095)", 8592030720, 2.7287, 2.6653),
    ("return x.cumsum(1)", "torch.rand(32768, 32768)", 8589934592, 4.4788, 2.5919),
    (
        "return F.scaled_dot_product_attention(x, y, z)",
        ", ".join(["torch.rand(32, 32, 512, 1024)"] * 3),
        8589934592,
        24.2753,
        24.5432,
    ),
]


@pytest.mark.parametrize(("forward", "inputs", "anchor_bytes", "eager_ms", "compile_ms"), ANCHORS)
def test_bounds_hold_the_anchors_bytes_and_lie_below_everything_measured(
    forward, inputs, anchor_bytes, eager_ms, compile_ms
) -> None:
    graph = traced(forward, inputs)
    bound = graph_bound(graph, H200, MATCH)
    assert bound.bytes == anchor_bytes
    assert anchor_bytes / 4.8e12 * 1e3 <= bound.time_ms * 1.0001 and bound.time_ms < min(
        eager_ms, compile_ms
    )


@pytest.mark.parametrize(
    ("forward", "inputs", "anchor_bytes", "eager_ms", "compile_ms"), ANCHORS[:4]
)
def test_what_nodes_cost_eager_is_near_what_was_measured(
    forward, inputs, anchor_bytes, eager_ms, compile_ms
) -> None:
    assert eager_estimate_ms(traced(forward, inputs), H200) == pytest.approx(eager_ms, rel=0.3)


def test_views_cost_nothing_and_every_kernel_a_launch() -> None:
    graph = traced("return x.t() + 1", "torch.rand(2, 2)")
    view, add = graph.nodes
    assert node_cost_ms(graph, view, H200, MATCH) == 0.0
    assert H200.launch_ms < node_cost_ms(graph, add, H200, MATCH) < 1.01 * H200.launch_ms


def test_a_measured_device_is_taken_at_its_word() -> None:
    from dataclasses import replace

    graph = traced("return x + 1", "torch.rand(1 << 28)")
    measured = replace(H200, measured=True, dram_bytes_per_s=4.25e12)
    assert eager_estimate_ms(graph, measured) == pytest.approx(
        2 * 4 * 2**28 / 4.25e12 * 1e3 + H200.launch_ms
    )
