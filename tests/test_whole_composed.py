"""A model put together again from its pieces: right, guarded, undone, and refused when wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import warm
from models_for_tests import model_named
from torch.utils import _pytree as pytree

import kmem
from kmem.cli import cli
from kmem.devices import named_target
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import execute_problem, load_problem
from kmem.records import Contract, Precision
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.whole.composing import compiled_rest
from kmem.whole.composing.binding import Composed, SegmentForward, bind, read_composed
from kmem.whole.composing.compose import EAGER_REST, write_composed
from kmem.whole.cutting.extract import write_pieces
from kmem.whole.cutting.pieces import EXPECTED_SPEED_OF_LIGHT, estimate_cost, find_pieces
from kmem.whole.graphs.capture import build_real, capture
from kmem.whole.graphs.source import read_source
from kmem.whole.holding import why_dropped
from kmem.whole.optimizing import (
    asked_anew,
    is_over,
    next_piece,
    reached_so_far,
    why_finished,
)
from kmem.whole.proving import comparing
from kmem.whole.proving.clock import Wanted, _reason, time_whole
from kmem.whole.proving.gpu_clock import Clock
from kmem.whole.proving.proof import Proof, Question, find_proof
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
from kmem.whole.turns import lacks_memory

H200 = named_target("h200")
#: A kernel that runs what it replaces, one that leaves buffers as they are, and one that is wrong
#: by a little.
RIGHT = """

class ModelNew(Model):
    def forward(self, *inputs):
        return super().forward(*inputs)
"""
FORGETFUL = """

class ModelNew(Model):
    def forward(self, *inputs):
        before = [each.clone() for each in self.buffers()]
        made = super().forward(*inputs)
        for each, value in zip(self.buffers(), before):
            each.copy_(value)
        return made
"""
WRONG = RIGHT.replace("forward(*inputs)", "forward(*inputs) * 1.05")
#: One that writes to what it was given, once it has read it.
OVERWRITING = """

class ModelNew(Model):
    def forward(self, *inputs):
        made = super().forward(*inputs)
        for each in inputs:
            if each.is_floating_point() and not each.requires_grad:
                each.mul_(2.0)
        return made
