"""One estimate for all: the module itself, its profile, candidates, and what is verified."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.explore.recipes.cover import find_options
from kmem.explore.recipes.evidence import MeasuredEstimates
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import load_problem
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.profile.compile.pool import CompilePool
from kmem.profile.estimate import estimate_report_ms
from kmem.profile.job import reference_kernel
from kmem.profile.static import static_profile
from kmem.recipes import ACCURACY
from kmem.records import Baseline, Budget, Contract, Kernel, MeasuredKernel, Run, SiteChoice
from kmem.run.evaluation.evaluator import LiveEvaluator
from kmem.run.evaluation.processes import EvaluatorProcesses
from kmem.run.setup.session import Session, open_session
from kmem.skills import load_recipe, load_skill

ROOT = Path(__file__).parent.parent
H200 = named_target("h200")
LINEAR_GELU = """
import torch
import torch.nn.functional as F

TOKENS, WIDTH = 4096, 1024


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
"""
CONVOLUTION = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(64, 64, 3)

    def forward(self, x):
        return self.conv(x)


N = 64
def get_inputs():
    return [torch.randn(N, 64, 128, 128)]
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> TracedProblem:
    file = tmp_path_factory.mktemp("problem") / "linear_gelu.py"
    file.write_text(LINEAR_GELU, encoding="utf-8")
    return trace_at_full_size(load_problem(file), Contract(), H200)


@pytest.fixture(scope="module")
def pool(traced: TracedProblem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with CompilePool(
        traced, processes=1, cache_dir=tmp_path_factory.mktemp("triton")
    ) as compile_pool:
        yield compile_pool


def best_of(skill: str, traced: TracedProblem) -> Kernel:
    """The module with a skill's kernel at its first site, in the setting its cost model likes."""
    recipe = load_recipe(load_skill(ROOT / "skills" / skill))
    option = find_options(traced.graphs, {skill: recipe}, traced.contract, H200)[0]
    site = SitePlan(option.site, recipe.emit(option.site, option.ranked[0][1]))
    plan = WorkloadPlan("full", traced.graph, (site,))
    return Kernel(assemble_module(skill, traced.problem.source, [plan]).source)


@pytest.mark.slow  # compiles for a GPU
def test_of_two_ways_to_write_a_product_the_estimate_favours_the_one_that_was_measured_faster(
    traced: TracedProblem, pool: CompilePool
) -> None:
    """On an H200 split-fp16-matmul is three- to fourfold as fast as tile-matmul (db/evidence)."""
    kernels = [best_of(name, traced) for name in ("split-fp16-matmul", "tile-matmul")]
    split, tile = (
        estimate_report_ms(report, traced) for report in pool.compile(kernels, timeout_s=120)
    )
    assert traced.bound.time_ms < split < tile / 2


@pytest.mark.slow  # compiles for a GPU
def test_baseline_profile_and_a_copy_of_the_module_take_equally_long(
    traced: TracedProblem, pool: CompilePool, tmp_path: Path
) -> None:
    copy = Kernel(f"# a copy\n{LINEAR_GELU}\n\nclass ModelNew(Model):\n    pass\n")
    unmodified = reference_kernel(traced.problem)
    reports = pool.compile([unmodified, copy], timeout_s=120)
    profile = static_profile(reports[0], traced.bound, H200)
    expected_ms = sum(launch.duration_ms for launch in profile.launches)
    assert [estimate_report_ms(report, traced) for report in reports] == [expected_ms] * 2
    run = Run("one", traced.problem, "h200", Contract(), Budget(), "off", 0, str(tmp_path), "")
    registry = collect(build_plugin_manager())
    with (
        Memory(tmp_path / "kmem.db") as memory,
        EvaluatorProcesses(tmp_path, tmp_path / "cache", present=False) as processes,
    ):
        session: Session = open_session(traced.problem, Contract(), H200, False, registry, memory)
        evaluator = LiveEvaluator(run, session, registry, processes, lambda stage, text: None)
        try:
            found: list[Baseline] = []
            evaluator.baselines(("eager",), math.inf, found.append)
            (eager,) = found
        finally:
            evaluator.close()
    assert eager.estimated and eager.timing.latency_ms == expected_ms


