"""Tracing a forward to plain data: what is kept, what is opaque and why."""

from dataclasses import replace

import pytest
import torch

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.problem.graph import Literal, Ref
from kmem.problem.source.load import execute_problem
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Precision, Problem
from kmem.testing import import_source, trace_source


def source_of(
    forward: str, inputs: str = "torch.rand(4, 8)", init: str = "pass", arguments: str = "x"
) -> str:
    return f"""
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]
"""


def traced(*arguments: str, **named: str):
    return trace_source(source_of(*arguments, **named))[1]


def test_composite_operators_stay_whole_with_shapes_dtypes_and_strides() -> None:
    graph = traced("return torch.softmax(x.t(), dim=1)")
    assert [node.target for node in graph.nodes] == ["aten.t.default", "aten.softmax.int"]
    assert graph.node("t").spec.stride == (1, 8) and graph.node("t").spec.shape == (8, 4)
    assert graph.opaque_reason is None and not graph.returns_tuple and not graph.mode_matters


def test_the_type_of_another_value_is_a_cast() -> None:
    graph = traced("return (x.float() * 2).type_as(x)", inputs="torch.rand(4, 8).half()")
    cast = graph.nodes[-1]
    assert cast.target == "aten.to.dtype" and cast.args[1] == Literal("torch.float16")
    (found,) = evaluate_graph(graph, {"x": torch.rand(4, 8).half()})
    assert found.dtype == torch.float16


def test_parameters_and_buffers_carry_their_state_dict_names() -> None:
    graph = traced("return self.norm(x)", init="self.norm = torch.nn.BatchNorm1d(8)")
    kinds = {placeholder.target: placeholder.kind for placeholder in graph.placeholders}
    assert (
        kinds["norm.weight"] == "parameter"
        and kinds["norm.running_mean"] == "buffer"
        and kinds[""] == "input"
    )
    assert graph.training and graph.mode_matters


def test_a_trace_in_one_mode_is_the_same_program_whose_mode_counts() -> None:
    module, graph = trace_source(source_of("return torch.relu(x)"))
    once = trace_problem(module, both_modes=False)
    assert once.mode_matters and not graph.mode_matters
    assert replace(once, mode_matters=False) == graph


@pytest.mark.parametrize(
    ("init", "exports", "matters"),
    [
        ("torch.nn.BatchNorm1d(8)", 1, True),  # it counts batches, in training alone
        ("torch.nn.BatchNorm1d(8).eval()", 2, False),
        ("torch.nn.BatchNorm1d(8, track_running_stats=False)", 2, False),
        ("torch.nn.Dropout(0.5)", 2, True),
        ("torch.nn.LayerNorm(8)", 2, False),
    ],
)
def test_the_other_mode_is_traced_where_one_does_not_say_that_modes_differ(
    init: str, exports: int, matters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    export = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *given, **how: asked.append(1) or export(*given, **how)
    )
    graph = traced("return self.n(x)", init=f"self.n = {init}")
    assert (len(asked), graph.mode_matters) == (exports, matters)


def test_scalar_inputs_keep_their_value() -> None:
    graph = traced("return x * s", inputs="torch.rand(4), 2.5", arguments="x, s")
    assert [
        (placeholder.spec is None, placeholder.value) for placeholder in graph.placeholders
    ] == [(False, None), (True, 2.5)]


def test_several_outputs_and_a_list_are_a_tuple() -> None:
    graph = traced("return [x + 1, x.max(dim=1).values]")
    assert graph.returns_tuple and len(graph.outputs) == 2
    assert graph.spec(graph.outputs[1]).shape == (4,)


