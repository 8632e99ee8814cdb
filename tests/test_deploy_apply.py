"""Kernels bound to the modules of a model: what is served, what runs its own code, and undo."""

import copy
import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import kmem
from kmem.deploy.entries import entries_of
from kmem.deploy.shipped import bound_kernel, patch
from kmem.deploy.shipped.patch import Handle
from kmem.deploy.shipped.sharing import copy_shell, make_shell, share_state
from kmem.errors import OutputError
from kmem.run.report.result import Result
from tests.shipped_runs import KERNEL, finished_run, problem_source


class Norm(nn.Module):
    """RMS norm as somebody else wrote it: other names, the same operators."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))
        self.variance_epsilon = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        squares = hidden.pow(2).mean(-1, keepdim=True)
        return hidden * torch.rsqrt(squares + self.variance_epsilon) * self.weight


class Stack(nn.Module):
    """Two norms with the kernel's constant, one with another, and a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.other = Norm(1e-5)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.second(self.linear(self.first(x))))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return finished_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def model() -> Stack:
    return Stack().eval()


def served(handle: Handle) -> list[int]:
    return [standing.served for standing in handle.status() if standing.module is not None]


def test_modules_that_compute_the_same_get_kernels_and_others_do_not(
    result: Result, model: Stack
) -> None:
    x = torch.randn(6, 64)
    with torch.no_grad():
        expected = model(x)
        handle = kmem.apply(model, result)
        assert handle.replaced == ["first", "second"]
        torch.testing.assert_close(model(x), expected)
    assert served(handle) == [1, 1]
    assert "active, 1 calls served, 0 passed on" in str(handle)


def test_undo_restores_the_very_forward(result: Result, model: Stack) -> None:
    def mine(hidden: torch.Tensor) -> torch.Tensor:
        return Norm.forward(model.second, hidden)

    model.second.forward = mine
    handle = kmem.apply(model, result)
    assert "forward" in vars(model.first)
    handle.undo()
    assert "forward" not in vars(model.first)
    assert model.first.forward.__func__ is Norm.forward
    assert model.second.forward is mine
    assert handle.replaced == []
    handle.undo()


def test_undo_leaves_what_somebody_else_put_there_since(result: Result, model: Stack) -> None:
    handle = kmem.apply(model, result)
    later = model.first.forward = lambda hidden: hidden
    with pytest.raises(RuntimeError, match="'first'.*undo that first"):
        handle.undo()
    assert model.first.forward is later
    assert "forward" not in vars(model.second)


def test_a_second_apply_is_refused(result: Result, model: Stack) -> None:
    with kmem.apply(model, result), pytest.raises(ValueError, match="first has kernels already"):
        kmem.apply(model, result)
    kmem.apply(model, result).undo()


def test_other_models_of_the_same_classes_keep_their_code(result: Result, model: Stack) -> None:
    other, x = Stack().eval(), torch.randn(6, 64)
    handle = kmem.apply(model, result)
    with torch.no_grad():
        other(x)
    assert served(handle) == [0, 0]
    assert "forward" not in vars(other.first)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_their_own_code_and_weights(
    duplicate: object, result: Result, model: Stack
) -> None:
    kmem.apply(model, result)
    other, x = duplicate(model), torch.randn(6, 64)
    with torch.no_grad():
        other.first.weight.fill_(2.0)
        torch.testing.assert_close(other.first(x), Norm.forward(other.first, x))
    assert not torch.equal(other.first.weight, model.first.weight)


def test_weights_loaded_or_replaced_later_are_used(result: Result, model: Stack) -> None:
    x, norm = torch.randn(6, 64), model.first
    handle = kmem.apply(model, result)
    with torch.no_grad():
        for change in (
            lambda: norm.weight.mul_(3.0),
            lambda: norm.load_state_dict({"weight": torch.full((64,), 5.0)}),
            lambda: setattr(norm, "weight", nn.Parameter(torch.full((64,), 7.0))),
        ):
            change()
            torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    assert served(handle) == [3, 0]