"""


def composed_of(
    text: str,
    directory: Path,
    kernel: str = RIGHT,
    *,
    backward: str | None = None,
    inputs: Sequence[str] = (),
) -> Composed:
    """Every piece of a model replaced by a kernel that ends in such a class.

    Args:
        backward: what those of backwards end in, for a model in training; "" for none.
    """
    source = read_source(text, inputs)
    captured = capture(source)
    is_trained = backward is not None
    cost = estimate_cost(captured, H200, Contract())
    groups = find_pieces(captured, cost, H200, Contract(), backward=is_trained)
    if is_trained:
        groups, _ = with_backwards(captured, groups)
    place = directory / "pieces"
    write_pieces(RunDirectory(place), source, captured, groups, Precision.MATCH)
    kernels, problems = {}, {}
    halves = {group.name: kernel for group in groups}
    halves |= {group.backward_name: backward for group in groups if group.joint is not None}
    for name, ending in halves.items():
        init = execute_problem(load_problem(place / f"{name}.py")).get_init_inputs()
        written = (place / f"{name}.py").read_text(encoding="utf-8")
        problems[name] = written, init
        if ending:
            kernels[name] = written + ending, init
    write_composed(
        directory / "composed", captured, kernels, groups, problems=problems, backward=is_trained
    )
    found = kmem.load(directory / "composed")
    assert isinstance(found, Composed)
    return found


@pytest.mark.parametrize(
    "name", ["casts", "keeps_state", "dictionaries", "in_place", "blocks", "routes"]
)
def test_a_composed_model_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    text = model_named(name, tmp_path)
    composed = composed_of(text, tmp_path)
    torch.manual_seed(3)
    built = build_real(read_source(text))
    names = list(built.module.state_dict())
    torch.manual_seed(4)
    other = build_real(read_source(text)).module
    other.load_state_dict(built.module.state_dict())
    if name == "keeps_state":
        other.hidden = built.module.hidden.clone()
    with torch.no_grad():
        handle = kmem.apply(built.module, composed)
        for _ in range(2):  # what is kept from call to call is kept
            expected, spec = pytree.tree_flatten(other(*built.args, **built.kwargs))
            found, same = pytree.tree_flatten(built.module(*built.args, **built.kwargs))
            assert same == spec
            for one, two in zip(found, expected, strict=True):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
    assert all(forward.served and not forward.passed_on for forward in handle.forwards)
    assert list(built.module.state_dict()) == names
    handle.undo()
    assert "forward" not in vars(built.module)


def test_values_that_share_memory_are_told_apart_from_those_that_do_not(tmp_path: Path) -> None:
    """Buffers that are one, dropout that returns its input, results written elsewhere, an input
    given twice."""
    text = model_named("aliases", tmp_path)
    composed = composed_of(text, tmp_path)
    ours, other = (build_real(read_source(text)).module for _ in range(2))
    x, y = torch.randn(4, 16), torch.randn(4, 16)
    with torch.no_grad(), bind(ours, composed) as handle:
        for args in ((x, y), (x, x), (y, x)):
            torch.testing.assert_close(ours(*args), other(*args))
            torch.testing.assert_close(ours.log, other.log)
        assert handle.forwards[0].served == 3


def test_a_call_that_the_graph_was_not_made_for_runs_the_model(tmp_path: Path) -> None:
    text = model_named("blocks", tmp_path)
    model = build_real(read_source(text)).module
    x = torch.randn(6, 20, 64)
    with bind(model, composed_of(text, tmp_path)) as handle:
        (forward,) = handle.forwards
        model(x).sum().backward()
        assert forward.reason.startswith("gradients are recorded, for which it was not made")
        assert model.head.weight.grad is not None
        with torch.no_grad():
            assert model(x[:3]).shape == (3, 10)
            assert "captured was" in forward.reason
            model.train()
            model(x)
            assert "another mode" in forward.reason
            model.eval()
            model.layers[1].norm.train()
            model(x)
            assert "another mode" in forward.reason
            model.eval()
            seen: list[object] = []
            hook = model.head.register_forward_hook(lambda *called: seen.append(called))
            model(x)
            assert seen and "hooks" in forward.reason
            hook.remove()
            assert forward.served == 0
            model(x)
            assert forward.served == 1 and "served 1 calls" in str(handle)
    with pytest.raises(ValueError, match="no layers.0.norm.weight"):
        bind(torch.nn.Linear(3, 3), composed_of(text, tmp_path))


def test_weights_that_are_loaded_later_are_those_that_kernels_read(tmp_path: Path) -> None:
    text = model_named("dictionaries", tmp_path)
    built = build_real(read_source(text))
    with torch.no_grad(), bind(built.module, composed_of(text, tmp_path)):
        built.module.layer.weight = torch.nn.Parameter(torch.zeros(48, 48))
        built.module.again.weight = built.module.layer.weight
        found = built.module(*built.args, **built.kwargs)
        torch.testing.assert_close(
            found["parts"][0], torch.relu(built.module.again.bias).expand(4, 48)
        )


@pytest.mark.parametrize(
    ("name", "kernel", "reason"),
    [
        ("casts", RIGHT, ""),
        ("keeps_state", RIGHT, ""),  # in an attribute, which no state_dict has
        ("norms", RIGHT, ""),
        ("strides", RIGHT, ""),  # expanded, and with gaps
        ("casts", WRONG, "output 0: errs"),
        ("norms", FORGETFUL, "buffer norm.running_mean: errs"),
        ("counts", RIGHT, "of the traced graph is not the model's"),
        ("draws", RIGHT, ""),
        ("draws", WRONG, "errs"),
        ("draws_by_value", RIGHT, "draws random numbers (bernoulli)"),
        ("casts_inside", RIGHT, ""),
        ("casts_inside", WRONG, "errs"),
        ("averages", RIGHT, ""),
        ("casts", OVERWRITING, "input 0 afterwards: errs"),
    ],
)
def test_the_whole_is_held_to_float64(name: str, kernel: str, reason: str, tmp_path: Path) -> None:
    text = model_named(name, tmp_path)
    composed = composed_of(text, tmp_path, kernel)
    question = Question(text, (), None, "match", str(composed.directory), seed=1, time=False)
    proof = find_proof(question)
    assert proof.how == ("" if "by_value" in name else "kernels in the interpreter")
    assert proof.passed is not bool(reason) and reason in proof.reason
    assert proof.error > 0 or reason


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_model_writes_to_an_input_must_be_written(
    backward: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = model_named("averages", tmp_path)
    source = read_source(text)
    captured, built = capture(source), build_real(source)

    @contextmanager
    def on_copies(forwards: Sequence[SegmentForward]) -> Iterator[None]:
        own = built.module.forward
        built.module.forward = lambda *given: own(*(each.clone() for each in given))
        yield
        del built.module.forward

    asked = built, captured, {EAGER_REST: ()}, Precision.MATCH, 1.0
    with torch.set_grad_enabled(backward):  # what is written then records gradients
        assert comparing.compare(*asked)[EAGER_REST][2] == ""
        monkeypatch.setattr(comparing, "installed", on_copies)
        assert "input 1 afterwards: errs" in comparing.compare(*asked)[EAGER_REST][2]


#: A backward that is wrong by a little.
SCALED = """

