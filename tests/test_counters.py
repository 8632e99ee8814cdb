"""Counters of batches: those of all batch norms are moved along by one call."""

from pathlib import Path

import pytest
import torch

from kmem.codegen.module.assemble import WorkloadPlan, assemble_module
from kmem.codegen.module.counters import move_together
from kmem.devices import named_target
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.measure.source_check import check_source
from kmem.problem.traced import untraced_problem
from kmem.records import Contract, Kernel, Problem, Status
from kmem.testing import import_source, trace_source

H200 = named_target("h200")

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("twos", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.twos += 2
        {more}
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))){result}

def get_inputs():
    return [torch.randn(2, 3, 4, 4)]
"""


def written(source: str) -> tuple[object, str]:
    module, graph = trace_source(source)
    plan = WorkloadPlan("full", graph, ())
    return module, assemble_module("counters", source, [plan]).source


@pytest.mark.parametrize(
    ("more", "result", "alone"),
    [
        ("pass", "", []),
        ("self.steps += 1", " * self.steps", ["b_steps"]),  # it is read
        ("self.steps += 1; self.steps += 1", "", ["b_steps", "add__1"]),  # it grows twice
        ("self.a(x)", "", ["b_a_num_batches_tracked", "add__1"]),
    ],
)
def test_counters_that_nothing_reads_move_together(more: str, result: str, alone: list) -> None:
    source = PROBLEM.format(more=more, result=result)
    module, text = written(source)
    forward = text[text.index("def _forward") : text.index("class ModelNew")]
    assert forward.count("torch.ops.aten._foreach_add_.Scalar(") == 1
    # twos has a step of its own
    added = [line.split("(")[1].split(",")[0] for line in forward.splitlines() if "add_.T" in line]
    assert sorted(added) == sorted([*alone, "b_twos"])
    assert check_source(text, problem_source=source) == []
    made = import_source(text)
    torch.manual_seed(0)
    model, new = module.Model(), made.ModelNew()
    for _ in range(2):
        (x,) = module.get_inputs()
        with torch.no_grad():
            torch.testing.assert_close(new(x), model(x))
    for (name, one), other in zip(model.named_buffers(), new.buffers(), strict=True):
        torch.testing.assert_close(other, one, msg=name)


def test_one_counter_stays_as_it_is() -> None:
    source = PROBLEM.replace("self.c(torch.relu(self.b(torch.relu(self.a(x)))))", "self.a(x)")
    _, graph = trace_source(source.format(more="pass", result=""))
    assert move_together(graph) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_template")  # starts workers
def test_a_module_whose_counters_move_together_passes_the_judge(tmp_path: Path) -> None:
    """A network with two batch norms was refused for the name of the operator that moves them."""
    source = PROBLEM.format(more="pass", result="")
    _, text = written(source)
    traced = untraced_problem(Problem("counters", "<counters>", source), Contract(), H200)
    settings = JudgeSettings(
        seed=3, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "c", bundle_dir=tmp_path / "e"
    )
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
        verdict = judge.verify(Kernel(text), ())
    assert (verdict.status, verdict.log) == (Status.PASSED, "")
