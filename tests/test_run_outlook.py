"""A report ends with why its run stopped and what would be tried next."""

from dataclasses import replace

import pytest
from ladder_runs import inaccurate
from scripted_evaluator import timing
from scripted_models import attempted

from kmem.memory.runs.runs import Verdict
from kmem.records import (
    Attempt,
    Baseline,
    Kernel,
    Measurement,
    RunResult,
    Status,
)
from kmem.run.report.outlook import describe_outlook

FAST = attempted(Kernel("# fast"), ms=1.0)
SLOW = attempted(Kernel("# slow"), ms=2.0)


def result(best: Attempt | None = None, **more: object) -> RunResult:
    eager = Baseline("eager", timing(4.0), False)
    made = RunResult(
        "r1", "p", "h200", False, best, (eager,), None, None, None, False, 3, 1.0, "the rounds end"
    )
    return replace(made, **more)


def outlook(made: RunResult, *attempts: Attempt, **more: object) -> str:
    about = {"diagnoses": (), "verdicts": {}} | more
    return "\n".join(describe_outlook(made, attempts, about["diagnoses"], about["verdicts"]))


def test_it_says_why_the_run_stopped_and_what_the_bound_leaves() -> None:
    text = outlook(result(SLOW, speed_of_light=0.5), SLOW)
    assert text.startswith("It stopped because the rounds end.\nThe bound leaves a factor of 2.00")
    assert text.endswith("Nothing is open that this run knows of: another seed or author may.")


def test_candidates_that_were_timed_faster_and_not_verified_come_next() -> None:
    text = outlook(result(SLOW), FAST, SLOW)
    assert "- verify 1 candidates that were timed faster than the answer (the fastest at 1 ms)" in (
        text
    )
    refused = Verdict(Measurement(Status.CRASHED, None, False, log="no"))
    assert "verify" not in outlook(
        result(SLOW), FAST, SLOW, verdicts={FAST.candidate.kernel.hash: refused}
    )
    late = Verdict(Measurement(Status.INTERRUPTED, None, False, log="late"))
    assert "verify 1" in outlook(
        result(SLOW), FAST, SLOW, verdicts={FAST.candidate.kernel.hash: late}
    )


@pytest.mark.parametrize("by_verdict", [True, False])
def test_a_ladder_that_ended_too_low_comes_next(by_verdict: bool) -> None:
    missed = inaccurate(excess=1.3)
    attempt = FAST if by_verdict else replace(FAST, measurement=missed)
    verdicts = {FAST.candidate.kernel.hash: Verdict(missed)} if by_verdict else {}
    text = outlook(result(), attempt, verdicts=verdicts)
    assert "missed the accuracy contract by a factor of 1.3 on family nan" in text
    climbed = attempted(Kernel("# climbed", parent=FAST.candidate.kernel.hash), ms=1.5)
    assert "missed" not in outlook(result(climbed), attempt, climbed, verdicts=verdicts)


def test_a_baseline_whose_time_was_up_comes_next() -> None:
    late = Baseline("max_autotune", None, False, log="timed out", timed_out=True)
    assert "- time baseline max_autotune, whose time was up" in outlook(
        result(SLOW, baselines=(late,)), SLOW
    )