class ModelNew(Model):
    def forward(self, *inputs):
        made = super().forward(*inputs)
        return tuple(x * 1.05 for x in made) if isinstance(made, tuple) else made * 1.05
"""


@pytest.mark.parametrize(
    ("name", "kernel", "backward", "reason"),
    [
        ("casts", RIGHT, RIGHT, ""),
        ("casts", "", RIGHT, ""),
        ("casts", RIGHT, "", ""),
        ("casts", RIGHT, SCALED, "gradient of"),
        ("dictionaries", RIGHT, RIGHT, ""),  # tied weights
        ("norms", RIGHT, RIGHT, ""),  # buffers are written in the forward
        ("draws_in_training", RIGHT, RIGHT, ""),
        ("stops", RIGHT, RIGHT, "of the traced graph is not the model's"),
    ],
)
def test_gradients_are_held_to_float64(
    name: str, kernel: str, backward: str, reason: str, tmp_path: Path
) -> None:
    text = model_named(name, tmp_path)
    composed = composed_of(text, tmp_path, kernel, backward=backward)
    question = Question(text, (), None, "match", str(composed.directory), 1, False, backward=True)
    proof = find_proof(question)
    assert proof.passed is not bool(reason) and reason in proof.reason
    torch.manual_seed(2)
    ours, other = (build_real(read_source(text)) for _ in range(2))
    other.module.load_state_dict(ours.module.state_dict())
    steps = []
    with bind(ours.module, composed) as handle:
        for built in (ours, other):
            torch.manual_seed(5)
            found = built.module(*ours.args, **ours.kwargs)
            sum(
                each.float().sum() for each in pytree.tree_leaves(found) if each is not None
            ).backward()
            steps.append({k: v.grad for k, v in built.module.named_parameters()})
        assert handle.forwards[0].served == 1
    for key, gradient in steps[1].items():
        assert (steps[0][key] is None) == (gradient is None) or reason
        if gradient is not None and not reason:
            torch.testing.assert_close(steps[0][key], gradient, rtol=2e-2, atol=1e-3)


def state_of(directory: Path) -> ModelState:
    settings = ModelSettings("m.py", (), None, 3.0, RunSettings())
    kept = PieceState(
        "p01_a", "a.*", ("linear",), 3, 2.0, 0.5, (8,), PieceStatus.KEPT, "r1", 1.0, 5.0, "2x"
    )
    dropped = PieceState(
        "p02_b", "b", ("gelu",), 1, 1.0, 0.5, (), PieceStatus.DROPPED, "r2", reason="slower"
    )
    state = ModelState(settings, "M", "h200", True, 8.0, (kept, dropped), (("c", "why"),))
    write_state(RunDirectory(directory), state)
    return state


def test_a_report_tells_what_was_saved_and_what_was_dropped(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    assert read_state(tmp_path) == state
    text = write_model_report(RunDirectory(tmp_path), state).read_text(encoding="utf-8")
    slower = replace(state.pieces[0], eager_ms=5.0)  # by the clock of its own run
    assert state.with_tried(slower).total_ms == state.total_ms + 3 * 3.0
    (bar,) = [line for line in text.splitlines() if line.startswith("p01_a ")]
    assert bar.split()[1:3] == ["-3", "ms"] and bar.count("█") == 15
    assert "| p02_b | b | 1 | 1 | - | 0 | dropped: slower | r2 |" in text
    assert "Left as it is written: c (why)." in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pieces", "--out", "{out}"], "in another directory with --out"),
        (["--input", "f32[3]"], "add --pieces"),
        (["--least-gain", "0.1"], "add --pieces"),
    ],
)
def test_what_would_be_ignored_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    state_of(tmp_path / "out")  # a run on another model
    asked = ["optimize", model_named("casts", tmp_path), "--target", "h200", *words]
    registry = collect(build_plugin_manager(), cli.commands)
    with pytest.raises(click.ClickException, match=said):
        cli.main(
            [each.format(out=tmp_path / "out") for each in asked],
            standalone_mode=False,
            obj=registry,
        )


class ScriptedClock(Clock):
    """Times by what is bound; torch.compile gives the forward back, and fails for max-autotune."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.holds = self.rooms = self.tunings = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.holds += 1
        yield
        self.holds -= 1

    def make_room(self) -> None:
        assert self.holds == 0
        self.rooms += 1

    def tuning(self) -> AbstractContextManager[None]:
        self.tunings += 1
        return nullcontext()

    def time(self, call: Callable[[], object]) -> float:
        assert self.holds == 1
        call()
        forward = self.model.last
        if not isinstance(forward, SegmentForward):
            return 20.0 if forward is None else 16.0
        kernels = sum(piece._shell.__class__.__name__ == "ModelNew" for piece in forward._pieces)
        return 20.0 - kernels

    def peak(self, call: Callable[[], object]) -> int:
        call()
        return 7

    def graph(self, call: Callable[[], object]) -> Callable[[], object] | None:
        return None if isinstance(self.model.last, SegmentForward) else call

    def compile(self, forward: Callable[..., object], mode: str) -> Callable[..., object]:
        if mode != "default":
            raise RuntimeError("no room")
        return lambda *args: forward(*args)