@pytest.mark.slow  # compiles for a GPU
def test_a_convolution_is_estimated_on_the_unit_that_pytorch_uses(
    pool: CompilePool, tmp_path: Path
) -> None:
    file = tmp_path / "convolution.py"
    file.write_text(CONVOLUTION, encoding="utf-8")
    convolution = trace_at_full_size(load_problem(file), Contract(), H200)
    with CompilePool(convolution, processes=1, cache_dir=tmp_path / "triton") as compile_pool:
        (report,) = compile_pool.compile([reference_kernel(convolution.problem)], timeout_s=120)
    product_flops = 2 * 64 * 64 * 126 * 126 * 64 * 9
    assert (
        sum(launch.metrics.get("static__flops", 0) for launch in report.launches) == product_flops
    )
    in_fp32_ms = 1e3 * product_flops / H200.peak_flops_per_s["fp32"]
    assert estimate_report_ms(report, convolution) < in_fp32_ms


# ---- what was measured of the same recipes on the same graph and card

PRODUCTS = ("split-fp16-matmul", "tile-matmul")


@pytest.fixture(scope="module")
def ranked(traced: TracedProblem) -> dict[str, list[tuple[tuple[SiteChoice, ...], float]]]:
    """By recipe, the choices of a kernel of its first site, with what the cost model says."""
    found = {}
    for name in PRODUCTS:
        recipe = load_recipe(load_skill(ROOT / "skills" / name))
        option = find_options(traced.graphs, {name: recipe}, traced.contract, H200)[0]
        found[name] = [
            (
                (
                    SiteChoice(
                        option.site.name,
                        option.site.operator,
                        name,
                        tuple(sorted(settings.items())),
                    ),
                ),
                cost_ms,
            )
            for cost_ms, settings in option.ranked
        ]
    return found


def estimates(traced: TracedProblem, measured: list[MeasuredKernel]) -> MeasuredEstimates:
    recipes = {name: load_recipe(load_skill(ROOT / "skills" / name)) for name in PRODUCTS}
    return MeasuredEstimates(traced, recipes, measured)


def test_without_evidence_a_kernel_takes_what_binaries_and_cost_models_say_at_least(
    traced: TracedProblem, ranked: dict
) -> None:
    choices, cost_ms = ranked["tile-matmul"][0]
    nothing = estimates(traced, [])
    assert nothing.expect_ms(choices, 9.0, 0.0) == 9.0
    assert nothing.expect_ms(choices, 0.001, 0.25) == cost_ms + 0.25
    assert nothing.expect_ms((), 0.001, 0.0) == 0.001, "no recipe wrote it"
    assert nothing.expect_ms(choices, float("inf"), 0.0) == float("inf"), "it does not compile"


def test_what_was_measured_before_a_recipe_had_rungs_counts_for_the_lowest(
    traced: TracedProblem, ranked: dict
) -> None:
    choices, _ = ranked["tile-matmul"][0]
    (choice,) = choices
    old = replace(choice, knobs=tuple(knob for knob in choice.knobs if knob[0] != ACCURACY))
    assert old != choice
    known = estimates(traced, [MeasuredKernel((old,), 3.0)])
    assert known.expect_ms(choices, 0.1, 0.0) == known.expect_ms((old,), 0.1, 0.0) == 3.0


def test_a_setting_that_was_measured_takes_what_it_took(
    traced: TracedProblem, ranked: dict
) -> None:
    choices, _ = ranked["tile-matmul"][0]
    assert estimates(traced, [MeasuredKernel(choices, 3.0)]).expect_ms(choices, 0.1, 0.0) == 3.0


def test_measured_kernels_overrule_which_recipe_is_estimated_to_be_faster(
    traced: TracedProblem, ranked: dict
) -> None:
    """Others of a recipe that was measured slower than predicted are expected slower, too."""
    tried = [(name, rank) for name in PRODUCTS for rank in (1, 2, 3)]
    factor = {"split-fp16-matmul": 6.0, "tile-matmul": 0.5}
    measured = [
        MeasuredKernel(ranked[name][rank][0], factor[name] * ranked[name][rank][1])
        for name, rank in tried
    ]
    before, after = estimates(traced, []), estimates(traced, measured)
    split, tile = (ranked[name][0][0] for name in PRODUCTS)
    assert before.expect_ms(split, 0.05, 0.0) < before.expect_ms(tile, 0.05, 0.0)
    assert after.expect_ms(split, 0.05, 0.0) > after.expect_ms(tile, 0.05, 0.0)
