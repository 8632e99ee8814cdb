"""Pieces in training: their joint graphs, what is saved, and kernels in both halves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import warm
from models_for_tests import model_named
from test_whole_composed import RIGHT, begun, composed_of
from torch import nn
from torch.nn import functional as F

import kmem
from kmem.codegen.chains.epilogue import grow_epilogue
from kmem.devices import named_target
from kmem.errors import OutputError
from kmem.problem.graph import OpGraph
from kmem.problem.operators.table import find_operator
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.tracing.backward import take_apart
from kmem.problem.tracing.calls import Untraceable
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.trace import read_flat_program, trace_problem
from kmem.records import Contract
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.whole import holding
from kmem.whole.composing.binding import Composed, bind
from kmem.whole.cutting.pieces import estimate_cost, find_pieces, find_stretches
from kmem.whole.graphs.capture import build_real, capture
from kmem.whole.graphs.joint import Joint
from kmem.whole.graphs.source import read_source
from kmem.whole.holding import hold_to_the_whole
from kmem.whole.optimizing import next_piece
from kmem.whole.proving.proof import Proof, Question, find_proof, together
from kmem.whole.report import write_model_report
from kmem.whole.state import (
    ModelSettings,
    ModelState,
    PieceState,
    PieceStatus,
    read_state,
    write_state,
)
from kmem.whole.training.groups import with_backwards
from kmem.whole.training.joint_tracing import find_joint

H200 = named_target("h200")


class Net(nn.Module):
    """A forward on submodules by name."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self._call = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._call(self, *inputs)