def note_forwards(model: torch.nn.Module) -> None:
    """Have a model keep, for a `ScriptedClock`, the forward that is in the place of its own."""

    def note(module: torch.nn.Module, args: object) -> None:
        module.last = vars(module).get("forward")

    model.register_forward_pre_hook(note)


def test_ways_that_are_launched_alike_are_timed_in_pairs(tmp_path: Path) -> None:
    text = model_named("blocks", tmp_path)
    composed = composed_of(text, tmp_path)
    built = build_real(read_source(text))
    model = built.module
    note_forwards(model)
    with torch.no_grad():
        ways = ("compile", "max_autotune")
        wanted = Wanted(ways, ("compile", "compile_graph"), composed.kernels[:1])
        told: list[dict[str, Any]] = []
        clock = ScriptedClock(model)
        proof = Proof(True, "", **time_whole(built, composed, wanted, clock, tell=told.append))
    before = [Proof(True, "", **each) for each in told]  # each compiled way
    assert [dict(each.baselines_ms) for each in before] == [
        {"eager_graph": 20},
        {"eager_graph": 20, "compile": 16, "compile_graph": 16},
        {"eager_graph": 20, "compile": 16, "compile_graph": 16},
    ]
    assert all(each.gains["eager"] and each.without == proof.without for each in before)
    assert (proof.eager_ms, proof.composed_ms, proof.baselines_ms["compile"]) == (20, 11, 16)
    assert proof.missing == {
        "composed_graph": "it could not be captured",
        "max_autotune": "RuntimeError: no room",
    }
    assert proof.peak_bytes["eager_graph"] == 7 and "composed_graph" not in proof.peak_bytes
    assert proof.gain(graph=False) == pytest.approx(("compile", 16 / 11, 16 / 11))
    assert proof.gain(graph=True) is None and proof.is_faster
    assert proof.without == {composed.kernels[0]: [[11 / 15, 11 / 15]]}
    assert proof.best == ("compile", "compile_graph")
    assert "forward" not in vars(model)


