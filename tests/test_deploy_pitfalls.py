"""What goes wrong where kernels are deployed: each pitfall, and what stands against it."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize, prune

import kmem
from kmem.deploy.entries import entries_of
from kmem.deploy.package import export_package
from kmem.deploy.shipped import bound_kernel, inductor, ops
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.patch import Handle
from kmem.errors import OutputError
from kmem.run.report.result import Result
from tests.shipped_runs import KERNEL, PROBLEM, finished_run
from tests.test_deploy_apply import Norm

#: Served calls show: they are twice what the module computes.
TWICE = KERNEL.replace("x * scale", "2 * x * scale")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return finished_run(tmp_path_factory.mktemp("runs") / "run", kernel=TWICE)


@pytest.fixture
def norm() -> Norm:
    return Norm().eval()


def passed_on(handle: Handle, why: str) -> None:
    """Assert that the last call ran the module's own code, for this reason."""
    (standing,) = handle.status()
    assert (standing.served, standing.passed_on) == (0, 1), str(standing)
    assert why in standing.reason


def test_a_view_that_negates_its_memory_is_not_read_as_it_lies(result: Result, norm: Norm) -> None:
    pairs = torch.randn(6, 64, 2)
    whole = torch.view_as_complex(pairs).conj().imag
    x = torch.empty(6, 64)._neg_view()
    x.copy_(whole)
    handle = kmem.apply(norm, result)
    with torch.no_grad():
        assert x.is_neg()
        torch.testing.assert_close(norm(x), Norm.forward(norm, x.resolve_neg()))
    passed_on(handle, "negates or conjugates")


def test_on_a_device_that_it_was_not_measured_on_a_kernel_is_not_used(
    result: Result, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = [("cuda", 7)]
    monkeypatch.setattr(bound_kernel, "devices_for", lambda entry: elsewhere)
    monkeypatch.setattr(inductor, "devices_for", lambda entry: elsewhere)
    handle, x = kmem.apply(norm, result), torch.randn(6, 64)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), Norm.forward(norm, x))
    passed_on(handle, "it was verified on NVIDIA H200, this call is on cpu")
    handle.undo()
    graph = make_fx(lambda x, w: x * w, tracing_mode="fake")(x, norm.weight.detach()).graph
    kernel_pass = inductor.KernelPass(entries_of([result]))
    kernel_pass(graph)
    assert "verified on NVIDIA H200, the graph is on cpu" in str(kernel_pass.report[0])


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def parametrise(norm: nn.Module) -> None:
    parametrize.register_parametrization(norm, "weight", Doubled())


def prune_half(norm: nn.Module) -> None:
    prune.l1_unstructured(norm, "weight", 0.5)


@pytest.mark.parametrize("wrap", [parametrise, prune_half])
def test_a_weight_that_is_wrapped_later_is_what_the_module_says(
    wrap: Callable[[nn.Module], None], result: Result, norm: Norm
) -> None:
    handle = kmem.apply(norm, result)
    wrap(norm)
    x = torch.randn(6, 64)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
    passed_on(handle, "computed from others")


def test_a_weight_that_is_laid_out_otherwise_is_not_read_as_the_kernels(
    result: Result, norm: Norm
) -> None:
    other = nn.Parameter(torch.rand(128)[::2])
    handle, x = kmem.apply(norm, result), torch.randn(6, 64)
    with torch.no_grad():
        norm.weight = other  # as of somebody who ties or transposes weights
        torch.testing.assert_close(norm(x), Norm.forward(norm, x))
        passed_on(handle, "weight is not what")
        handle.undo()
        assert "its weight has strides (2,), the kernel is for (1,)" in str(
            kmem.apply(norm, result)
        )
        (entry,) = entries_of([result])
        torch.testing.assert_close(operator(entry)([x], [other]), 2 * Norm.forward(norm, x))
        by_columns = x.t().contiguous().t()
        torch.testing.assert_close(
            operator(entry)([by_columns], [other]), 2 * Norm.forward(norm, x)
        )


