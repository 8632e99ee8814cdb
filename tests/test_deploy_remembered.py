"""The compiler's backend and the winners of this machine's own runs: which it uses, which not."""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from kmem.deploy import backend, remembered
from kmem.deploy.backend import compile_graph
from kmem.deploy.package import export_package
from kmem.memory.store import Memory
from kmem.records import Kernel, Precision, RunState, Status
from kmem.run.report.result import Result
from kmem.serialize import to_json
from tests.shipped_runs import KERNEL, finished_run
from tests.test_deploy_apply import Norm, Stack
from tests.test_memory_store import make_outcome


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    remembered._winners.cache_clear()


def remember(place: Path, **how: Any) -> Result:
    """A finished run that memory knows."""
    result = finished_run(place, **how)
    keep(result)
    return result


def keep(result: Result) -> None:
    (result.directory / "result.json").write_text(to_json(result.outcome))
    with Memory() as memory:
        memory.runs.start(result.run)
        memory.runs.set_state(result.run.id, RunState.FINISHED, result.outcome)


def used(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **how: Any
) -> list[str]:
    """Names of the kernels that the backend looks for in a model's graph."""
    seen: list[str] = []

    def stop(graph: fx.GraphModule, inputs: object, config_patches: dict[str, Any]) -> Any:
        seen.extend(entry.name for entry in config_patches["joint_custom_pre_pass"].entries)
        return graph.forward

    monkeypatch.setattr(backend, "compile_fx", stop)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=compile_graph, **how)(x)
    return seen


def test_the_winner_of_a_run_is_used_without_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert used(Norm(), torch.randn(6, 64), monkeypatch) == []
    result = remember(tmp_path / "run")
    x = torch.randn(6, 64)
    with caplog.at_level(logging.INFO, "kmem.deploy"):
        assert used(Stack(), x, monkeypatch) == ["rms_norm"], caplog.text
    assert used(Norm(), x[:5], monkeypatch) == []
    assert used(Norm(), x, monkeypatch, options={"memory": False}) == []
    package = export_package([result], tmp_path / "package")
    assert used(Norm(), x, monkeypatch, options={"packages": [package]}) == ["rms_norm"]


def test_a_graph_holds_the_kernel_of_the_run_that_was_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = finished_run(tmp_path / "slow", name="slow", kernel=KERNEL + "# slow\n")
    timing = replace(slow.outcome.best.measurement.timing, latency_ms=0.5)
    measured = replace(slow.outcome.best.measurement, timing=timing)
    best = replace(slow.outcome.best, measurement=measured)
    keep(Result(slow.run, replace(slow.outcome, best=best)))
    remember(tmp_path / "fast", name="fast")
    assert used(Norm(), torch.randn(6, 64), monkeypatch) == ["fast"]


def test_what_a_winner_computes_is_found_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(tmp_path / "run")
    x = torch.randn(6, 64)
    assert used(Norm(), x, monkeypatch) == ["rms_norm"]
    remembered._winners.cache_clear()  # as in another process
    monkeypatch.setattr(remembered, "row_of", lambda result: 1 / 0)
    assert used(Norm(), x, monkeypatch) == ["rms_norm"]


def retract(result: Result) -> None:
    with Memory() as memory:
        outcome = make_outcome(source=KERNEL)
        memory.ledger.record(outcome)
        memory.ledger.retract(outcome.hash, "wrong on another machine", "test")


def refuse(result: Result) -> None:
    with Memory() as memory:
        memory.ledger.record(make_outcome(source=KERNEL))
        memory.ledger.record(make_outcome(None, source=KERNEL, status=Status.WRONG_VALUES))


def edit(result: Result) -> None:
    result.kernel_path.write_text(KERNEL.replace("x * scale", "x + scale"))


def compute_in_tf32(result: Result) -> None:
    contract = replace(result.run.contract, precision=Precision.TF32)
    with Memory() as memory:
        memory.run_entries.remove(result.run.id)
    keep(Result(replace(result.run, contract=contract), result.outcome))


def measure_on_another_card(result: Result) -> None:
    with Memory() as memory:
        memory.run_entries.remove(result.run.id)
    card = "rtx-9999"  # not in kmem's table
    keep(Result(replace(result.run, target=card), replace(result.outcome, target=card)))


LEFT_OUT = [
    (measure_on_another_card, "No target named 'rtx-9999'"),
    (retract, "refused, or what it passed retracted"),
    (refuse, "refused, or what it passed retracted"),
    (edit, "was changed since it was judged"),
    (lambda result: shutil.rmtree(result.directory), "neither a directory nor a run"),
    (compute_in_tf32, "set_float32_matmul_precision has to allow"),
]


@pytest.mark.parametrize(("change", "why"), LEFT_OUT)
def test_a_winner_that_does_not_hold_here_is_left_out_and_the_log_says_why(
    change: Callable[[Result], None],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = remember(tmp_path / "run")
    assert Kernel(KERNEL).hash == result.outcome.best.candidate.kernel.hash
    change(result)
    with caplog.at_level(logging.INFO, "kmem.deploy"):
        assert used(Norm(), torch.randn(6, 64), monkeypatch) == []
    assert why in caplog.text


CONVOLUTION = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = torch.nn.Conv2d(4, 8, 3)
    def forward(self, x):
        return self.op(x)
def get_inputs():
    return [torch.randn(1, 4, 6, 6)]
"""


def test_where_torch_may_not_convolve_in_tf32_no_winner_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = CONVOLUTION + KERNEL.replace("class Model(", "class Unused(")
    remember(tmp_path / "norm")
    remember(tmp_path / "conv", name="conv", problem=CONVOLUTION, kernel=kernel)
    model, x = nn.Conv2d(4, 8, 3), torch.randn(1, 4, 6, 6)
    assert used(model, x, monkeypatch) == ["conv"]
    with torch.backends.cudnn.flags(allow_tf32=False), caplog.at_level(logging.INFO, "kmem.deploy"):
        assert used(model, x, monkeypatch) == []
        assert used(Norm(), torch.randn(6, 64), monkeypatch) == ["rms_norm"]
    assert "convolutions in TF32" in caplog.text


def test_the_newer_flags_of_precision_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_in_tf32(remember(tmp_path / "run"))
    x, before = torch.randn(6, 64), torch.get_float32_matmul_precision()
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # the older flag cannot be read now
    try:
        assert used(Norm(), x, monkeypatch) == ["rms_norm"]
    finally:
        torch.set_float32_matmul_precision(before)


ON_A_GPU = [
    ("NVIDIA L4", False, "it is for an NVIDIA H200"),
    ("NVIDIA H200", True, "it never ran on a GPU"),
    ("NVIDIA H200", False, ""),
]


@pytest.mark.parametrize(("present", "estimated", "why"), ON_A_GPU)
def test_on_a_gpu_only_what_was_measured_on_its_like_is_used(
    present: str,
    estimated: bool,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = finished_run(tmp_path / "run")
    keep(Result(result.run, replace(result.outcome, estimated=estimated)))
    monkeypatch.setattr(remembered, "_devices", lambda: [present])
    with caplog.at_level(logging.INFO, "kmem.deploy"):
        found = used(Norm(), torch.randn(6, 64), monkeypatch)
    assert found == ([] if why else ["rms_norm"])
    assert why in caplog.text
