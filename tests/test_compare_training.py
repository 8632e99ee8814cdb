"""tools/compare_training.py: a loss curve with kernels beside eager's, and eager's noise."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from test_whole_composed import composed_of

TOOL = Path(__file__).parents[1] / "tools" / "compare_training.py"
MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(16, 32)
        self.out = torch.nn.Linear(32, 4)
    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))
def get_inputs():
    return [torch.randn(8, 16)]
"""
#: Half of the piece as it is, its first result through a kernel.
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, COUNT: tl.constexpr, BY: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(y + at, tl.load(x + at) * BY)

class ModelNew(Model):
    def forward(self, *inputs):
        x, *others = super().forward(*inputs)
        y = torch.empty_like(x)
        scale[(1,)](x.contiguous(), y, x.numel(), {by})
        return (y, *others)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "backward", "same"),
    [("1.0", "1.0", True), ("1.1", "1.0", False), ("1.0", "-1.0", False)],
)
def test_a_curve_with_kernels_is_held_to_eagers_noise(
    forward: str, backward: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, out = tmp_path / "net.py", tmp_path / "out"
    place.write_text(MODEL, encoding="utf-8")
    halves = KERNEL.format(by=forward), KERNEL.format(by=backward)
    composed_of(str(place), tmp_path, halves[0], backward=halves[1])
    words = [str(place), "--run", str(tmp_path / "composed"), "--out", str(out), "--steps", "9"]
    monkeypatch.setattr("sys.argv", [str(TOOL), *words, "--rate", "1e-2"])
    monkeypatch.syspath_prepend(str(TOOL.parent))
    monkeypatch.setenv("KMEM_STRICT", "1")  # the tool sets it, and the tests after this one run on
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(TOOL), run_name="__main__")
    found = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert found["same"] is same and ended.value.code == (0 if same else 1)
    first, last, ours = found["first_and_last_loss"]
    assert last < first and (ours == pytest.approx(last, rel=1e-3)) is same
    lines = (out / "curves.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "step,eager,kmem,noise_low,noise_high" and len(lines) == 10
    assert (out / "curves.png").stat().st_size > 1000
    trainings = (out / "trainings.jsonl").read_text(encoding="utf-8").strip().splitlines()
    assert len(trainings) == 21
    if same:
        _goes_on(out / "trainings.jsonl", trainings)


def _goes_on(place: Path, trainings: list[str]) -> None:
    """A call trains what a call before it was cut off in, and no more."""
    place.write_text("\n".join([*trainings[:-1], trainings[-1][:40]]), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(TOOL), run_name="__main__")
    lines = place.read_text(encoding="utf-8").splitlines()
    assert ended.value.code == 0 and len(lines) == 22 and lines[:20] == trainings[:20]
    assert json.loads(lines[-1])["losses"] == json.loads(trainings[-1])["losses"]
    with pytest.MonkeyPatch.context() as other, pytest.raises(SystemExit) as ended:
        other.setattr("sys.argv", [*sys.argv, "--steps", "8"])
        runpy.run_path(str(TOOL), run_name="__main__")
    assert ended.value.code == 2 and place.read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize(("factor", "same"), [(1.0005, True), (1.002, False)])
def test_of_few_trainings_the_difference_alone_decides(
    factor: float, same: bool, judge: Any
) -> None:
    noise = [[3.0 * (1 + k / 100), 2.0] for k in range(5)]
    found = judge([3.0 * factor, 2.0], [3.0, 2.0], noise)
    assert found.same is same and ("by 0.1%" if same else "6 trainings") in found.reason


@pytest.fixture(scope="module")
def judge() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOL.parent))
        return runpy.run_path(str(TOOL))["judge"]


@pytest.mark.parametrize(
    ("factors", "spread", "same", "reason"),
    [
        ([1.001, 0.999, 1.001], 0.01, True, "within eager's noise"),
        ([1.01, 1.02, 1.03], 0.001, False, "beyond eager's noise"),
        ([1.0005, 1.0005, 1.0005], 1e-5, True, "no step differs by 0.1%"),
        ([1.0, float("nan"), 1.0], 0.01, False, "a loss is not finite"),
    ],
)
def test_a_verdict_says_by_what_curves_are_the_same(
    factors: list[float], spread: float, same: bool, reason: str, judge: Any
) -> None:
    eager = [3.0, 2.0, 1.0]
    noise = [[x * (1 + spread * (k - 9) / 9) for x in eager] for k in range(19)]
    found = judge([a * b for a, b in zip(eager, factors, strict=True)], eager, noise)
    assert found.same is same and reason in found.reason