def test_atomics_are_not_used_where_calls_must_repeat(tmp_path: Path, norm: Norm) -> None:
    atomic = TWICE.replace("tl.store(target + place,", "tl.atomic_xchg(target + place,")
    handle = kmem.apply(norm, finished_run(tmp_path / "run", kernel=atomic))
    x = torch.randn(6, 64)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            assert torch.equal(norm(x), Norm.forward(norm, x))
    finally:
        torch.use_deterministic_algorithms(False)
    passed_on(handle, "adds by atomics")


def test_nothing_is_compiled_while_a_graph_is_captured(
    result: Result, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, x = kmem.apply(norm, result), torch.randn(6, 64)
    with torch.no_grad():
        monkeypatch.setattr(bound_kernel, "is_capturing", lambda device: True)
        own = norm(x)
        assert handle.status()[0].served == 0
        monkeypatch.undo()
        torch.testing.assert_close(norm(x), 2 * own)
        monkeypatch.setattr(bound_kernel, "is_capturing", lambda device: True)
        torch.testing.assert_close(norm(x), 2 * own)  # warm: a capture takes it


def test_an_operator_compiles_nothing_while_a_graph_is_captured(
    tmp_path: Path, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(
        tmp_path / "run", kernel=TWICE.replace("An RMS", "A cold RMS") + "\n# cold\n"
    )
    known, x = operator(entries_of([run])[0]), torch.randn(6, 64)
    weight = norm.weight.detach()
    monkeypatch.setattr(ops, "is_capturing", lambda device: True)
    torch.testing.assert_close(known([x], [weight]), Norm.forward(norm, x).detach())
    monkeypatch.undo()
    torch.testing.assert_close(known([x], [weight]), 2 * Norm.forward(norm, x).detach())


def test_compiled_code_falls_back_with_one_warning_where_no_kernel_starts(
    tmp_path: Path, norm: Norm
) -> None:
    broken = KERNEL.replace("out = torch.empty_like(x)", "raise OSError('no driver')")
    kmem.apply(norm, finished_run(tmp_path / "run", kernel=broken))
    fast, x = torch.compile(norm, backend="aot_eager", fullgraph=True), torch.randn(6, 64)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="rms_norm is not used.*no driver") as said:
            found = fast(x)
            fast(x)
        assert len([each for each in said if "no driver" in str(each.message)]) == 1
        torch.testing.assert_close(found, Norm.forward(norm, x))


def call_under_grad(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda each: norm(each).sum())(x)


def call_functionally(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.func.functional_call(norm, {"weight": torch.full((64,), 3.0)}, (x,)) / 2


@pytest.mark.parametrize("call", [call_under_grad, call_functionally])
def test_transforms_and_other_weights_for_one_call_are_right(
    call: Callable[..., torch.Tensor], result: Result, norm: Norm
) -> None:
    x = torch.randn(6, 64)
    expected = call(norm, x)
    twice = 2.0 if call is call_functionally else 1.0  # a kernel may serve the weights of one call
    with kmem.apply(norm, result):
        torch.testing.assert_close(call(norm, x), twice * expected)


def test_a_traced_script_has_the_modules_own_code(result: Result, norm: Norm) -> None:
    handle, x = kmem.apply(norm, result), torch.randn(6, 64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(norm, x, check_trace=False)
    with torch.no_grad():
        other = torch.randn(6, 64)
        torch.testing.assert_close(script(other), Norm.forward(norm, other))
    assert handle.status()[0].served == 0


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_argument_is_not_read_as_plain_memory(
    layout: torch.layout, result: Result, norm: Norm
) -> None:
    handle = kmem.apply(norm, result)
    sparse = torch.eye(64)[:6].to_sparse(layout=layout)
    with torch.no_grad(), warnings.catch_warnings(), pytest.raises(RuntimeError):
        warnings.simplefilter("ignore")
        norm(sparse)  # its own code cannot either, and says so
    passed_on(handle, str(layout))


def test_a_weight_on_another_device_than_the_input_is_not_read(result: Result, norm: Norm) -> None:
    handle = kmem.apply(norm, result)
    norm.weight = nn.Parameter(torch.empty(64, device="meta"))  # as offloading leaves it
    with torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        norm(torch.randn(6, 64))  # its own code cannot either
    passed_on(handle, "tensors are on cpu and on meta")


def test_of_two_kernels_for_the_same_inputs_the_tables_first_serves_in_every_process(
    tmp_path: Path, norm: Norm
) -> None:
    runs = [finished_run(tmp_path / "a", kernel=TWICE), finished_run(tmp_path / "b")]
    x = torch.randn(6, 64)
    own = Norm.forward(norm, x).detach()
    for order, factor in ((runs, 2.0), (runs[::-1], 1.0)):
        package = export_package(order, tmp_path / f"package_{factor:.0f}")
        with torch.no_grad(), kmem.apply(norm, package):
            torch.testing.assert_close(norm(x), factor * own)


def test_a_kernel_that_tunes_itself_is_not_shipped(tmp_path: Path) -> None:
    tuned = KERNEL.replace(
        "@triton.jit", "@triton.autotune([triton.Config({})], key=[])\n@triton.jit"
    )
    with pytest.raises(OutputError, match="tunes itself.*write the best settings"):
        entries_of([finished_run(tmp_path / "run", kernel=tuned)])


@pytest.mark.parametrize(("rows", "ships"), [(2**25 - 1, True), (2**25 + 1, False)])
def test_offsets_past_32_bits_are_64_bits_wide_or_were_seen_to_work(
    rows: int, ships: bool, tmp_path: Path
) -> None:
    problem = PROBLEM.replace("ROWS", str(rows))
    narrow = finished_run(tmp_path / "narrow", problem=problem)
    wide = KERNEL.replace("tl.program_id(0) * 64", "tl.program_id(0).to(tl.int64) * 64")
    assert entries_of([finished_run(tmp_path / "wide", problem=problem, kernel=wide)])
    if ships:
        assert entries_of([narrow])
    else:
        with pytest.raises(OutputError, match="past 32-bit offsets"):
            entries_of([narrow])


@pytest.mark.parametrize("returned", ["x", "out.t().contiguous().t()"])
def test_an_operator_returns_memory_of_its_own_with_the_strides_that_it_promises(
    returned: str, tmp_path: Path
) -> None:
    kernel = KERNEL.replace("return out", f"return {returned}")
    known = operator(entries_of([finished_run(tmp_path / "run", kernel=kernel)])[0])
    x = torch.randn(6, 64)
    found = known([x], [torch.rand(64)])
    assert not known.fault
    assert found.stride() == (64, 1)
    assert found.data_ptr() != x.data_ptr()


def test_an_operator_says_what_it_cannot_do(result: Result) -> None:
    (entry,) = entries_of([result])
    known, x = operator(entry), torch.randn(6, 64, requires_grad=True)
    with pytest.raises(NotImplementedError, match="use the module's own code where gradients"):
        known([x], [torch.rand(64)]).sum().backward()
    with FakeTensorMode(), pytest.raises(RuntimeError, match=r"is for .*\(6, 64\)"):
        known([torch.empty(5, 64)], [torch.empty(64)])


def test_weights_of_which_one_takes_the_place_of_another_are_not_taken_for_it(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, x = operator(entries_of([result])[0]), torch.randn(6, 64)
    monkeypatch.setattr(ops, "id", lambda tensor: 1, raising=False)  # as after one is collected
    first, second = (known([x], [torch.full((64,), value)]) for value in (1.0, 3.0))
    torch.testing.assert_close(second, 3 * first)
