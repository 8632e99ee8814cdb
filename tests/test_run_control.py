"""A report holds its search against the first kernels alone."""

from dataclasses import replace

import pytest
from test_ablate import attempt

from kmem.records import Attempt, Move, Strategy
from kmem.run.report.control import describe_control


def recalled(found: Attempt) -> Attempt:
    task = replace(found.candidate.task, move=Move.RECALL)
    return replace(found, candidate=replace(found.candidate, task=task))


FIRST = (attempt(0, 3.0), attempt(0, None), attempt(0, 2.0))
CASES = {
    "control: 2 measurements of the search and of memory came to 1 ms, 2 first kernels alone to "
    "2 ms (2.000x)": (*FIRST, attempt(1, 2.5), attempt(2, 1.0)),
    "all 2 measurements were first kernels": FIRST,
    "1 measurement of the search and of memory came to 1 ms, 2 first kernels alone to 2 ms": (
        recalled(attempt(0, 1.0)),
        *FIRST,
    ),
    "came to 1 ms, no first kernel passed": (recalled(attempt(0, 1.0)),),
}


@pytest.mark.parametrize("told", CASES)
def test_what_the_search_brought_stands_beside_first_kernels(told: str) -> None:
    assert told in (describe_control(Strategy.BANDIT, CASES[told]) or "")


def test_a_control_says_so_and_a_run_without_a_kernel_says_nothing() -> None:
    assert "this run is one" in (describe_control(Strategy.BEST_OF_N, FIRST) or "")
    assert describe_control(Strategy.BANDIT, (attempt(0, None),)) is None
