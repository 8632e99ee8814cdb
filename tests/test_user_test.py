"""`--test`: the user's own test is a further check of a final verdict, behind the judge's walls."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kmem.cli import cli
from kmem.errors import CaseError
from kmem.measure.user_test import read_user_test, run_user_test
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Kernel, Problem

pytestmark = pytest.mark.usefixtures("shared_template")

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(8, 64)]
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
"""
HEAD = "import torch\nfrom kernel import ModelNew\nfrom problem import Model\n"
ONE_CALL = "x = torch.randn(SIZES)\n    assert torch.equal(ModelNew()(x), Model()(x))\n"


@pytest.fixture(autouse=True)
def without_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A confined process cannot write coverage's data."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)


def outcome(home: Path, text: str, **more: float) -> str:
    file = home / "check_it.py"
    file.write_text(text)
    problem = Problem("relu", str(home / "relu.py"), PROBLEM)
    return run_user_test(read_user_test(file), Kernel(KERNEL), problem, gpu=False, **more)


def test_pytest_and_scripts_fail_with_what_they_say(tmp_path: Path) -> None:
    failed = outcome(tmp_path, f"{HEAD}def test_small():\n    assert ModelNew.speed > 3\n")
    assert failed.startswith("your test check_it.py fails (exit code 1):")
    assert "has no attribute 'speed'" in failed
    script = "import sys\nfrom kernel import ModelNew\nprint('too dull')\nsys.exit(7)\n"
    assert outcome(tmp_path, script) == ("your test check_it.py fails (exit code 7):\ntoo dull")


def test_what_a_test_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    """A process of its own, of which the number is told at the end."""
    left = "import os, sys, time\nchild = os.fork()\nif not child:\n    time.sleep(120)\n"
    said = outcome(tmp_path, f"{left}print('left', child, flush=True)\nsys.exit(3)\n")
    number = int(said.rsplit("left ", 1)[1])
    deadline = time.monotonic() + 20
    while is_at_work(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_at_work(number)


def is_at_work(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_test_that_hangs_is_ended_and_one_behind_walls_reaches_nothing(tmp_path: Path) -> None:
    hanging = outcome(tmp_path, "import time\ntime.sleep(60)\n", timeout_s=1.0)
    assert hanging == "your test check_it.py did not end within 1 s"
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    assert "Permission denied" in outcome(tmp_path, f"print(open({str(secret)!r}).read())\n")


def test_a_test_passes_and_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "expectations.py").write_text("SIZES = (3, 5)\n")
    text = f"{HEAD}from expectations import SIZES\ndef test_it():\n    {ONE_CALL}"
    assert outcome(tmp_path, text) == ""


def test_a_file_that_is_no_python_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def test(:\n")
    with pytest.raises(CaseError, match="cannot be read"):
        read_user_test(file)


@pytest.mark.slow(after=10)
@pytest.mark.parametrize("holds", [True, False])
def test_a_verdict_counts_it_beside_the_judges_own_checks(
    holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    problem, kernel = tmp_path / "relu.py", tmp_path / "mine.py"
    problem.write_text(PROBLEM)
    kernel.write_text(KERNEL)
    check = tmp_path / "test_mine.py"
    check.write_text(f"{HEAD}def test_it():\n    assert {holds}\n")
    told = CliRunner().invoke(
        cli,
        ["verify", str(problem), str(kernel), "--test", str(check), "--target", "h200", "--json"],
        obj=collect(build_plugin_manager()),
    )
    found = json.loads(told.stdout)
    assert found["status"] == ("passed" if holds else "wrong_values")
    assert holds or "your test test_mine.py fails" in found["log"]
