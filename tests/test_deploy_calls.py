"""Modules found by the calls that they make, without torch.export for each row of a table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from kmem.deploy.entries import entries_of
from kmem.deploy.shipped import ops, patch
from kmem.deploy.shipped.calls import NoCalls, calls_of
from kmem.deploy.shipped.ops import operator_name
from kmem.deploy.shipped.table import Input
from tests.shipped_runs import KERNEL, finished_run
from tests.test_deploy_apply import Norm

CPU = torch.device("cpu")
ROWS = (Input((6, 64), (64, 1), torch.float32),)


def calls(module: nn.Module) -> str:
    return calls_of(module.eval(), ROWS, CPU)


def forward_by(text: str) -> Norm:
    """A norm whose forward returns this expression of `norm` and `x`."""
    norm = Norm()
    norm.forward = eval(f"lambda x: {text}", {"torch": torch, "norm": norm})
    return norm


def test_the_same_calls_by_other_words_are_the_same() -> None:
    other = "torch.mul(x * (x.pow(2).mean((-1,), True) + 1e-6).rsqrt(), norm.weight)"
    assert calls(forward_by(other)) == calls(Norm())


DIFFERENT = [
    "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * norm.weight",
    "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * x",
    "x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * norm.weight",
    "(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.weight,)",
    "x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * norm.weight",
]


@pytest.mark.parametrize("text", DIFFERENT)
def test_whatever_is_computed_otherwise_has_other_calls(text: str) -> None:
    assert calls(forward_by(text)) != calls(Norm())


HIDDEN = ["x * norm.weight[0].item()", "x * torch.tensor([2.0])", "x * torch.ones(64)", "{1, 2}"]


@pytest.mark.parametrize("text", HIDDEN)
def test_what_depends_on_values_or_on_other_tensors_is_not_told_by_calls(text: str) -> None:
    other = torch.rand(64)
    norm = forward_by(text.replace("torch.ones(64)", "norm.other"))
    norm.__dict__["other"] = other
    with pytest.raises(NoCalls):
        calls(norm)


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
    with patch.apply(norm, [replace(each, calls="") for each in entries]) as handle:
        assert len(handle.status()) == 2
    assert exported == [norm, norm]
    assert norm.weight is before


def test_a_module_on_fake_tensors_has_the_calls_of_its_like() -> None:
    with torch._subclasses.FakeTensorMode():
        fake = Norm()
    assert calls(fake) == calls(Norm())


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
