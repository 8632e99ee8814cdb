"""A kernel that passed a final verdict is timed against a later baseline, and not proved anew."""

from pathlib import Path

import pytest
from corpus import problems
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.measure import verification
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import untraced_problem
from kmem.records import Contract, Kernel, Problem, Status

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_template")]  # starts workers

PROBLEM = Problem("corpus", "<corpus>", problems.SCALE_RELU)


def test_a_second_verdict_checks_the_values_that_are_timed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("check_case", "check_families", "check_repeats", "check_variants"):
        monkeypatch.setattr(verification, name, _noting(steps, name, getattr(verification, name)))
    traced = untraced_problem(PROBLEM, Contract(), named_target("h200"))
    settings = JudgeSettings(
        seed=3,
        gpu=False,
        work_dir=tmp_path,
        cache_dir=tmp_path / "cache",
        bundle_dir=tmp_path / "evidence",
    )
    times = [1.0, 2.0, 3.0]
    with Judge(traced, settings, estimate_ms=lambda kernel: times.pop(0)) as judge:
        first = judge.verify(Kernel(LIBRARY), ())
        proving, steps[:] = set(steps), []
        again = judge.verify(Kernel(LIBRARY), ())
        timing, steps[:] = list(steps), []
        judge.verify(Kernel(LIBRARY + "# another\n"), ())
    assert first.status is again.status is Status.PASSED
    assert (first.timing.latency_ms, again.timing.latency_ms) == (1.0, 2.0)
    assert (again.errors, again.flags) == (first.errors, first.flags)
    assert (
        proving == set(steps) == {"check_case", "check_families", "check_repeats", "check_variants"}
    )
    assert timing == ["check_case"]
    (bundle, _) = sorted((tmp_path / "evidence").iterdir(), key=lambda file: file.stat().st_mtime)
    assert bundle.name == f"{Kernel(LIBRARY).hash}.json"


def _noting(steps: list[str], name: str, function: object) -> object:
    def noted(*args: object, **more: object) -> object:
        steps.append(name)
        return function(*args, **more)

    return noted
