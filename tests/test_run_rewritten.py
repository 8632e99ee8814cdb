"""Rewrites in a run: forms of a problem, what the author writes for them, and a whole run."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import warm

from kmem.devices import named_target
from kmem.explore.recipes.author import RecipeAuthor
from kmem.explore.recipes.rewriting import find_rewritten, predicted_ms
from kmem.interfaces import Assignment, Situation
from kmem.orchestrate.accuracy import next_rungs
from kmem.problem.costs.bound import graph_bound
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, ErrorReport, Kernel, Move, Problem, SiteChoice, Task, Workload
from kmem.rewrites import Rewrites
from kmem.skills import bundled_skills_root, load_recipes, load_rewrites, load_skill
from kmem.testing import trace_source

H200 = named_target("h200")
SOURCE = """
import torch
ROWS = {rows}
WIDTH = {width}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
    def forward(self, x):
        return torch.tanh((self.linear(torch.relu(x)) / 2).sum(1, keepdim=True))
def get_inputs():
    return [torch.randn(ROWS, WIDTH)]
"""
SUM, AVERAGE = "collapse-linear-then-sum", "average-before-linear"
CHAIN = (
    SiteChoice("sum_1", "mean", AVERAGE, ()),
    SiteChoice("sum_1_r1", "sum", SUM, ()),
)


def skills(*names: str) -> list:
    return [load_skill(bundled_skills_root() / name) for name in names]


@pytest.fixture(scope="module")
def situation() -> Situation:
    full, small = SOURCE.format(rows=512, width=2048), SOURCE.format(rows=5, width=40)
    graphs = {"full": trace_source(full)[1], "small": trace_source(small)[1]}
    traced = TracedProblem(
        Problem("gemm_sum", "<inline>", full),
        Contract(),
        H200,
        {"full": Workload("full"), "small": Workload("small")},
        graphs,
        graph_bound(graphs["full"], H200, Contract()),
    )
    rewrites = Rewrites(load_rewrites(skills(SUM, AVERAGE, "remove-dead-work"))[0])
    recipes = load_recipes(skills("fuse-pointwise-chain"))[0]
    return Situation(
        traced=traced,
        parent=None,
        diagnosis=None,
        prescriptions=(),
        history=(),
        recipes=recipes,
        writable={"fuse-pointwise-chain": 1e6},
        rewrites=rewrites,
        rewritten=find_rewritten(traced, rewrites),
        seed=0,
    )


def assignment(situation: Situation, task: Task, parent: Kernel | None = None) -> Assignment:
    known = {name: getattr(situation, name) for name in Situation.__dataclass_fields__}
    return Assignment(**{**known, "parent": parent}, task=task)


def test_forms_are_chains_that_take_work_off_the_best_named_by_its_greatest_step(
    situation: Situation,
) -> None:
    forms = situation.rewritten
    assert list(forms) == [SUM, AVERAGE]
    best = forms[SUM]
    assert (best.steps, best.flags) == (CHAIN, ("algebraic",))
    assert forms[AVERAGE].steps == CHAIN[:1]
    times = [predicted_ms(form.traced) for form in forms.values()]
    assert times[0] < times[1] < predicted_ms(situation.traced)
    assert best.traced.bound.time_ms < situation.traced.bound.time_ms
    assert set(best.traced.graphs) == {"full", "small"}


def test_a_place_that_a_workload_lacks_is_passed_over(situation: Situation) -> None:
    other = trace_source(SOURCE.format(rows=5, width=40).replace(".sum(1", ".amax(1"))[1]
    traced = replace(situation.traced, graphs={**situation.traced.graphs, "small": other})
    assert find_rewritten(traced, situation.rewrites) == {}


def test_rewritten_forms_seed_and_their_kernels_name_the_steps(situation: Situation) -> None:
    author = RecipeAuthor()
    directions = author.propose(situation)
    assert [each.skill for each in directions] == [SUM, AVERAGE, "fuse-pointwise-chain"]
    assert "one product with the sum of its weights" in directions[0].reason
    task = Task(Move.SEED, SUM, None, 2, directions[0].reason)
    kernels = [candidate.kernel for candidate in author.write(assignment(situation, task))]
    assert kernels
    for kernel in kernels:
        assert kernel.choices[:2] == CHAIN
        assert {choice.recipe for choice in kernel.choices[2:]} == {"fuse-pointwise-chain"}
        assert "algebraic" in kernel.flags
        assert "aten.amin" in kernel.source
        assert kernel.small_constants


def test_what_goes_on_from_a_rewritten_kernel_is_written_for_its_form(
    situation: Situation,
) -> None:
    author = RecipeAuthor()
    seed = Task(Move.SEED, SUM, None, 1, "")
    (first,) = author.write(assignment(situation, seed))
    parent = first.kernel
    again = replace(situation, parent=parent)
    assert SUM not in [each.skill for each in author.propose(again)]
    tune = Task(Move.TUNE, "fuse-pointwise-chain", parent.hash, 2, "")
    for candidate in author.write(assignment(situation, tune, parent)):
        assert candidate.kernel.choices[:2] == CHAIN
    recall = Task(Move.RECALL, SUM, None, 1, "", parent.choices)
    (recalled,) = author.write(assignment(situation, recall))
    assert recalled.kernel.choices == parent.choices
    error = ErrorReport("drawn", 0, 2e-6, 1e-7, 1e-6, 2.0)
    known = situation.traced, situation.recipes, situation.rewrites
    assert next_rungs(parent, error, *known) is None


def test_a_form_may_be_left_to_the_library_and_a_lost_step_is_not_guessed(
    situation: Situation,
) -> None:
    author, bare = RecipeAuthor(), replace(situation, recipes={}, writable={})
    (only,) = author.write(assignment(bare, Task(Move.SEED, SUM, None, 3, "")))
    assert only.kernel.choices == CHAIN
    assert only.estimated_ms is None
    lost = (replace(CHAIN[0], site="sum_9"), *CHAIN[1:])
    recall = Task(Move.RECALL, SUM, None, 1, "", lost)
    assert author.write(assignment(bare, recall)) == []


POOLED = """
import torch
BATCH = 512
SIZE = 256
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.max_pool2d(torch.tanh(x), 4)
def get_inputs():
    return [torch.randn(BATCH, 1, SIZE, SIZE)]
"""


@pytest.mark.slow
def test_a_run_without_a_gpu_ends_with_the_rewritten_kernel(tmp_path: Path) -> None:
    problem = tmp_path / "pooled.py"
    problem.write_text(POOLED)
    left_out = ("TRITON_INTERPRET", "COVERAGE_PROCESS_CONFIG")  # its lines run in other tests
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    done = warm.run(
        *("optimize", str(problem), "--target", "h200", "--rounds", "0", "--candidates", "2"),
        *("--json", "--out", str(tmp_path / "run")),
        env={**kept, "KMEM_DB": str(tmp_path / "kmem.db"), "KMEM_EMBEDDING_MODEL": "none"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["status"] == "passed"
    assert "algebraic" in result["flags"]
    assert result["choices"][0]["recipe"] == "move-monotone-past-max"
    assert result["speedup"] > 1.5
    report = (tmp_path / "run" / "report.md").read_text()
    assert (
        "- rewritten by move-monotone-past-max: tanh does not decrease: it runs on the maxima of "
        "max_pool2d alone" in report
    )