def call_with_gradients(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found = norm(x)
    found.sum().backward()
    assert norm.weight.grad is not None
    return found


def call_under_autocast(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return norm(x)


def call_under_vmap(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.vmap(norm)(x[None].expand(2, 6, 64))[0]


class Tagged(torch.Tensor):
    """A subclass, which may stand for anything."""


UNSUPPORTED = [
    ("gradients", call_with_gradients, "gradients are recorded"),
    ("autocast", call_under_autocast, "autocast is on"),
    ("vmap", call_under_vmap, "transform of torch.func"),
    ("rows", lambda norm, x: norm(x[:5]), r"argument 0 is \(5, 64\)"),
    ("strides", lambda norm, x: norm(x.t().contiguous().t()), "has strides"),
    ("dtype", lambda norm, x: norm(x.double()), "is of torch.float64"),
    ("subclass", lambda norm, x: norm(x.as_subclass(Tagged)), "is a Tagged"),
    ("mode", lambda norm, x: norm.train()(x), "another mode"),
]


@pytest.mark.parametrize(("what", "call", "why"), UNSUPPORTED, ids=[row[0] for row in UNSUPPORTED])
def test_a_call_that_is_not_supported_runs_the_modules_own_code_and_says_why(
    what: str, call: object, why: str, result: Result, model: Stack
) -> None:
    x = torch.randn(6, 64)
    handle = kmem.apply(model, result)
    with torch.set_grad_enabled(what == "gradients"), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = call(model.first, x)
    standing = handle.status()[0]
    assert (standing.served, standing.passed_on) == (0, 1)
    assert re.search(why, standing.reason), standing.reason
    handle.undo()
    with torch.set_grad_enabled(what == "gradients"):
        assert torch.equal(found, call(model.first, x))


def test_keywords_in_the_order_of_the_signature_are_served(result: Result, model: Stack) -> None:
    handle = kmem.apply(model, result)
    with torch.no_grad():
        model.first(hidden=torch.randn(6, 64))
    assert served(handle) == [1, 0]


class Outer(nn.Module):
    """A module whose parameters lie in another one inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


OUTER = """
class Outer(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.inner = Model(*sizes)

    def forward(self, x):
        return self.inner(x)
"""


def test_a_module_inside_that_has_hooks_is_not_left_out(tmp_path: Path) -> None:
    kernel = KERNEL.replace("self.weight, out, self.eps", "self.inner.weight, out, self.inner.eps")
    kernel = kernel.replace("class ModelNew(Model)", f"{OUTER}\n\nclass ModelNew(Outer)")
    problem = problem_source(6) + OUTER + "\n\nInner, Model = Model, Outer\n"
    problem = problem.replace("self.inner = Model", "self.inner = Inner")
    outer, x, seen = Outer().eval(), torch.randn(6, 64), list[int]()
    handle = kmem.apply(outer, finished_run(tmp_path / "run", problem=problem, kernel=kernel))
    assert handle.replaced == [""]
    with torch.no_grad():
        outer(x)
        hook = outer.inner.register_forward_hook(lambda *_: seen.append(1))
        outer(x)
        hook.remove()
        outer(x)
    assert (seen, served(handle)) == ([1], [2])


def test_a_kernel_that_cannot_start_is_one_warning_and_the_modules_own_code(
    tmp_path: Path, model: Stack
) -> None:
    broken = KERNEL.replace("out = torch.empty_like(x)", "raise OSError('no compiler')")
    handle = kmem.apply(model, finished_run(tmp_path / "run", kernel=broken))
    x = torch.randn(6, 64)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="rms_norm is not used.*no compiler") as said:
            found = model.first(x)
            model.first(x)
        assert len(said) == 1
        assert torch.equal(found, Norm.forward(model.first, x))
    assert "not active, its first call failed: OSError: no compiler" in str(handle)


def test_strict_mode_raises_what_a_first_call_raised(
    tmp_path: Path, model: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = KERNEL.replace("out = torch.empty_like(x)", "raise OSError('no compiler')")
    kmem.apply(model, finished_run(tmp_path / "run", kernel=broken))
    monkeypatch.setenv("KMEM_STRICT", "1")
    with torch.no_grad(), pytest.raises(OSError, match="no compiler"):
        model.first(torch.randn(6, 64))


def test_a_kernel_that_keeps_other_tensors_is_refused_with_the_reason(
    tmp_path: Path, model: Stack
) -> None:
    kept = KERNEL.replace(
        "class ModelNew(Model):",
        "class ModelNew(Model):\n    def __init__(self, *a):\n        super().__init__(*a)\n"
        "        self.half = self.weight.detach() / 2\n",
    )
    handle = kmem.apply(model, finished_run(tmp_path / "run", kernel=kept))
    assert handle.replaced == []
    assert "keeps tensors in itself.half" in str(handle)


RECURRENT = """import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = torch.nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.lstm(x)[0]


def get_inputs():
    return [torch.randn(3, 5, 8)]


def get_init_inputs():
    return [8]
"""
#: Served calls show: they are twice what the module computes.
TWICE_RECURRENT = (
    RECURRENT.partition("def get_inputs")[0]
    + """
class ModelNew(Model):
    def forward(self, x):
        return 2 * self.lstm(x)[0]
"""
)


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def test_a_recurrent_layer_reads_the_weights_that_the_module_has_by_then(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", problem=RECURRENT, kernel=TWICE_RECURRENT)
    model, x = Recurrent(8), torch.randn(3, 5, 8)
    kmem.apply(model, run)
    changes = (
        lambda: None,
        lambda: model.lstm.weight_hh_l1.mul_(0.5),
        lambda: model.load_state_dict(Recurrent(8).state_dict()),
        lambda: setattr(model.lstm, "bias_ih_l0", nn.Parameter(torch.rand(32))),
        lambda: model.to("meta").to_empty(device="cpu").load_state_dict(Recurrent(8).state_dict()),
    )
    with torch.no_grad():
        for change in changes:
            change()
            torch.testing.assert_close(model(x), 2 * Recurrent.forward(model, x))
        shell = copy_shell(make_shell(entries_of([run])[0]))
        share_state(shell, model)
        torch.testing.assert_close(shell(x), model(x))


def test_a_compiled_model_has_the_kernel_of_a_recurrent_layer(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", problem=RECURRENT, kernel=TWICE_RECURRENT)
    model, x = Recurrent(8), torch.randn(3, 5, 8)
    with torch.no_grad(), kmem.apply(model, run):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), 2 * Recurrent.forward(model, x))


def test_a_model_without_such_modules_is_left_alone_and_says_so(result: Result) -> None:
    handle = kmem.apply(nn.Sequential(nn.ReLU(), nn.Linear(64, 64)), result)
    assert handle.replaced == []
    assert str(handle) == "rms_norm: not active, no module of the model has its parameters"


def test_modules_in_another_precision_are_named(result: Result, model: Stack) -> None:
    assert "its weight is of torch.bfloat16" in str(kmem.apply(model.bfloat16(), result))


def test_several_runs_serve_several_shapes(result: Result, model: Stack, tmp_path: Path) -> None:
    handle = kmem.apply(model, result, finished_run(tmp_path / "run", rows=3, name="small"))
    with torch.no_grad():
        for rows in (6, 3, 3, 4):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(model.first(x), Norm.forward(model.first, x))
    assert served(handle) == [1, 2, 0, 0]


def test_a_call_finds_its_kernel_among_many_by_one_look_up(
    result: Result, model: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [finished_run(tmp_path / str(rows), rows=rows, name=f"n{rows}") for rows in (3, 4, 5)]
    kmem.apply(model, *others, result)

    def walk(*row: object) -> str:
        raise AssertionError("a row was compared with the call")

    for each in (patch, bound_kernel):
        monkeypatch.setattr(each, "objection_to_inputs", walk)
    with torch.no_grad():
        x = torch.randn(6, 64)
        torch.testing.assert_close(model.first(x), Norm.forward(model.first, x))


def test_compiled_models_have_the_kernel_in_one_graph_and_compile_once(
    result: Result, model: Stack
) -> None:
    handle = kmem.apply(model, result)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(6, 64)
            torch.testing.assert_close(compiled(x), Stack.forward(model, x))
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if "kmem" in str(node.target)]
    assert len(called) == 2
    assert all(name.startswith("kmem.rms_norm_") for name in called)
    handle.undo()


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_calls_the_kernels(strict: bool, result: Result, model: Stack) -> None:
    x = torch.randn(6, 64)
    kmem.apply(model, result)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=strict)
        torch.testing.assert_close(program.module()(x), Stack.forward(model, x))
    called = [str(node.target) for node in program.graph.nodes]
    assert sum(name.startswith("kmem.rms_norm_") for name in called) == 2


def test_a_run_without_a_kernel_cannot_be_applied(result: Result, model: Stack) -> None:
    nothing = Result(result.run, replace(result.outcome, best=None, speedup=None))
    with pytest.raises(OutputError, match="no kernel that beats the best baseline"):
        kmem.apply(model, nothing)
