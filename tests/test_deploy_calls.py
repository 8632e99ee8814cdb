"""Modules found by the calls that they make, without torch.export for each row of a table."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from kmem.deploy.entries import entries_of
from kmem.deploy.recording import record_calls
from kmem.deploy.shipped import ops, patch
from kmem.deploy.shipped.calls import NoCalls, follow_calls
from kmem.deploy.shipped.ops import operator_name
from kmem.deploy.shipped.table import Call, Input, read_calls
from tests.shipped_runs import KERNEL, finished_run
from tests.test_deploy_apply import Norm

CPU = torch.device("cpu")
ROWS = (Input((6, 64), (64, 1), torch.float32),)


def calls(module: nn.Module) -> tuple[Call, ...]:
    return read_calls(record_calls(module.eval(), ROWS))


def forward_by(text: str) -> Norm:
    """A norm whose forward returns this expression of `norm` and `x`."""
    norm = Norm()
    norm.forward = eval(f"lambda x: {text}", {"torch": torch, "norm": norm})
    return norm


def test_the_same_calls_by_other_words_are_the_same() -> None:
    other = "torch.mul(x * (x.pow(2).mean((-1,), True) + 1e-6).rsqrt(), norm.weight)"
    follow_calls(forward_by(other), ROWS, calls(Norm()), CPU)


DIFFERENT = [
    "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * norm.weight",
    "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * x",
    "x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * norm.weight",
    "(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight,)",
    "x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * norm.weight",
]


@pytest.mark.parametrize("text", DIFFERENT)
def test_whatever_is_computed_otherwise_has_other_calls(text: str) -> None:
    with pytest.raises(NoCalls, match="where the kernel's module calls"):
        follow_calls(forward_by(text), ROWS, calls(Norm()), CPU)
    with pytest.raises(NoCalls, match="where the kernel's module calls"):
        follow_calls(Norm(), ROWS, calls(forward_by(text)), CPU)


HIDDEN = ["x * norm.weight[0].item()", "x * torch.tensor([2.0])", "x * torch.ones(64)", "{1, 2}"]


@pytest.mark.parametrize("text", HIDDEN)
def test_what_depends_on_values_or_on_other_tensors_is_not_told_by_calls(text: str) -> None:
    other = torch.rand(64)
    norm = forward_by(text.replace("torch.ones(64)", "norm.other"))
    norm.__dict__["other"] = other
    assert calls(norm) == ()
    with pytest.raises(NoCalls):
        follow_calls(norm, ROWS, calls(Norm()), CPU)


def test_nothing_is_exported_to_fit_a_table_and_the_rest_is_fitted_by_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of([finished_run(tmp_path / "run"), finished_run(tmp_path / "b", rows=3)])
    exported: list[nn.Module] = []
    by_graph: Callable[..., str] = patch.fingerprint

    def watch(module: nn.Module, *more: object) -> str:
        exported.append(module)
        return by_graph(module, *more)

    monkeypatch.setattr(patch, "fingerprint", watch)
    norm = Norm().eval()
    with patch.apply(norm, entries) as handle:
        assert len(handle.status()) == 2
    assert exported == []
    before = norm.weight
    with patch.apply(norm, [replace(each, calls=()) for each in entries]) as handle:
        assert len(handle.status()) == 2
    assert exported == [norm, norm]
    assert norm.weight is before


def test_a_module_on_fake_tensors_has_the_calls_of_its_like() -> None:
    with torch._subclasses.FakeTensorMode():
        fake = Norm()
    assert calls(fake) == calls(Norm()) != ()


def test_an_operator_is_registered_only_where_a_tracer_asks_for_it(tmp_path: Path) -> None:
    entries = entries_of([finished_run(tmp_path / "run", kernel=KERNEL + "\n# asked late\n")])
    norm, x = Norm().eval(), torch.randn(6, 64)
    with torch.no_grad(), patch.apply(norm, entries) as handle:
        norm(x)
        assert handle.status()[0].served == 1
        assert operator_name(entries[0]) not in ops._registered
        graph = make_fx(norm)(x)
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == [
        f"{operator_name(entries[0]).replace('::', '.')}.default"
    ]


def test_a_problem_whose_name_begins_with_a_digit_has_an_operator_too(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", kernel=KERNEL + "\n# numbered\n")
    entries = entries_of([replace(run, outcome=replace(run.outcome, problem="36_RMSNorm_"))])
    norm, x = Norm().eval(), torch.randn(6, 64)
    with torch.no_grad(), patch.apply(norm, entries):
        graph = make_fx(norm)(x)
    assert "kmem.problem_36_rmsnorm_" in graph.code


def forward_that_tries(norm: Norm) -> Norm:
    """A norm that makes other calls first, and goes on where those are refused."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with suppress(Exception):
            x = x + 1
        return Norm.forward(norm, x)

    norm.forward = forward
    return norm


def test_a_forward_that_goes_on_after_another_call_still_differs() -> None:
    with pytest.raises(NoCalls, match="aten.add.Tensor"):
        follow_calls(forward_that_tries(Norm()), ROWS, calls(Norm()), CPU)


RETURNS = {
    "several": "torch.max(x, 1)[0] * torch.split(x, 32, 1)[1].sum(1)",
    "in place": "(x + 1).mul_(2)",
    "made": "x + torch.zeros(64, device=x.device)",
    "fused": "nn.functional.layer_norm(x, (64,), norm.weight)",
}


@pytest.mark.parametrize("text", RETURNS.values(), ids=RETURNS)
def test_calls_are_answered_as_they_were_when_they_were_recorded(text: str) -> None:
    text = text.replace("nn.", "torch.nn.")
    known = calls(forward_by(text))
    assert known
    follow_calls(forward_by(text), ROWS, known, CPU)


def test_weights_laid_out_otherwise_make_other_calls() -> None:
    norm = Norm()
    norm.weight = nn.Parameter(torch.rand(128)[::2])
    with pytest.raises(NoCalls):
        follow_calls(norm, ROWS, calls(Norm()), CPU)
