"""How much CPU time a verdict takes on small problems, without a GPU.

    python tools/benchmark_verdict.py 3

prints user and system seconds of judge and workers together, the least of that many rounds: on a
busy machine wall time says nothing. A round judges one kernel of each of a few small problems,
each in a fresh worker, as `kmem verify` does.
"""

import os
import sys
import tempfile
from pathlib import Path

from kmem.devices import named_target
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Problem, Status, Workload

_HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
_MODEL = """

class {name}(nn.Module):
    def forward(self, x):
        return {expression}
"""
_INPUTS = "\n\ndef get_inputs():\n    return [torch.rand(6, 40)]\n"
_KERNEL = """

@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=m) * 2.0, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        twice[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
"""


def _case(expression: str) -> tuple[str, str]:
    problem = _HEAD + _MODEL.format(name="Model", expression=expression) + _INPUTS
    return problem, _HEAD + _MODEL.format(name="ModelNew", expression=expression)


CASES = (
    _case("torch.softmax(x, dim=-1)"),
    _case("torch.relu(x).sum(1)"),
    (_case("x * 2")[0], _HEAD + _KERNEL),
)


def judge_all(place: Path) -> None:
    """One verdict on each case; SystemExit if a kernel does not pass."""
    for index, (problem, source) in enumerate(CASES):
        traced = TracedProblem(
            Problem(f"p{index}", f"<p{index}>", problem),
            Contract(),
            named_target("h200"),
            {"full": Workload("full")},
            {},
            None,
        )
        settings = JudgeSettings(seed=7, gpu=False, work_dir=place, cache_dir=place / "cache")
        with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
            verdict = judge.verify(Kernel(source), ())
        if verdict.status is not Status.PASSED:
            sys.exit(f"case {index}: {verdict.status}: {verdict.log}")


def main() -> None:
    """argv: the number of rounds."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    taken = []
    with tempfile.TemporaryDirectory() as place:
        for _ in range(rounds):
            before = os.times()
            judge_all(Path(place))
            taken.append(sum(os.times()[:4]) - sum(before[:4]))
    print(f"{min(taken):.2f} s of CPU for {len(CASES)} verdicts, the least of {rounds} rounds")


if __name__ == "__main__":
    main()
