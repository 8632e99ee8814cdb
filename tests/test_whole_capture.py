"""What a model may be, and the graphs that are made of it."""

from pathlib import Path

import pytest
import torch
from models_for_tests import model_named
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from kmem.cli.display.whole import describe_plan
from kmem.devices import named_target
from kmem.errors import ProblemError
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.records import Contract, Precision
from kmem.whole.cutting.pieces import estimate_cost
from kmem.whole.cutting.values import given_values
from kmem.whole.graphs.capture import Captured, build_real, capture, moved
from kmem.whole.graphs.source import read_source

H200 = named_target("h200")
CONFIG = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
"intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "vocab_size": 100}"""


def captured_equals_model(text: str) -> Captured:
    """Capture a model, and hold the graph's outputs to the model's own."""
    source = read_source(text)
    captured = capture(source)
    segment = captured.segments[0]
    assert segment.path == ""
    torch.manual_seed(0)
    built = build_real(source)
    with torch.no_grad():
        given = given_values(segment.graph, built)
        copies = {
            name: each.clone() if hasattr(each, "clone") else each for name, each in given.items()
        }
        expected = pytree.tree_leaves(built.module(*built.args, **built.kwargs))
        found = evaluate_graph(segment.graph, copies)
    assert len(segment.leaves) == len(expected)
    for leaf, value in zip(segment.leaves, expected, strict=True):
        if isinstance(leaf, tuple):
            assert leaf == (value,)
        else:
            torch.testing.assert_close(found[leaf], value, rtol=1e-3, atol=1e-3)
    return captured


@pytest.mark.parametrize("name", ["casts", "keeps_state", "dictionaries", "in_place", "blocks"])
def test_a_graph_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    captured = captured_equals_model(model_named(name, tmp_path))
    assert captured.left == ()
    in_place = [node for node in captured.segments[0].graph.nodes if node.is_in_place]
    assert len(in_place) == (1 if name == "keeps_state" else 0)  # its state must be written


def test_a_model_that_keeps_a_tensor_in_an_attribute_says_so(tmp_path: Path) -> None:
    captured = capture(read_source(model_named("keeps_state", tmp_path)))
    assert captured.notes == ("hidden is a tensor in an attribute and is treated as a buffer",)


def test_sizes_that_depend_on_values_cut_the_model_at_its_borders(tmp_path: Path) -> None:
    captured = capture(read_source(model_named("routes", tmp_path)))
    assert [segment.path for segment in captured.segments] == ["into", "gate"]
    assert ("experts", "values decide its shapes") in captured.left
    assert captured.left[0] == ("", "sizes inside depend on values")
    assert {node.module for node in captured.segments[0].graph.nodes} == {"into.0", "into.1"}


@pytest.mark.parametrize(("name", "partly"), [("routes", True), ("blocks", False)])
def test_a_plan_says_that_its_time_lacks_what_values_decide(
    name: str, partly: bool, tmp_path: Path
) -> None:
    captured = capture(read_source(model_named(name, tmp_path)))
    cost = estimate_cost(captured, H200, Contract())
    said = describe_plan(captured, cost, [], [], H200, 3.0).splitlines()[0]
    assert ("(estimated, without what is left as it is written)" in said) is partly
    assert ("(estimated)" in said) is not partly


def test_inputs_are_moved_with_their_strides() -> None:
    base = torch.randn(4, 32)
    for value in (base[:1, ::2].expand(4, 16), base[:, 1::2], base.t(), base[:0, ::2]):
        there = moved(value, "meta")
        assert there.device.type == "meta" and there.shape == value.shape
        assert not value.numel() or there.stride() == value.stride()
    assert moved(3, "meta") == 3


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrence_on_fake_tensors_takes_one_step(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = getattr(torch.nn, kind)(5, 6, 2, batch_first=True, bidirectional=True)
    x = torch.randn(3, 70, 5)
    expected = pytree.tree_leaves(net(x))
    name = {"RNN": "rnn_tanh"}.get(kind, kind.lower())
    operator = getattr(torch.ops.aten, name).input
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    before, steps = operator.py_kernels[key], []

    def noted(given: torch.Tensor, *others: object) -> object:
        steps.append(given.shape[1])
        return before(given, *others)

    monkeypatch.setitem(operator.py_kernels, key, noted)
    operator._dispatch_cache.clear()
    with torch.no_grad(), quiet_fake_tensors():
        program = torch.export.export(net, (x,), strict=False)
        with pytest.raises(RuntimeError):
            torch.export.export(net, (x[..., :4],), strict=False)
    operator._dispatch_cache.clear()
    found = [node.meta["val"] for node in program.graph.nodes if node.target == operator][0]
    assert set(steps) == {1}
    for one, two in zip(found, expected, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (two.shape, two.stride(), two.dtype)


def test_a_configuration_of_transformers_is_a_model_with_random_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    source = read_source(str(tmp_path), ["input_ids=i64[2, 16]<100"])
    captured = capture(source, Precision.BF16)
    (segment,) = captured.segments
    weights = [each for each in segment.graph.placeholders if each.kind == "parameter"]
    assert {each.spec.dtype for each in weights} == {"bfloat16"}
    assert not segment.graph.training


def test_an_importable_class_takes_its_arguments_and_inputs_in_words() -> None:
    captured = capture(
        read_source("torch.nn:Linear(32, out_features=8)", ["bf16[4, 32]"], mode=None)
    )
    assert captured.parameters == 32 * 8 + 8


@pytest.mark.parametrize(
    ("text", "inputs", "reason"),
    [
        ("torch.nn:Linear(3, 4)", [], "gives no inputs"),
        ("torch.nn:Linnear(3)", [], "has no Linnear"),
        ("torch.nn:Linear(x)", [], "are no literals"),
        ("no.such.package:Net", [], "cannot import no.such.package"),
        ("torch.nn:Linear(3, 4)", ["f32(8, 3)"], "is no input"),
        ("nowhere.py", [], "No problem file at nowhere.py"),
        ("builtins:int(3)", ["f32[3]"], "must make a module"),
    ],
)
def test_what_is_no_model_is_refused_with_the_remedy(
    text: str, inputs: list[str], reason: str
) -> None:
    with pytest.raises(ProblemError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        capture(read_source(text, inputs))


def test_a_view_of_what_attention_returns_may_copy(tmp_path: Path) -> None:
    """Heads lie otherwise on a GPU and in float64 than where the graph was traced."""
    place = tmp_path / "heads.py"
    place.write_text(
        "import torch\n"
        "import torch.nn.functional as F\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line = torch.nn.Linear(32, 32)\n"
        "    def forward(self, x):\n"
        "        heads = self.line(x).view(2, 6, 4, 8).transpose(1, 2)\n"
        "        y = F.scaled_dot_product_attention(heads, heads, heads)\n"
        "        return self.line(y.transpose(1, 2).contiguous().view(2, 6, 32))\n"
        "def get_inputs():\n"
        "    return [torch.randn(2, 6, 32)]\n"
    )
    source = read_source(str(place))
    captured = capture(source)
    targets = [node.target for node in captured.segments[0].graph.nodes]
    assert targets.count("aten.view.default") == targets.count("aten.reshape.default") == 1
    built = build_real(source)
    with torch.no_grad():
        expected = built.module(*built.args)
        with sdpa_kernel(SDPBackend.MATH):
            (found,) = evaluate_graph(
                captured.segments[0].graph, given_values(captured.segments[0].graph, built)
            )
    assert torch.allclose(found, expected, atol=1e-6)
