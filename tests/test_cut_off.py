"""What is under way when a run's minutes end is cut off, and says nothing about its kernel."""

import time
from pathlib import Path

import pytest
from corpus import problems
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.measure import judge as judge_module
from kmem.measure.examine.examination import CUT_OFF, Examination
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem, untraced_problem
from kmem.profile.compile.pool import CompilePool
from kmem.profile.compile.report import CompileStatus
from kmem.records import Contract, Kernel, Problem, Status, Workload

PROBLEM = Problem("corpus", "<corpus>", problems.SCALE_RELU)


def judge(place: Path, left: list[float]) -> Judge:
    """A judge whose time to the cut-off is what the list says, one entry a look."""
    traced = TracedProblem(
        PROBLEM, Contract(), named_target("h200"), {"full": Workload("full")}, {}, None
    )
    settings = JudgeSettings(seed=3, gpu=False, work_dir=place, cache_dir=place / "cache")
    return Judge(
        traced,
        settings,
        estimate_ms=lambda kernel: 1.0,
        seconds_left=lambda: left.pop(0) if len(left) > 1 else left[0],
    )


@pytest.mark.slow
@pytest.mark.parametrize("left", [[-1.0], [20.0] * 6 + [-1.0]])
def test_an_examination_is_cut_off_between_two_steps(tmp_path: Path, left: list[float]) -> None:
    with judge(tmp_path, left) as made:
        verdict = made.verify(Kernel(LIBRARY), ())
    assert (verdict.status, verdict.log) == (Status.INTERRUPTED, CUT_OFF)


@pytest.mark.slow
def test_a_kernel_that_hangs_in_a_screening_leaves_time_for_the_final_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "_OVERTIME_S", 1.0)
    hangs = LIBRARY.replace("return", "while True: pass\n        return")
    with judge(tmp_path, [1000.0]) as made:
        made.screen([Kernel(LIBRARY)], lambda index, verdict: None, deadline_s=100.0)
        started = time.monotonic()
        (verdict,) = made.screen([Kernel(hangs)], lambda index, verdict: None, deadline_s=2.0)
    assert (verdict.status, verdict.log) == (Status.INTERRUPTED, CUT_OFF)
    assert time.monotonic() - started < 20.0  # a kernel may else take a minute


def test_a_worker_has_no_longer_for_an_answer_than_is_left() -> None:
    left = [30.0]
    made = Examination(Kernel(LIBRARY), None, Contract(), 90.0, 60.0, seconds_left=lambda: left[0])
    assert (made.load_timeout_s, made.run_timeout_s) == (30.0, 30.0)
    left[0] = 75.0
    assert (made.load_timeout_s, made.run_timeout_s) == (75.0, 60.0)
    left[0] = -3.0
    assert (made.load_timeout_s, made.run_timeout_s) == (1.0, 1.0)


def test_modules_that_are_not_compiled_in_time_are_late_and_not_failed() -> None:
    traced = untraced_problem(PROBLEM, Contract(), named_target("h200"))
    with CompilePool(traced, processes=1) as pool:
        reports = pool.compile([Kernel(LIBRARY), Kernel("# another")], timeout_s=60.0, within_s=0.0)
    assert [report.status for report in reports] == [CompileStatus.LATE] * 2
