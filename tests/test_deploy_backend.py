"""`backend="kmem"`: what is replaced in a compiler's graph, what is not and why."""

import logging
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import default_partition, make_boxed_func
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table

import kmem
from kmem.deploy import backend
from kmem.deploy.backend import Both, compile_graph
from kmem.deploy.entries import entries_of
from kmem.deploy.shipped.inductor import KernelPass
from kmem.deploy.shipped.ops import operator_name
from kmem.run.report.result import Result
from tests.shipped_runs import KERNEL, finished_run
from tests.test_deploy_apply import Norm, Stack

#: Served calls show: they are twice what the module computes.
TWICE = KERNEL.replace("x * scale", "2 * x * scale")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return finished_run(tmp_path_factory.mktemp("runs") / "run", kernel=TWICE)


@pytest.fixture
def kernel_pass(result: Result) -> KernelPass:
    return KernelPass(entries_of([result]))


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def compiled(model: nn.Module, kernel_pass: KernelPass, **settings: Any) -> Callable[..., Any]:
    """A model compiled on Inductor's way up to the pass, then run operator by operator."""

    def run(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        return make_boxed_func(graph.forward)

    def infer(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        kernel_pass(graph.graph)
        graph.recompile()
        return run(graph, inputs)

    def partition(joint: fx.GraphModule, inputs: object, **more: Any) -> object:
        kernel_pass(joint.graph)
        joint.recompile()
        return default_partition(joint, inputs, **more)

    backend = aot_autograd(
        fw_compiler=run,
        inference_compiler=infer,
        partition_fn=partition,
        decompositions=select_decomp_table,
    )
    return torch.compile(model, backend=backend, fullgraph=True, **settings)


def test_what_computes_the_same_is_replaced_wherever_it_stands(kernel_pass: KernelPass) -> None:
    class Free(nn.Module):
        """No module of its own computes the norm."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x)
            return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale + 1

    model, x = Free(), torch.randn(6, 64)
    with torch.no_grad():
        found = compiled(model, kernel_pass)(x)
        torch.testing.assert_close(found, 2 * (model(x) - 1) + 1)
    assert [str(each) for each in kernel_pass.report] == ["rms_norm: replaced 1 part"]


def test_the_backend_is_inductor_with_kernels_and_says_what_it_did(
    result: Result, caplog: pytest.LogCaptureFixture
) -> None:
    model, x, before = Stack().eval(), torch.randn(6, 64), len(kmem.compile_report())
    fast = torch.compile(
        model, backend=compile_graph, fullgraph=True, options={"packages": [result]}
    )
    with torch.no_grad(), caplog.at_level(logging.INFO, "kmem.deploy.shipped.inductor"):
        halves = model.other(2 * model.second(model.linear(2 * model.first(x))))
        # a graph from Inductor's cache meets no pass, and none is reported
        no_cache = torch._inductor.config.patch(force_disable_caches=True)
        with torch._dynamo.config.patch(error_on_recompile=True), no_cache:
            for _ in range(2):
                torch.testing.assert_close(fast(x), halves, rtol=1e-4, atol=1e-5)
    (line,) = [str(each) for each in kmem.compile_report()[before:]]
    assert line.startswith("rms_norm: replaced 2 parts; another not: ")
    assert "has 1e-05 where the kernel's module has 1e-06" in line
    assert line in caplog.text


def test_torch_finds_the_backend_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    place = project["project"]["entry-points"]["torch_dynamo_backends"]["kmem"]
    module, _, name = place.partition(":")
    assert getattr(import_module(module), name) is compile_graph


def test_gradients_are_right_and_inner_values_that_they_need_are_kept(
    kernel_pass: KernelPass,
) -> None:
    model, x = Stack(), torch.randn(6, 64, requires_grad=True)
    compiled(model, kernel_pass)(x).square().sum().backward()
    found = [x.grad, *(parameter.grad for parameter in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    expected = [x.grad, *(parameter.grad for parameter in model.parameters())]
    torch.testing.assert_close(found, expected)
    (replacement,) = kernel_pass.report
    assert replacement.count == 0
    assert "as for gradients" in replacement.reason


def test_a_part_that_gradients_do_not_pass_is_replaced_in_training(
    kernel_pass: KernelPass,
) -> None:
    norm, linear = Norm().requires_grad_(False), nn.Linear(64, 64)
    model, x = nn.Sequential(norm, linear), torch.randn(6, 64)
    compiled(model, kernel_pass)(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, 2 * norm(x).sum(0).expand(64, 64))
    assert kernel_pass.report[0].count == 1


DIFFERENT = [
    ("rows", lambda x: x[:5], r"has shape \(5, 64\), the kernel is for \(6, 64\)"),
    ("strides", lambda x: x.t().contiguous().t(), r"has stride \(1, 6\)"),
    ("dtype", lambda x: x.double(), "is torch.float64 on cpu"),
]


@pytest.mark.parametrize(("what", "change", "why"), DIFFERENT, ids=[row[0] for row in DIFFERENT])
def test_what_is_not_exactly_the_kernels_keeps_its_code(
    what: str, change: Callable[..., Any], why: str, kernel_pass: KernelPass
) -> None:
    model, x = Norm(), change(torch.randn(6, 64))
    with torch.no_grad():
        torch.testing.assert_close(compiled(model.to(x.dtype), kernel_pass)(x), model(x))
    assert kernel_pass.report[0].count == 0
    assert re.search(why, kernel_pass.report[0].reason)


def test_autocast_and_dynamic_shapes_keep_their_code(kernel_pass: KernelPass) -> None:
    model, x = Stack(), torch.randn(6, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = (
            compiled(model.second, kernel_pass)(model.linear(x)),
            model.second(model.linear(x)),
        )
        torch.testing.assert_close(found, expected)
    torch._dynamo.reset()
    any_rows = compiled(model.first, kernel_pass, dynamic=True)
    with torch.no_grad():
        for rows in (6, 7, 9):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(any_rows(x), model.first(x))
    assert [each.count for each in kernel_pass.report] == [0, 0]


def test_a_value_that_is_needed_elsewhere_is_not_swallowed(kernel_pass: KernelPass) -> None:
    class Two(Norm):
        def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            squares = hidden.pow(2).mean(-1, keepdim=True) + 1e-6
            return hidden * torch.rsqrt(squares) * self.weight, squares

    model, x = Two(), torch.randn(6, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, kernel_pass)(x), model(x))
    assert "is needed by" in kernel_pass.report[0].reason


def test_the_inputs_of_a_kernel_have_the_strides_that_it_was_verified_with(
    result: Result, kernel_pass: KernelPass
) -> None:
    seen = []

    def watch(graph: fx.Graph) -> None:
        kernel_pass(graph)
        seen.extend(node for node in graph.nodes if "kmem" in str(node.target))

    model, x = nn.Sequential(nn.ReLU(), Norm()), torch.randn(6, 64)
    fast = torch.compile(model, backend="inductor", options={"joint_custom_pre_pass": watch})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), 2 * model(x))
    (node,) = seen
    assert [value.stride() for value in node.meta["eager_input_vals"][0]] == [(64, 1), (1,)]
    assert torch.Tag.needs_exact_strides in node.target.tags


def test_the_cache_of_compiled_code_knows_the_kernels(result: Result, tmp_path: Path) -> None:
    entries = entries_of([result])
    other = entries_of([finished_run(tmp_path / "run")])
    assert KernelPass(entries).uuid() == KernelPass(entries).uuid()
    assert len({KernelPass(each).uuid() for each in (entries, other, entries + other)}) == 3


def test_code_from_the_cache_finds_its_operators_in_a_process_that_made_none(
    tmp_path: Path,
) -> None:
    kernel = KERNEL + "\n# compiled by another process\n"
    entries = entries_of([finished_run(tmp_path / "run", kernel=kernel)])
    name = operator_name(entries[0]).partition("::")[2]
    assert not hasattr(torch.ops.kmem, name)
    KernelPass(entries).uuid()
    assert hasattr(torch.ops.kmem, name)


class Watching(CustomGraphPass):
    """A pass that somebody else has written."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, graph: fx.Graph) -> None:
        self.seen += 1

    def uuid(self) -> None:
        return None


def test_a_pass_of_the_users_own_runs_too(
    kernel_pass: KernelPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Watching()
    both = Both(theirs, kernel_pass)
    both(fx.Graph())
    assert theirs.seen == 1
    assert both.uuid() is None

    def give_pass(graph: object, inputs: object, config_patches: dict[str, Any]) -> Any:
        return config_patches["joint_custom_pre_pass"]

    monkeypatch.setattr(backend, "compile_fx", give_pass)
    empty = fx.GraphModule(nn.Module(), fx.Graph())
    compile_graph(empty, [], options={"joint_custom_pre_pass": theirs})(fx.Graph())
    assert theirs.seen == 2


def test_a_kernel_whose_output_lies_otherwise_is_not_put_in_its_place(result: Result) -> None:
    (entry,) = entries_of([result])
    (output,) = entry.outputs
    columns = KernelPass([replace(entry, outputs=(replace(output, stride=(1, 6)),))])
    model, x = Norm(), torch.randn(6, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, columns)(x), model(x))
    assert "would have strides (1, 6), not (64, 1)" in columns.report[0].reason