@pytest.mark.parametrize(("short", "times"), [(1, {"compile": 16}), (2, {})])
def test_a_way_that_lacks_memory_beside_others_is_tried_with_the_gpu_alone(
    short: int, times: dict[str, float], tmp_path: Path
) -> None:
    text = model_named("blocks", tmp_path)
    composed = composed_of(text, tmp_path)
    built = build_real(read_source(text))
    model = built.module

    class ShortOfMemory(ScriptedClock):
        def compile(self, forward: Callable[..., object], mode: str) -> Callable[..., object]:
            nonlocal short
            short -= 1
            if short >= 0:
                raise RuntimeError("CUDA error: out of memory")
            return super().compile(forward, mode)

    note_forwards(model)
    with torch.no_grad():
        clock = ShortOfMemory(model)
        found = time_whole(built, composed, Wanted(("compile",)), clock)
    ways = {name: ms for name, ms in found["baselines_ms"].items() if name == "compile"}
    assert clock.rooms == 1 and ways == times
    assert clock.tunings == len(times)
    if not times:  # what it says is asked for where gains are told
        assert found["missing"]["compile"] == "it ran out of device memory"


def test_a_compiler_s_own_error_is_told_and_what_ran_out_of_memory_is_told_from_it() -> None:
    outer = RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory")
    outer.inner_exception = ValueError("no such kernel")  # as torch's BackendCompilerFailed has it
    assert lacks_memory(outer) and lacks_memory(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"))
    assert not lacks_memory(ValueError("no such kernel"))
    assert _reason(outer) == "ValueError: no such kernel"
    assert _reason(ValueError("alone")) == "ValueError: alone"


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (Proof(False, "on the GPU", "output 0: errs 1"), "not right with it: output 0"),
        (Proof(False, "", "it has not ended"), "could not be held to the model with it: it has"),
        (Proof(True, "", without={"p": [[0.9, 0.95]]}), ""),
        (Proof(True, "", without={"p": [[0.99, 1.01]]}), "takes 0.990 of its time"),
        (Proof(True, "", without={"p": [[1.02, 1.03], [0.9, 0.91]]}), ""),  # called, as a graph
        (Proof(True, "", gains={"eager": [1.2, 1.1], "compile": [0.8, 0.7]}), ""),  # it is alone
        (Proof(True, "", gains={"eager": [1.001, 0.99]}), "takes 0.999 of its time"),
        (Proof(True, ""), ""),  # without a GPU
    ],
)
def test_a_piece_stays_if_the_whole_gets_faster(proof: Proof, reason: str) -> None:
    found = why_dropped(proof, "p")
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "the minutes are used up"),
        ({"minutes": 9.0}, ""),
        ({"minutes": 9.0, "within": 5.0}, "the minutes are used up"),  # the last proof takes some
        ({"minutes": 9.0, "within": 7.0}, ""),
        ({"minutes": 9.0, "least_gain": 1.0}, "may save 100% of a forward"),
    ],
)
def test_a_run_that_has_finished_goes_on_with_more_minutes(
    changed: dict[str, float], reason: str, tmp_path: Path
) -> None:
    state = state_of(tmp_path)
    waiting = PieceState("p03_c", "c", (), 2, 1.0, 0.01, ())
    state = replace(
        state, pieces=(*state.pieces, waiting), began_s=100.0, seconds=285.0, finished="some reason"
    )
    settings = replace(state.settings, **changed)
    found = why_finished(replace(state, settings=asked_anew(state.settings, settings)))
    assert reason in found and bool(found) == bool(reason)


def test_a_run_that_was_ended_in_its_last_proof_is_not_over(tmp_path: Path) -> None:
    state = replace(state_of(tmp_path), finished="every piece was tried")
    assert not is_over(state) and is_over(replace(state, proof="{}"))
    dropped = tuple(replace(each, status=PieceStatus.DROPPED) for each in state.pieces)
    assert is_over(replace(state, pieces=dropped))


