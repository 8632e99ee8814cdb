"""The rest of a composed model compiled around its kernels: right, once, and else eager."""

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models_for_tests import model_named
from test_whole_composed import RIGHT, WRONG, ScriptedClock, composed_of, note_forwards, state_of
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch.utils import _pytree as pytree

import kmem
from kmem.records import Budget
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.whole import holding
from kmem.whole.composing import compiled_rest
from kmem.whole.composing.binding import SegmentForward, bind
from kmem.whole.graphs.capture import build_real
from kmem.whole.graphs.source import read_source
from kmem.whole.proving.clock import Wanted, time_whole
from kmem.whole.proving.proof import Proof, Question, find_proof
from kmem.whole.report import write_model_report
from kmem.whole.result import ModelResult
from kmem.whole.state import PieceStatus

#: A block of a CNN and a part of an MLP with a residual, in training: statistics are written.
NET = """
import torch
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(Part() for _ in range(6))
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
        )
    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        y = x.mean((2, 3))
        return y + self.feed(y)
def get_inputs():
    return [torch.randn(2, 4, 6, 6)]
"""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """What is handed to the compiler, in whose place AOTAutograd runs its graphs as they are."""
    seen: list[fx.GraphModule] = []

    def compile_graph(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
        seen.append(graph)
        return aot_eager(graph, list(given))

    monkeypatch.setattr(compiled_rest, "compile_graph", compile_graph)
    return seen


def operators_in(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if str(node.target).startswith("kmem.")]


def same_twice(text: str) -> tuple[Any, torch.nn.Module]:
    """A model as it was built, and another one with its state."""
    torch.manual_seed(3)
    built = build_real(read_source(text))
    other = build_real(read_source(text)).module
    other.load_state_dict(built.module.state_dict())
    if hasattr(other, "hidden"):
        other.hidden = built.module.hidden.clone()
    return built, other


def hold_alike(built: Any, other: torch.nn.Module) -> None:
    """Hold what both return and leave in their buffers to one another, call after call."""
    for _ in range(2):
        expected, spec = pytree.tree_flatten(other(*built.args, **built.kwargs))
        found, same = pytree.tree_flatten(built.module(*built.args, **built.kwargs))
        assert same == spec
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        dict(built.module.named_buffers()), dict(other.named_buffers()), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", ["casts", "keeps_state", "dictionaries", "in_place", "norms"])
def test_a_compiled_rest_computes_what_the_model_does(
    name: str, graphs: list[fx.GraphModule], tmp_path: Path
) -> None:
    text = model_named(name, tmp_path)
    composed = composed_of(text, tmp_path).with_rest("compiled")
    built, other = same_twice(text)
    with torch.no_grad(), kmem.apply(built.module, composed) as handle:
        hold_alike(built, other)
        assert len(graphs) == 1 and operators_in(graphs[0])
        assert "the rest is compiled, served 2 calls" in str(handle)
        copied = copy.deepcopy(built.module)
        torch.testing.assert_close(
            copied(*built.args, **built.kwargs), built.module(*built.args, **built.kwargs)
        )
        assert len(graphs) == 2 and len({id(each.forward) for each in (copied, built.module)}) == 2


@pytest.mark.slow
def test_inductor_compiles_once_what_is_around_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels are operators in one graph; a piece without one is compiled with the rest."""
    if shutil.which("g++") is None:
        monkeypatch.setattr(compiled_rest, "compile_graph", lambda *given: aot_eager(*given))
    place = tmp_path / "net.py"
    place.write_text(NET, encoding="utf-8")
    composed = composed_of(str(place), tmp_path).with_rest("compiled")
    built, other = same_twice(str(place))
    one = composed.kernels[:1]
    with torch.no_grad(), bind(built.module, composed, only=one) as handle:
        hold_alike(built, other)
        (forward,) = handle.forwards
        assert (forward.served, forward.rest.compilations, forward.rest.fault) == (2, 1, "")


def test_what_writes_to_buffers_says_so_to_compilers(
    graphs: list[fx.GraphModule], tmp_path: Path
) -> None:
    place = tmp_path / "net.py"
    place.write_text(NET, encoding="utf-8")
    composed = composed_of(str(place), tmp_path).with_rest("compiled")
    built, other = same_twice(str(place))
    with torch.no_grad(), bind(built.module, composed):
        hold_alike(built, other)
    assert len(operators_in(graphs[0])) == 7
    (data,) = composed.data["segments"]
    piece = next(each for each in data["pieces"] if each["operator"]["changes"])
    assert len(piece["operator"]["changes"]) == 2
    made = compiled_rest.piece_operator(
        piece, composed.directory / "kernels" / f"{piece['kernel']}.py"
    )
    given = [torch.randn(each["shape"]) for each in piece["operator"]["inputs"]]
    given += [torch.rand(each["shape"]) for each in piece["operator"]["state"]]
    torch.library.opcheck(made.overload, given)


def test_gradients_and_a_compiler_that_fails_leave_the_rest_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(compiled_rest, "compile_graph", fail)
    text = model_named("casts", tmp_path)
    composed = composed_of(text, tmp_path, backward=RIGHT).with_rest("compiled")
    built, other = same_twice(text)
    with bind(built.module, composed) as handle:
        built.module(*built.args).sum().backward()
        assert built.module.layer.weight.grad is not None
        assert handle.forwards[0].rest.compilations == 0
        with torch.no_grad():
            with pytest.warns(UserWarning, match="one by one: .* RuntimeError: no compiler"):
                hold_alike(built, other)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                hold_alike(built, other)
        assert "eager, for the rest could not be compiled: RuntimeError: no" in str(handle)
        assert handle.forwards[0].rest.compilations == 1


def test_tensors_that_are_one_are_compiled_for_as_one(
    graphs: list[fx.GraphModule], tmp_path: Path
) -> None:
    text = model_named("strides", tmp_path)
    composed = composed_of(text, tmp_path, inputs=("f32[2, 4]", "f32[2, 4]")).with_rest("compiled")
    model = build_real(read_source(text)).module
    held = torch.randn(4, 4)
    first, second = held[:2], held[2:]
    with torch.inference_mode(), bind(model, composed) as handle:
        for x, y in ((first, first), (first, second), (second, first), (first, held[1:3])):
            torch.testing.assert_close(model(x, y), torch.exp(x) * y)
        (forward,) = handle.forwards
        assert (forward.served, forward.rest.compilations) == (4, 2)


FAILS = """

class ModelNew(Model):
    def forward(self, *inputs):
        super().forward(*inputs)
        raise RuntimeError("no driver")
"""


def test_a_kernel_that_fails_in_a_compiled_rest_leaves_buffers_to_what_it_replaces(
    graphs: list[fx.GraphModule], tmp_path: Path
) -> None:
    text = model_named("norms", tmp_path)
    composed = composed_of(text, tmp_path, FAILS).with_rest("compiled")
    built, other = same_twice(text)
    with torch.no_grad(), bind(built.module, composed) as handle:
        with pytest.warns(UserWarning, match="is not used: .* no driver"):
            hold_alike(built, other)
        assert "no driver" in str(handle)


# --- proved, timed, and kept


def wrong(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
    return lambda *tensors: tuple(each * 1.05 for each in graph(*tensors))


def failing(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
    raise RuntimeError("no compiler")


@pytest.mark.filterwarnings("ignore:Its operators run one by one")
@pytest.mark.parametrize(
    ("name", "kernel", "compiler", "passed", "said"),
    [
        ("norms", RIGHT, aot_eager, True, ""),
        ("casts", RIGHT, wrong, True, "output 0: errs"),
        ("casts", RIGHT, failing, True, "no compiler"),
        ("casts", WRONG, aot_eager, False, ""),
    ],
)
def test_the_compiled_rest_is_held_to_float64_by_itself(
    name: str,
    kernel: str,
    compiler: Callable[..., Any],
    passed: bool,  # noqa: FBT001 - a row of a table
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(compiled_rest, "compile_graph", lambda *given: compiler(*given))
    text = model_named(name, tmp_path)
    composed = composed_of(text, tmp_path, kernel)
    question = Question(text, (), None, "match", str(composed.directory), seed=1, time=False)
    proof = find_proof(replace(question, rests=("eager", "compiled"), draws=2))
    assert proof.passed == passed
    assert list(proof.missing) == (["composed_compiled"] if said else [])
    assert said in proof.missing.get("composed_compiled", "")
    alone = find_proof(replace(question, rests=("compiled",), draws=1))
    assert alone.passed == (passed and not said)


class RestClock(ScriptedClock):
    """Of 20 ms, a kernel saves 1 among eager operators, and a compiled rest saves 8 or 9.

    Kernels save nothing inside a compiled rest, so that they do not pay there.
    """

    def time(self, call: Callable[[], object]) -> float:
        eager_ms = super().time(call)
        forward = self.model.last
        if not isinstance(forward, SegmentForward) or forward.rest is None:
            return eager_ms
        kernels = sum(piece._shell.__class__.__name__ == "ModelNew" for piece in forward._pieces)
        return 11.0 if kernels == len(forward._pieces) else 10.0


def test_the_faster_rest_is_what_a_piece_is_held_in(
    graphs: list[fx.GraphModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = model_named("norms", tmp_path)
    composed = composed_of(text, tmp_path)
    built = build_real(read_source(text))
    note_forwards(built.module)
    clock = RestClock(built.module)
    wanted = Wanted(without=composed.kernels, rests=("eager", "compiled"))
    with torch.no_grad():
        proof = Proof(True, "", **time_whole(built, composed, wanted, clock))
        eager = Proof(
            True, "", **time_whole(built, composed, replace(wanted, rests=("eager",)), clock)
        )
    assert (proof.rest, proof.eager_ms, proof.composed_ms) == ("compiled", 20, 11)
    assert proof.baselines_ms["composed_eager"] == 19
    assert proof.best[0] == "eager"
    assert holding.why_dropped(proof, *composed.kernels).startswith("the whole takes 1.100 of its")
    assert (eager.rest, eager.composed_ms) == ("eager", 19)
    assert holding.why_dropped(eager, *composed.kernels) == ""
    assert len(operators_in(graphs[0])) == 1 and not operators_in(graphs[1])
    assert "forward" not in vars(built.module)

    def only_kernels(graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
        return graph if operators_in(graph) else failing(graph, given)

    monkeypatch.setattr(compiled_rest, "compile_graph", only_kernels)
    with torch.no_grad(), pytest.warns(UserWarning, match="no compiler"):
        found = time_whole(built, composed, wanted, clock)
    lacking = {name for name in found["missing"] if not name.endswith("_graph")}
    assert found["rest"] == "compiled" and not lacking
    assert found["without"] == {name: [[19 / 20, 19 / 20]] for name in composed.kernels}


@pytest.mark.parametrize(
    ("changed", "rests"),
    [
        ({}, [("eager", "compiled"), ("eager",)]),  # what compiling may have ended is asked again
        ({"backward": True}, [("eager",)]),
        ({"piece": RunSettings(Budget(baselines=("eager",)))}, [("eager",)]),
    ],
)
def test_a_piece_is_held_to_the_whole_in_ways_that_could_be_used(
    changed: dict[str, Any],
    rests: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    state = state_of(tmp_path)
    state = replace(state, settings=replace(state.settings, **changed))
    asked: list[Question] = []

    def prove(question: Question, **how: object) -> Proof:
        asked.append(question)
        return Proof(False, "", "it took too long")

    monkeypatch.setattr(holding, "prove", prove)
    question = Question("m.py", (), None, "match", "composed", 0, time=True)
    monkeypatch.setattr(holding, "question_about", lambda *about: question)
    model = SimpleNamespace(present=True, root=tmp_path)
    held = holding.hold_to_the_whole(model, state, "p01_a")
    assert [each.rests for each in asked] == rests
    assert asked[0].without == (("p01_a",) if len(rests) > 1 else ())
    assert held.pieces[0].status is PieceStatus.DROPPED


def test_the_report_says_how_the_rest_runs(tmp_path: Path) -> None:
    proof = Proof(True, "kernels on the GPU", eager_ms=4.0, composed_ms=1.0, ratio=4.0, ratio_low=3)
    proof = replace(proof, baselines_ms={"composed_eager": 3.0}, rest="compiled")
    state = replace(state_of(tmp_path), proof=json.dumps(asdict(proof)))
    text = write_model_report(RunDirectory(tmp_path), state).read_text(encoding="utf-8")
    assert "runs compiled by Inductor around them (the whole takes 3 ms with it eager)." in text
    assert "| composed_eager | 3 |" in text
    assert "kernels for 1 of 2 pieces, the rest compiled" in str(ModelResult(tmp_path, state))


def test_a_way_that_was_timed_apart_counts_as_much_as_one_in_pairs(tmp_path: Path) -> None:
    """A UNet on an H200: 1.11x of eager in pairs, and the compiled model was known to be faster."""
    proof = Proof(True, "kernels on the GPU", eager_ms=9.7, composed_ms=8.0, ratio=1.2, ratio_low=1)
    times = {"compile": 4.0, "compile_graph": 4.2, "composed_graph": 8.4, "composed_eager": 9.0}
    proof = replace(proof, baselines_ms=times, gains={"eager": [1.2, 1.1]})
    assert proof.gain(graph=False) == ("compile", 0.5, 0.5)
    assert proof.gain(graph=True) == ("compile_graph", 0.5, 0.5)
    assert not proof.is_faster
    assert replace(proof, gains={**proof.gains, "compile": [1.5, 1.4]}).gain(graph=False) == (
        "eager",
        1.2,
        1.1,
    )
    state = replace(state_of(tmp_path), proof=json.dumps(asdict(proof)))
    text = write_model_report(RunDirectory(tmp_path), state).read_text(encoding="utf-8")
    assert "as it is called, compile: 0.500x (timed apart, not in pairs)." in text
    assert "the run counts as lost" in text
    assert "0.50x of compile, 0.50x of compile graph" in str(ModelResult(tmp_path, state))


@pytest.mark.parametrize(
    ("times", "said"),
    [({"compile": 10.25, "eager_graph": 9.0}, "; compile takes 10.25 ms, eager 24.9"), ({}, ")")],
)
def test_a_model_without_kernels_is_told_how_it_runs_best(
    times: dict[str, float], said: str, tmp_path: Path
) -> None:
    beginning = json.dumps(asdict(Proof(True, "", eager_ms=24.9, baselines_ms=times)))
    state = replace(state_of(tmp_path), proof="", beginning=beginning, finished="it ended")
    assert str(ModelResult(tmp_path, state)).endswith(said)
    text = write_model_report(RunDirectory(tmp_path), state).read_text(encoding="utf-8")
    assert "| eager | 24.9 | - |" in text.partition("## Ways to run it")[2]
