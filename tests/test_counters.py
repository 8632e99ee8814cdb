"""Counters of batches: those of all batch norms are moved along by one launch."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.counters import find_counters
from kmem.codegen.module.plan import WorkloadPlan
from kmem.devices import named_target
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.measure.source_check import check_source
from kmem.problem.graph import OpGraph
from kmem.problem.traced import untraced_problem
from kmem.recipes import Site
from kmem.records import Contract, Kernel, Problem, Purity, Status
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, import_source, trace_source

H200 = named_target("h200")
SKILLS = Path(__file__).resolve().parent.parent / "skills"
CHAINS, NORMS = (
    load_recipe(load_skill(SKILLS / name))
    for name in ("fuse-pointwise-chain", "batch-norm-training-statistics")
)

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
    """A problem, and its module with the pointwise chains written by a recipe."""
    module, graph = trace_source(source)
    sites = [(CHAINS, site, CHAINS.space(site, H200).settings()[0]) for site in find(graph)]
    return module, emit_source(source, graph, sites)


def find(graph: OpGraph) -> Sequence[Site]:
    return CHAINS.match(graph, Contract())


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
    assert forward.count("_launch_counters_") == 1
    # twos is assigned anew
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


def test_counters_alone_are_the_librarys() -> None:
    """A module that launches nothing else would launch a decoy."""
    source = PROBLEM.format(more="pass", result="")
    _, graph = trace_source(source)
    text = assemble_module("counters", source, [WorkloadPlan("full", graph, ())]).source
    assert text.count("add_.Tensor(") == 4
    assert "triton.jit" not in text


def test_a_launch_moves_so_many_of_one_step() -> None:
    source = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for place in range(130):
            self.register_buffer(f"n{place}", torch.zeros((), dtype=torch.int64))
        self.register_buffer("twos", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        for place in range(130):
            getattr(self, f"n{place}").add_(1)
        self.twos.add_(2)
        return x.relu()

def get_inputs():
    return [torch.randn(2, 3)]
"""
    _, graph = trace_source(source)
    found = find_counters(graph)
    assert [(step, len(nodes)) for step, nodes in found] == [(1, 128), (1, 2), (2, 1)]
    module, text = written(source)
    new = import_source(text).ModelNew()
    with torch.no_grad():
        new(torch.randn(2, 3))
    assert [int(value) for value in new.buffers()] == [*[1] * 130, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_template")  # starts workers
@pytest.mark.parametrize("purity", Purity)
def test_a_module_whose_counters_move_together_passes_the_judge(
    tmp_path: Path, purity: Purity
) -> None:
    """A network with two batch norms was refused for the name of the operator that moved them."""
    source = PROBLEM.replace("self.twos += 2", "pass").format(more="pass", result="")
    _, graph = trace_source(source)
    sites = [
        (NORMS, site, NORMS.space(site, H200).settings()[0])
        for site in NORMS.match(graph, Contract())
    ]
    text = emit_source(source, graph, sites)
    traced = untraced_problem(
        Problem("counters", "<counters>", source), Contract(purity=purity), H200
    )
    settings = JudgeSettings(
        seed=3, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "c", bundle_dir=tmp_path / "e"
    )
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
        verdict = judge.verify(Kernel(text), ())
    assert (verdict.status, verdict.log) == (Status.PASSED, "")
