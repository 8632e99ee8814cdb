"""Programs that share a row: that they wait is proved, and that none reads what others change."""

from pathlib import Path

import pytest
from module_problems import problem, recipe

from kmem.devices import named_target
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Measurement, Problem, Purity, Status, Workload
from kmem.run.evaluation.compiling import KernelCompiler
from kmem.testing import emit_source, trace_source

pytestmark = pytest.mark.usefixtures("shared_template")

H200 = named_target("h200")
SHARED = {"STRATEGY": "shared", "BK": 1, "BR": 8, "SPLIT": 3, "num_warps": 4}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("skill", "text"),
    [
        ("online-softmax", problem("torch.softmax(x, 1)", "torch.randn(3, 37)")),
        # two passes: what the second adds up needs the mean of the first
        (
            "row-norm",
            problem(
                "(x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True) + 1e-3)",
                "torch.randn(3, 37)",
            ),
        ),
    ],
)
def test_what_waits_on_a_device_waits_in_the_proof(skill: str, text: str, tmp_path: Path) -> None:
    measurement, compiled = judged(skill, text, SHARED, tmp_path)
    assert (measurement.status, measurement.log) == (Status.PASSED, "")
    (launched,) = compiled  # one launch for all passes: its programs wait
    assert launched.endswith("_shared")


@pytest.mark.slow
def test_of_the_programs_of_a_channel_one_alone_reads_the_statistics_that_it_moves(
    tmp_path: Path,
) -> None:
    text = problem("self.norm(x)", "torch.randn(37, 5)", "self.norm = nn.BatchNorm1d(5)")
    split = {"STRATEGY": "split", "BK": 2, "BR": 4, "SPLIT": 3, "num_warps": 4}
    measurement, compiled = judged("batch-norm-training-statistics", text, split, tmp_path)
    assert (measurement.status, measurement.log) == (Status.PASSED, "")
    assert any(name.endswith("_apply") for name in compiled)


def judged(
    skill: str, text: str, settings: dict[str, object], tmp_path: Path
) -> tuple[Measurement, tuple[str, ...]]:
    """The verdict on what a skill writes for a problem, and the kernels that were compiled."""
    chosen, graph = recipe(skill), trace_source(text)[1]
    (site,) = chosen.match(graph, Contract())
    kernel = Kernel(emit_source(text, graph, [(chosen, site, settings)]))
    traced = TracedProblem(
        Problem("rows", "<rows>", text),
        Contract(purity=Purity.TRITON),
        H200,
        {"full": Workload("full")},
        {},
        None,
    )
    terms = JudgeSettings(seed=1, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "cache")
    with (
        KernelCompiler(traced, lambda _: None, cache_dir=tmp_path / "triton") as compiler,
        Judge(traced, terms, estimate_ms=lambda _: 1.0, compile_at=compiler.compile_at) as judge,
    ):
        measurement = judge.verify(kernel, ())
        return measurement, compiler.compile_at(kernel, Workload("full")).kernels