@pytest.mark.parametrize(
    ("expression", "value", "shape"),
    [
        ("torch.tensor(0.5)", 0.5, ()),
        ("torch.tensor([[1, 2], [3, 4]])", ((1, 2), (3, 4)), (2, 2)),
        ("torch.tensor(float('inf'))", float("inf"), ()),
    ],
)
def test_small_constants_made_in_forward_are_placeholders_with_their_numbers(
    expression, value, shape
) -> None:
    graph = traced(f"return torch.minimum(x, {expression})", inputs="torch.rand(2, 2)")
    constant = next(
        placeholder for placeholder in graph.placeholders if placeholder.kind == "constant"
    )
    assert constant.value == value and constant.spec.shape == shape
    # the copies around it are gone
    assert [node.target for node in graph.nodes] == ["aten.minimum.default"]
    assert graph.nodes[0].args[1] == Ref(constant.name)


def test_an_emitted_module_makes_the_constants_itself() -> None:
    source = source_of(
        "return torch.min(x, torch.tensor(0.25)) + torch.tensor([1.0, 2.0])",
        inputs="torch.rand(3, 2)",
    )
    module, graph = trace_source(source)
    text = assemble_module("constants", source, [WorkloadPlan("full", graph, ())]).source
    emitted = import_source(text)
    x = torch.rand(3, 2)
    with torch.no_grad():
        assert torch.equal(emitted._forward(emitted.ModelNew(), x), module.Model()(x))


def test_constants_count_for_the_identity_of_a_graph() -> None:
    first, second = (
        traced(f"return torch.minimum(x, torch.tensor({value}))") for value in (0.5, 0.25)
    )
    assert (
        first.hash != second.hash
        and first.hash == traced("return torch.minimum(x, torch.tensor(0.5))").hash
    )


@pytest.mark.parametrize(
    ("forward", "named", "reason"),
    [
        ("return x if x.sum() > 0 else -x", {}, "torch.export refused it"),
        ("return {'y': x}", {}, "it returns a dict"),
        (
            "return x.to(torch.uint16).float()",
            {},
            "it computes with a tensor of dtype uint16",
        ),
        ("return x, [x]", {}, "it returns a nested structure"),
        (
            "return x + len(y)",
            {"inputs": "torch.rand(2), [torch.rand(2)]", "arguments": "x, y"},
            "an input of type list",
        ),
        (
            "return x + self.state",
            {"init": "self.state = torch.rand(4, 8)"},
            "neither input, parameter nor buffer",
        ),
        (
            "return x + self.state",  # too many elements for numbers of the graph
            {"init": "self.state = torch.rand(40, 8)", "inputs": "torch.rand(40, 8)"},
            "a tensor of 320 elements that is neither input, parameter nor buffer",
        ),
        (
            "y = x + self.state\n        self.state.copy_(x)\n        return y",  # read first
            {"init": "self.state = torch.rand(40, 8)", "inputs": "torch.rand(40, 8)"},
            "a tensor of 320 elements that is neither input, parameter nor buffer",
        ),
        (
            "self.state.copy_(x)\n        return self.state * 2",  # as another type
            {
                "init": "self.state = torch.rand(40, 8, dtype=torch.float64)",
                "inputs": "torch.rand(40, 8)",
            },
            "a tensor of 320 elements that is neither input, parameter nor buffer",
        ),
        (
            "raise RuntimeError('first line\\nsecond')",
            {},
            "torch.export refused it: RuntimeError: first line",
        ),
    ],
)
def test_what_cannot_be_traced_is_opaque_with_a_reason_of_one_line(forward, named, reason) -> None:
    graph = traced(forward, **named)
    assert graph.nodes == () and "\n" not in graph.opaque_reason
    assert reason in graph.opaque_reason