def mlp(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x + net.out(F.gelu(net.into(net.norm(x))))


def convolved(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.out(F.silu(net.norm(net.into(x))))


def attention(net: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = net.into(x).chunk(3, -1)
    return net.out(torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v)


def parts(net: Any, x: torch.Tensor) -> torch.Tensor:
    turned = torch.cat((-x[..., 8:], x[..., :8]), -1)
    return turned * net.scale + torch.stack((x[:, 0], x[:, 1]), 1).repeat(1, 4, 1)


def activations(net: Any, x: torch.Tensor) -> torch.Tensor:
    some = F.leaky_relu(x) + F.elu(x) + torch.sigmoid(x) * torch.tanh(x) + F.hardtanh(x)
    more = F.hardswish(x) + F.mish(x) + F.softplus(x) + F.log_softmax(x, -1) + x.abs()
    return some + more + F.relu6(x) + F.gelu(x, approximate="tanh") + torch.clamp(x, 0.1)


NETS: dict[str, tuple[Callable[[], Net], tuple[int, ...], tuple[str, ...]]] = {
    "mlp": (
        lambda: Net(mlp, norm=nn.LayerNorm(16), into=nn.Linear(16, 32), out=nn.Linear(32, 16)),
        (4, 8, 16),
        ("layer_norm", "linear", "gelu"),
    ),
    "group norm": (
        lambda: Net(
            convolved,
            norm=nn.GroupNorm(4, 16),
            into=nn.Conv2d(3, 16, 3, padding=1),
            out=nn.Conv2d(16, 4, 1),
        ),
        (2, 3, 8, 8),
        ("conv2d", "silu"),
    ),
    "batch norm": (
        lambda: Net(
            convolved,
            norm=nn.BatchNorm2d(16),
            into=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            out=nn.Conv2d(16, 4, 1),
        ),
        (2, 3, 8, 8),
        ("conv2d", "silu"),
    ),
    "attention": (
        lambda: Net(attention, into=nn.Linear(16, 48), out=nn.Linear(16, 16)),
        (2, 8, 16),
        ("linear", "softmax", "matmul_1"),
    ),
    "activations": (lambda: Net(activations), (4, 16), ()),
    "parts": (lambda: Net(parts, scale=nn.ParameterList()), (4, 8, 16), ()),
}


def joint_of(net: nn.Module, *inputs: torch.Tensor) -> tuple[OpGraph, Joint | None]:
    """A forward as a graph, and with its backward for all that can have gradients."""
    with torch.no_grad():
        program = torch.export.export(net, inputs, strict=False)
    graph = read_flat_program(program, net.training)
    kinds = ("parameter", "input")
    leaves = [
        each.name
        for each in graph.placeholders
        if each.kind in kinds and each.spec is not None and "float" in each.spec.dtype
    ]
    return graph, find_joint(graph, leaves)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_a_joint_graphs_gradients_are_eagers_in_float64(name: str, apart: bool) -> None:
    make, shape, saved = NETS[name]
    torch.manual_seed(1)
    net, x = make(), torch.randn(shape)
    if name == "parts":
        net.scale = nn.Parameter(torch.rand(16))
    graph, joint = joint_of(net, x)
    assert joint is not None and joint.saved == saved
    backward = take_apart(joint.backward) if apart else joint.backward
    net, x = net.double(), x.double().requires_grad_()
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    given: dict[str, torch.Tensor] = {
        each.name: held[each.target] if each.target else x for each in graph.placeholders
    }
    before = {key: value.detach().clone() for key, value in given.items()}
    output = net(x)
    gradient = torch.randn_like(output)
    sources = list(joint.gradients)
    expected = torch.autograd.grad(output, [given[each] for each in sources], gradient)
    with torch.no_grad():
        made = evaluate_graph(joint.forward, before, floating=torch.float64)
        values = {**before, **dict(zip(joint.forward.outputs, made, strict=True))}
        (last,) = joint.gradients_given
        taken = {**{each: values[each] for each in joint.given}, last: gradient}
        found = evaluate_graph(backward, taken, floating=torch.float64)
    torch.testing.assert_close(made[0], output)
    for (source, place), wanted in zip(joint.gradients.items(), expected, strict=True):
        ours = found[place] if place >= 0 else gradient
        torch.testing.assert_close(ours, wanted, rtol=1e-7, atol=1e-7, msg=source)
    for key, value in net.named_buffers():  # running statistics are the forward's alone
        if value.is_floating_point():
            torch.testing.assert_close(before[f"b_{key.replace('.', '_')}"], value)


def test_a_backward_taken_apart_has_operators_that_recipes_know() -> None:
    for name in ("mlp", "attention", "batch norm", "group norm"):
        make, shape, _ = NETS[name]
        _, joint = joint_of(make(), torch.randn(shape))
        assert joint is not None
        unknown = {
            node.target
            for node in take_apart(joint.backward).nodes
            if (row := find_operator(node.target)) is None or row.lowering is None
        }
        assert unknown <= {"aten.convolution_backward.default"}, name


def test_rows_of_equal_values_leave_nothing_to_a_norms_weight() -> None:
    net = Net(lambda net, x: net.norm(x), norm=nn.LayerNorm(768))
    rows = torch.rand(64, 1).expand(64, 768).contiguous()
    graph, joint = joint_of(net, rows)
    assert joint is not None
    held = {"norm.weight": net.norm.weight.detach(), "norm.bias": net.norm.bias.detach()}
    given = {each.name: held.get(each.target, rows) for each in graph.placeholders}
    with torch.no_grad():
        made = evaluate_graph(joint.forward, given)
        values = {**given, **dict(zip(joint.forward.outputs, made, strict=True))}
        (last,) = joint.gradients_given
        taken = {**{each: values[each] for each in joint.given}, last: torch.ones(64, 768)}
        found = evaluate_graph(take_apart(joint.backward), taken)
    assert torch.equal(found[joint.gradients["p_norm_weight"]], torch.zeros(768))


def test_the_derivative_of_an_activation_is_written_with_the_product_before_it() -> None:
    make, shape, _ = NETS["mlp"]
    _, joint = joint_of(make(), torch.randn(shape))
    assert joint is not None
    graph = take_apart(joint.backward)
    products = [node for node in graph.nodes if node.target == "aten.mm.default"]
    runs = [[node.target for node in grow_epilogue(graph, each)] for each in products]
    (run,) = [each for each in runs if "aten.erf.default" in each]
    assert run[-1] == "aten.mul.Tensor" and len(products) == 4


def test_what_has_no_gradient_costs_none() -> None:
    net = Net(lambda net, x: (net.into(x), x.argmax(-1)), into=nn.Linear(16, 16))
    graph, _ = joint_of(net, torch.randn(4, 16))
    joint = find_joint(graph, ("p_into_weight",))
    assert joint is not None
    assert joint.recorded == (0,) and set(joint.gradients) == {"p_into_weight"}
    assert [node.target for node in joint.backward.nodes].count("aten.mm.default") == 1
    assert find_joint(graph, ()) is None


def test_what_autograd_cannot_trace_is_refused_with_the_reason() -> None:
    net = Net(lambda net, x: torch.igamma(x, x + 1))
    with pytest.raises(Untraceable, match="autograd refused it: .*igamma.*not implemented"):
        joint_of(net, torch.randn(4, 16))


MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.into = torch.nn.Linear(16, 48)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.out = torch.nn.Linear(16, 16)
    def forward(self, x):
        q, k, v = self.into(self.norm(x)).chunk(3, -1)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(torch.relu(self.frozen(y))), y.argmax(-1)
def get_inputs():
    return [torch.randn(6, 8, 16)]
"""


RECORDS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))
def get_inputs():
    return [torch.randn(6, 16, requires_grad=True)]
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    place = tmp_path / "net.py"
    place.write_text(MODEL, encoding="utf-8")
    return str(place)


def groups_of(text: str, *, whole: bool = False) -> tuple[Any, Any, Any]:
    captured = capture(read_source(text, mode="train"))
    cost = estimate_cost(captured, H200, Contract())
    find = find_stretches if whole else find_pieces
    groups = find(captured, cost, H200, Contract(), backward=True)
    return (captured, *with_backwards(captured, groups))


def test_attention_stays_the_librarys_between_pieces(model: str) -> None:
    _, groups, left = groups_of(model)
    assert not left
    assert not any("attention" in name for group in groups for name in group.operators)
    assert {"layer_norm", "linear", "relu", "add"} <= {n for g in groups for n in g.operators}
    (last,) = [group for group in groups if "relu" in group.operators]
    assert last.joint is not None
    assert "p_frozen_weight" in last.joint.given  # the gradient goes through it
    assert {"p_frozen_weight", "p_frozen_bias", "x"}.isdisjoint(last.joint.gradients)


def counted(forwards: Any) -> list[nn.Module]:
    """The modules of backwards, as often as they have run."""
    ran: list[nn.Module] = []
    for forward in forwards:
        for piece in forward._pieces:
            if piece._trained is not None:
                piece._trained.backward.register_forward_hook(
                    lambda module, *rest: ran.append(module)
                )
    return ran


def gradients(module: nn.Module, outputs: Any) -> dict[str, torch.Tensor | None]:
    module.zero_grad()
    outputs[0].square().sum().backward()
    return {name: each.grad for name, each in module.named_parameters()}


def test_both_halves_run_and_give_eagers_gradients(model: str, tmp_path: Path) -> None:
    composed = composed_of(model, tmp_path, backward=RIGHT)
    built = build_real(read_source(model))
    expected = gradients(built.module, built.module(*built.args))
    with bind(built.module, composed) as handle:
        ran = counted(handle.forwards)
        found = gradients(built.module, built.module(*built.args))
        assert handle.forwards[0].served == 1
        assert [type(each).__name__ for each in ran] == ["ModelNew"] * 2
        for name, gradient in expected.items():
            assert (gradient is None) is (found[name] is None) is name.startswith("frozen")
            if gradient is not None:
                torch.testing.assert_close(found[name], gradient)
        recorded = built.args[0].clone().requires_grad_()
        built.module(recorded)[0].sum().backward()
        assert handle.forwards[0].reason.startswith("gradients are recorded of what had none")
    assert recorded.grad is not None


def test_a_second_derivative_is_refused_in_a_line(model: str, tmp_path: Path) -> None:
    built = build_real(read_source(model))
    with bind(built.module, composed_of(model, tmp_path, backward=RIGHT)):
        output = built.module(*built.args)[0].sum()
        weights = list(built.module.out.parameters())
        with pytest.raises(RuntimeError, match="first derivative alone") as refused:
            torch.autograd.grad(output, weights, create_graph=True)
    assert "\n" not in str(refused.value)


#: Wrong in what has the model's input's shape.
WRONG_FOR_X = """

class ModelNew(Model):
    def forward(self, *inputs):
        made = super().forward(*inputs)
        return tuple(x * 1.05 if x.shape == (6, 16) else x for x in made)
"""


@pytest.mark.parametrize(
    ("backward", "reason"), [(RIGHT, ""), (WRONG_FOR_X, "gradient of input 0: errs 0.05")]
)
def test_an_input_that_records_gradients_is_proved_to_have_its_own(
    backward: str, reason: str, tmp_path: Path
) -> None:
    place = tmp_path / "net.py"
    place.write_text(RECORDS, encoding="utf-8")
    composed = composed_of(str(place), tmp_path, backward=backward)
    directory = str(composed.directory)
    proof = find_proof(
        Question(str(place), (), None, "match", directory, 1, time=False, backward=True)
    )
    assert proof.passed is not bool(reason) and reason in proof.reason


def test_an_output_without_a_gradient_counts_as_zeros(
    tmp_path: Path,
) -> None:
    place = tmp_path / "net.py"
    text = RECORDS.replace("return self.out(torch.tanh(self.into(x)))", "return self.into(x), y")
    text = text.replace(
        "def forward(self, x):", "def forward(self, x):\n        y = x * self.out.bias[:1]"
    )
    place.write_text(text, encoding="utf-8")
    built = build_real(read_source(str(place)))
    x = built.args[0]
    with bind(built.module, composed_of(str(place), tmp_path, backward=RIGHT)) as handle:
        first, second = built.module(x)
        second.sum().backward(retain_graph=True)
        assert handle.forwards[0].served == 1
        torch.testing.assert_close(x.grad, built.module.out.bias[:1].detach().expand(6, 16))
        assert not built.module.into.weight.grad.any()
        x.grad = None
        (first.sum() + second.sum()).backward()
    expected = built.module.into.weight.sum(0) + built.module.out.bias[0]
    torch.testing.assert_close(x.grad, expected.detach().expand(6, 16))


def test_the_whole_between_what_stays_the_librarys_is_a_piece_in_training(tmp_path: Path) -> None:
    text = model_named("blocks", tmp_path)
    _, groups, _ = groups_of(text, whole=True)
    assert groups and all(group.is_stretch and group.joint is not None for group in groups)


def test_a_backward_is_a_problem_whose_sizes_follow_from_each_other(
    model: str, tmp_path: Path
) -> None:
    composed_of(model, tmp_path, backward=RIGHT)
    _, groups, _ = groups_of(model)
    for group in groups:
        place = tmp_path / "pieces" / f"{group.backward_name}.py"
        assert trace_problem(execute_problem(load_problem(place))).opaque_reason is None
        small = place.read_text(encoding="utf-8").replace("BATCH = 6\n", "BATCH = 5\n")
        place.write_text(small, encoding="utf-8")
        problem: Any = execute_problem(load_problem(place))
        inputs = problem.get_inputs()
        assert problem.BATCH == 5 and inputs[0].shape[0] == 5
        problem.Model(*problem.get_init_inputs())(*inputs)


def test_a_composed_model_of_another_version_is_refused(model: str, tmp_path: Path) -> None:
    composed = composed_of(model, tmp_path, backward=RIGHT)
    place = composed.directory / "composed.json"
    place.write_text(json.dumps({**composed.data, "version": 1}), encoding="utf-8")
    with pytest.raises(OutputError, match="another version of kmem; run the model again"):
        kmem.load(composed.directory)


# --- which halves are kept


def pair_of(directory: Path, *, holds: tuple[str, ...] = ()) -> ModelState:
    settings = ModelSettings("m.py", (), "train", 3.0, RunSettings(), backward=True)
    forward = PieceState("p1", "", ("linear",), 1, 1.0, 0.1, (), pair="p1_backward", holds=holds)
    forward = replace(forward, status=PieceStatus.KEPT, kernel_ms=0.5)
    backward = replace(
        forward, name="p1_backward", eager_ms=2.0, pair="p1", status=PieceStatus.WAITING
    )
    state = ModelState(settings, "M", "h200", False, 3.0, (forward, backward), ())
    write_state(RunDirectory(directory), state)
    return state


@pytest.mark.parametrize(
    ("ratios", "kept"),
    [
        ({"p1_backward": 0.9}, ["p1_backward"]),
        ({"p1+p1_backward": 0.8}, ["p1", "p1_backward"]),
        ({}, []),
    ],
)
def test_halves_that_pay_together_alone_are_held_to_the_whole_at_once(
    ratios: Mapping[str, float], kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def prove(question: Question, **how: object) -> Proof:
        (name,) = question.without
        asked.append(name)
        ratio = ratios.get(name, 1.02)
        return Proof(True, "kernels", without={name: [[ratio, ratio]]})

    monkeypatch.setattr(holding, "prove", prove)
    # another that is kept, or a piece would be held to eager
    monkeypatch.setattr(
        holding, "question_about", lambda *given: Question("m", (), None, "match", "d", 1, True)
    )
    other = PieceState("p2", "", (), 1, 1.0, 0.1, (), PieceStatus.KEPT, kernel_ms=0.5)
    state = pair_of(tmp_path)
    state = replace(state, pieces=(*state.pieces, other))
    opened: Any = SimpleNamespace(present=True, say=lambda text: None)
    state = hold_to_the_whole(opened, state, "p1")
    assert state.piece("p1").is_outdone
    tried = replace(state.piece("p1_backward"), status=PieceStatus.KEPT, kernel_ms=0.5)
    state = hold_to_the_whole(opened, state.with_piece(tried), "p1_backward")
    assert [each.name for each in state.kept] == [*kept, "p2"]
    both = [] if "p1_backward" in ratios else ["p1+p1_backward"]
    assert asked == ["p1", "p1_backward", *both]
    assert together("p1_backward", "p1") == "p1+p1_backward"


def test_what_a_stretch_holds_waits_for_both_of_its_halves(tmp_path: Path) -> None:
    state = pair_of(tmp_path, holds=("p2",))
    dropped = replace(state.pieces[0], status=PieceStatus.DROPPED)
    part = PieceState("p2", "", (), 1, 9.0, 0.1, ())
    state = replace(state, pieces=(dropped, state.pieces[1], part))
    chosen, _ = next_piece(state, 2.0)
    assert chosen is not None and chosen.name == "p1_backward"
    kept = replace(state.pieces[1], status=PieceStatus.KEPT)
    state = state.with_piece(kept).without_held(kept)
    assert state.piece("p2").reason == "it is in p1"
    state = state.with_dropped(kept, "slow")
    assert state.piece("p2").status is PieceStatus.WAITING


def test_a_report_says_which_halves_are_kernels(tmp_path: Path) -> None:
    state = replace(
        pair_of(tmp_path), finished="every piece was tried", proof='{"passed": true, "how": "x"}'
    )
    assert read_state(tmp_path) == replace(state, finished="", proof="")
    text = write_model_report(RunDirectory(tmp_path), state).read_text(encoding="utf-8")
    assert "One forward and backward by its operators" in text
    assert "of 0 pieces are kernels, the forward alone of 1, the backward alone of 0" in text


# --- a run


TINY = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.scale = torch.nn.Parameter(torch.rand(64) + 0.5)
    def forward(self, x):
        return torch.nn.functional.silu(self.norm(x) * self.scale) + x, x
def get_inputs():
    return [torch.randn(64, 64)]
"""


@pytest.mark.slow
def test_kernels_of_both_halves_are_found_by_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    place, out = tmp_path / "tiny.py", tmp_path / "out"
    place.write_text(TINY, encoding="utf-8")
    asked = ["optimize", str(place), "--pieces", "--mode", "train", "--backward"]
    asked += ["--target", "h200", "--out", str(out), "--rounds", "0", "--candidates", "4"]
    asked += ["--minutes", "8", "--least-gain", "0"]
    command = [sys.executable, "-m", "kmem", *asked]
    first = warm.WarmPopen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and not begun(out):
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    ended = warm.run("runs", "resume", str(out), "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["proof"]["how"] == "kernels in the interpreter"
    composed = kmem.load(out)
    found = composed if isinstance(composed, Composed) else None
    built = build_real(read_source(str(place), mode="train"))
    expected = gradients(built.module, built.module(*built.args))
    monkeypatch.setenv("KMEM_STRICT", "1")
    handle = kmem.apply(built.module, composed)
    assert found is None or len(found.kernels) == 2
    ran = counted(handle.forwards)
    ours = gradients(built.module, built.module(*built.args))
    assert [type(each).__name__ for each in ran] == ["ModelNew"]
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-4)
    handle.undo()
