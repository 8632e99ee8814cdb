"""Finished runs for tests of shipping: a run directory with a kernel written by hand.

The kernel is a real one, of the form that recipes emit, at sizes for the interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

from kmem.devices import named_target
from kmem.measure.bundle import FORMAT, Bundle, write_bundle
from kmem.records import (
    Attempt,
    Baseline,
    Budget,
    Candidate,
    Contract,
    ErrorReport,
    Kernel,
    Measurement,
    Move,
    Problem,
    Run,
    RunResult,
    SiteChoice,
    Status,
    Task,
    Timing,
)
from kmem.run.report.result import Result
from kmem.serialize import to_json

PROBLEM = '''"""RMS norm with a learnt scale, as language models have it."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def get_inputs():
    return [torch.randn(ROWS, 64)]


def get_init_inputs():
    return [64, 1e-6]
'''

KERNEL = '''"""RMS norm, a row a program."""

import torch
import triton
import triton.language as tl


class Model(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


@triton.jit
def rms_norm(source, weight, target, eps):
    place = tl.program_id(0) * 64 + tl.arange(0, 64)
    x = tl.load(source + place)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / 64 + eps)
    tl.store(target + place, x * scale * tl.load(weight + tl.arange(0, 64)))


class ModelNew(Model):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rms_norm[(x.shape[0],)](x, self.weight, out, self.eps)
        return out
'''


def problem_source(rows: int) -> str:
    return PROBLEM.replace("ROWS", str(rows))


def finished_run(
    directory: Path,
    rows: int = 6,
    *,
    name: str = "rms_norm",
    problem: str | None = None,
    kernel: str = KERNEL,
    choices: tuple[SiteChoice, ...] = (),
) -> Result:
    """A run that found a kernel, with its files, as `kmem optimize` leaves them."""
    directory.mkdir(parents=True)
    source = problem if problem is not None else problem_source(rows)
    asked = Problem(name, str(directory / f"{name}.py"), source)
    run = Run(
        f"run-{name}", asked, "h200", Contract(), Budget(), "rw", 0, str(directory), "2026-11-22"
    )
    made = Kernel(kernel, choices=choices)
    timing = Timing(0.01, 0.009, 0.011, 10)
    error = ErrorReport("normal", 1, 1e-7, 1e-7, 2e-6, 0.05)
    measurement = Measurement(Status.PASSED, timing, True, (error,), ("specialised",))
    task = Task(Move.SEED, "row-norm", None, 1, "written by hand")
    attempt = Attempt(0, Candidate(made, task, "recipes"), measurement, None)
    eager = Baseline("eager", Timing(0.02, 0.019, 0.021, 10), True)
    outcome = RunResult(
        run.id, name, "h200", True, attempt, (eager,), None, 2.0, None, False, 1, 1.0, "done"
    )
    (directory / "best_kernel.py").write_text(kernel)
    (directory / "run.json").write_text(to_json(run))
    (directory / "result.json").write_text(to_json(outcome))
    bundle = Bundle(
        FORMAT, asked, asked.hash, kernel, made.hash, (), "", Contract(), named_target("h200"),
        False, 0, (), measurement, (eager,), {}, {}, (), {}, "kmem optimize", "2026-11-22",
    )  # fmt: skip
    write_bundle(directory / "evidence" / f"{made.hash}.json", bundle)
    return Result(run, outcome)


def run_without_kmem(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a package's directory, in a process that cannot import kmem."""
    (directory / "conftest.py").write_text("import sys\nsys.modules['kmem'] = None\n")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(directory)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