def test_a_tensor_that_is_written_before_it_is_read_is_none_of_the_module() -> None:
    graph = traced(
        "self.state.copy_(x)\n        self.state = torch.tanh(self.state + self.state)\n"
        "        return x + self.state",
        init="self.state = torch.rand(40, 8)",
        inputs="torch.rand(40, 8)",
    )
    assert graph.opaque_reason is None
    assert [each.kind for each in graph.placeholders] == ["input"]
    targets = [node.target for node in graph.nodes]
    assert targets == [
        "aten.clone.default",
        "aten.add.Tensor",
        "aten.tanh.default",
        "aten.add.Tensor",
    ]
    x = torch.randn(40, 8)
    (result,) = evaluate_graph(graph, {graph.placeholders[0].name: x})
    torch.testing.assert_close(result, x + torch.tanh(2 * x))


def test_a_constructor_that_reads_values_is_built_for_real() -> None:
    graph = traced("return x * self.rate", init="self.rate = torch.linspace(0, 1, 3)[1].item()")
    assert graph.opaque_reason is None and graph.nodes[0].args[1] == 0.5


def test_tracing_takes_no_memory_for_inputs_or_parameters() -> None:
    graph = traced(
        "return self.linear(x)",
        inputs="torch.rand(1 << 20, 1 << 20)",
        init="self.linear = torch.nn.Linear(1 << 20, 1 << 20)",
    )
    assert graph.opaque_reason is None and graph.spec(graph.outputs[0]).bytes == 4 << 40


def test_bf16_casts_module_and_floating_inputs_before_tracing() -> None:
    init = (
        "self.norm = torch.nn.BatchNorm1d(8); self.rnn = torch.nn.GRU(8, 3); self.rnn.bias_hh_l0 = "
        "self.rnn.bias_ih_l0"
    )
    source = source_of("return self.rnn(self.norm(x))[0]", init=init)
    graph = trace_problem(execute_problem(Problem("inline", "inline.py", source)), Precision.BF16)
    assert graph.opaque_reason is None, graph.opaque_reason
    # the batch counter stays an integer
    assert {placeholder.spec.dtype for placeholder in graph.placeholders} == {"bfloat16", "int64"}
    assert graph.spec(graph.outputs[0]).dtype == "bfloat16"


def test_devices_and_dtypes_in_arguments_become_expressions() -> None:
    graph = traced("return x + torch.zeros(8, dtype=torch.float32, device=x.device)")
    zeros = graph.node("zeros")
    assert zeros.kwargs["dtype"] == Literal("torch.float32") and zeros.kwargs["device"] == Literal(
        "_DEVICE"
    )


NAMES_A_GPU = """
        ramp = torch.arange(8, device=torch.device("cuda"))
        with torch.device("cuda:0"):
            ones = torch.ones(8)
        moved = self.scale.to("cuda", torch.float16, non_blocking=True).to(device="cuda").float()
        return torch.relu(x * self.weight) + ramp + ones + moved.cuda()"""


def test_a_gpu_that_code_names_is_where_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    init = (
        "self.weight = torch.nn.Parameter(torch.ones(8)); "
        "self.register_buffer('scale', torch.ones(8, device='cuda')); self.to('cuda')"
    )
    inputs = "torch.rand(4, 8, device='cuda')"
    text = source_of(NAMES_A_GPU.strip(), inputs, init)
    assert trace_problem(execute_problem(Problem("p", "p.py", text))).opaque_reason is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    graph = trace_problem(execute_problem(Problem("p", "p.py", text)))
    assert graph.opaque_reason is None
    here = text.replace("device='cuda'", "device='cpu'").replace('"cuda:0"', '"cpu"')
    here = here.replace('torch.device("cuda")', "None").replace(".cuda()", "")
    here = (
        here.replace('device="cuda"', "dtype=None")
        .replace('"cuda", ', "")
        .replace("'cuda'", "'cpu'")
    )
    plain = trace_problem(execute_problem(Problem("p", "p.py", here)))
    assert plain.hash == graph.hash


def test_torch_is_quiet_only_inside_the_block() -> None:
    import logging

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with pytest.raises(ValueError, match="inside"), quiet_fake_tensors():
        assert logger.disabled
        raise ValueError("inside")
    assert not logger.disabled