def test_what_kernels_reached_says_what_the_next_may_reach(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    assert reached_so_far(state) == pytest.approx((EXPECTED_SPEED_OF_LIGHT + 0.5) / 2)


@pytest.mark.parametrize(
    ("changed", "left", "chosen", "reason"),
    [
        ({}, 1.0, "p03_c", ""),  # what may save most
        ({"p04_d": PieceStatus.RUNNING}, 1.0, "p04_d", ""),  # what a killed process had begun
        ({}, 0.1, None, "the minutes are used up"),
        ({"p03_c": PieceStatus.DROPPED}, 1.0, None, "may save 1% of a forward"),
        (
            {"p03_c": PieceStatus.DROPPED, "p04_d": PieceStatus.DROPPED},
            1.0,
            None,
            "every piece was tried",
        ),
    ],
)
def test_the_next_piece_is_the_one_that_pays_most(
    changed: dict[str, PieceStatus], left: float, chosen: str | None, reason: str, tmp_path: Path
) -> None:
    state = state_of(tmp_path)
    waiting = (
        PieceState("p03_c", "c", (), 2, 1.0, 0.01, ()),
        PieceState("p04_d", "d", (), 1, 0.05, 0.01, ()),
    )
    pieces = tuple(replace(each, status=changed.get(each.name, each.status)) for each in waiting)
    piece, said = next_piece(replace(state, pieces=(*state.pieces, *pieces)), left)
    assert (piece.name if piece else None) == chosen
    assert reason in said and bool(said) == (chosen is None)


TINY = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {"y": torch.softmax(torch.relu(x) * 3, -1) + x}
def get_inputs():
    return [torch.randn(64, 64)]
"""


@pytest.mark.slow
def test_a_run_on_a_model_is_killed_taken_up_again_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    place, out = tmp_path / "tiny.py", tmp_path / "out"
    place.write_text(TINY, encoding="utf-8")
    asked = ["optimize", str(place), "--pieces", "--target", "h200", "--out", str(out)]
    asked += ["--rounds", "0", "--candidates", "1", "--minutes", "4", "--least-gain", "0"]
    command = [sys.executable, "-m", "kmem", *asked]
    first = warm.WarmPopen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and not begun(out):
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    runs = [piece.run for piece in begun(out)]
    assert len(runs) == 1
    ended = warm.run("runs", "resume", str(out), "--json")
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    assert data["faster"] and data["proof"]["how"] == "kernels in the interpreter"
    assert data["pieces"][0]["run"] in runs or data["pieces"][-1]["run"] in runs
    result = kmem.load(out)
    model = build_real(read_source(str(place))).module
    x = torch.randn(64, 64)
    with torch.no_grad():
        expected = model(x)
        with kmem.apply(model, result) as handle:
            torch.testing.assert_close(model(x)["y"], expected["y"])
            assert handle.replaced == [""]
        # an emitted kernel as an operator, in a rest that is compiled
        compiled = read_composed(out).with_rest("compiled")
        monkeypatch.setattr(compiled_rest, "compile_graph", lambda graph, given: graph)
        with kmem.apply(model, compiled) as handle:
            torch.testing.assert_close(model(x)["y"], expected["y"])
            assert "the rest is compiled" in str(handle)
    assert asdict(result.proof)["passed"] and "of eager, estimated" in str(result)


def begun(out: Path) -> list[PieceState]:
    """Pieces whose run memory knows."""
    state = read_state(out)
    pieces = [] if state is None else [each for each in state.pieces if each.run is not None]
    return [each for each in pieces if list((out / "runs" / each.name).glob("recalled-*"))]


def test_weights_that_are_one_no_more_run_the_modules_own_code(tmp_path: Path) -> None:
    text = model_named("dictionaries", tmp_path)
    built = build_real(read_source(text))
    net = built.module
    with bind(net, composed_of(text, tmp_path, RIGHT)) as handle, torch.no_grad():
        net(*built.args, **built.kwargs)
        assert handle.forwards[0].served == 1
        net.again.weight = torch.nn.Parameter(net.again.weight * 2)
        found = net(*built.args, **built.kwargs)
        assert handle.forwards[0].served == 1
        assert "has several names" in handle.forwards[0].reason
    with torch.no_grad():
        torch.testing.assert_close(found["y"], net(*built.args, **built.kwargs)["y"])
