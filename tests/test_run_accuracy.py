"""A kernel refused for its error is tried again one rung up its recipe's precision ladder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ladder_runs import (
    Judgement,
    inaccurate,
    ladder_run,
    ladder_session,
    rungs,
    walk_ladder,
)

from kmem.devices import named_target
from kmem.explore.recipes.cover import find_options
from kmem.measure.oracle.correctness import Difference, error_over_allowance, measure_error
from kmem.memory.ledger.rungs import recall_rungs
from kmem.memory.store import Memory
from kmem.orchestrate.accuracy import near_miss, needed_rungs, next_rungs
from kmem.problem.traced import TracedProblem
from kmem.recipes import ACCURACY
from kmem.records import (
    Attempt,
    Candidate,
    Contract,
    ErrorReport,
    Kernel,
    Measurement,
    Move,
    Problem,
    Status,
    Task,
    Workload,
)
from kmem.rewrites import Rewrites
from kmem.skills import load_recipe, load_skill
from kmem.testing import trace_source

SKILLS = Path(__file__).parents[1] / "skills"
TWO_NORMS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
    def forward(self, x):
        return torch.relu(self.n2(self.c2(torch.relu(self.n1(self.c1(x))))))
def get_inputs():
    return [torch.randn(4, 16, 20, 20)]
"""


def test_a_candidate_refused_for_its_error_is_followed_at_once_by_the_next_rung(
    tmp_path: Path,
) -> None:
    judgement = Judgement(screening_needs=2)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=2)
        result, attempts, said = walk_ladder(run, memory, judgement)
        outcomes = memory.ledger.outcomes(skill="ladder")
    climbs = [attempt for attempt in attempts if attempt.candidate.task.move is Move.CLIMB]
    assert [rungs(attempt.candidate.kernel) for attempt in attempts] == [
        [0, 0],
        [1, 1],
        [2, 2],
        *[[2, 2]] * 2,  # the rest of the round, written again for the rung that is needed
    ]
    assert [attempt.measurement.status.value for attempt in attempts] == [
        *["wrong_values"] * 2,
        *["passed"] * 3,
    ]
    first = attempts[0].candidate.kernel
    assert climbs[0].candidate.kernel.parent == first.hash
    assert result.best.candidate.kernel in judgement.judged[-3:]
    assert "family nan" in climbs[0].candidate.task.reason
    assert [
        outcome.status for outcome in outcomes if outcome.move is Move.CLIMB and not outcome.ratio
    ].count(Status.PASSED) == 1
    assert any("more accurate" in text for text in said)


def test_a_refusal_for_accuracy_names_family_error_allowance_and_the_next_rung(
    tmp_path: Path,
) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=1)
        _, attempts, _ = walk_ladder(run, memory, Judgement(screening_needs=3))
    logs = [attempt.measurement.log for attempt in attempts]
    assert logs[0] == (
        "output 0 on family nan: relative error 1.30e-06 (allowed 1.00e-06); next: ladder at relu "
        "with ACCURACY 0 -> 1, ladder at mul with ACCURACY 0 -> 1"
    )
    assert logs[-1].endswith("; no rung of its precision ladder is above")


def test_later_candidates_begin_on_the_rung_that_was_found_necessary(tmp_path: Path) -> None:
    judgement = Judgement(screening_needs=1)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=1, candidates_per_round=2)
        _, attempts, _ = walk_ladder(run, memory, judgement)
    later = [attempt for attempt in attempts if attempt.round == 1]
    assert later
    assert {tuple(rungs(attempt.candidate.kernel)) for attempt in later} == {(1, 1)}


@pytest.mark.parametrize("was_verified", [False, True])
def test_a_rung_is_not_remembered_where_a_kernel_that_stands_lower_was_verified(
    tmp_path: Path, was_verified: bool
) -> None:
    """All sites of a network may have climbed for the one that erred."""
    with Memory(tmp_path / "kmem.db") as memory:
        if was_verified:
            first = ladder_run(tmp_path, "r1", rounds=0, candidates_per_round=1)
            result, _, _ = walk_ladder(first, memory, Judgement())
            assert rungs(result.best.candidate.kernel) == [0, 0]
        later = ladder_run(tmp_path, "r2", rounds=0, candidates_per_round=2)
        _, attempts, _ = walk_ladder(later, memory, Judgement(screening_needs=1))
        session = ladder_session(memory)
        found = recall_rungs(memory.storage, session.graph_key, session.recipe_versions)
    assert any(attempt.candidate.task.move is Move.CLIMB for attempt in attempts)
    assert {dict(choice.knobs)[ACCURACY] for choice in found} == (set() if was_verified else {1})


def test_an_error_far_beyond_the_allowance_is_no_reason_to_climb(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=2)
        _, attempts, _ = walk_ladder(run, memory, Judgement(screening_needs=1, excess=11.0))
    assert {attempt.candidate.task.move for attempt in attempts} == {Move.SEED}


@pytest.mark.parametrize(
    ("measurement", "is_near"),
    [
        (inaccurate(excess=10.0), True),
        (inaccurate(excess=10.5), False),
        (inaccurate(excess=60.0), True),  # products of one term in TF32, where eager is exact
        (inaccurate(excess=2000.0), False),
        (Measurement(Status.WRONG_VALUES, None, estimated=False, log="it modifies input 0"), False),
        (Measurement(Status.CRASHED, None, False, inaccurate().errors, log="it broke"), False),
        # refused for something else after all families before were right
        (
            Measurement(Status.WRONG_VALUES, None, False, inaccurate(excess=0.5).errors, log="-"),
            False,
        ),
    ],
)
def test_what_counts_as_a_near_miss(measurement: Measurement, is_near: bool) -> None:
    assert (near_miss(measurement) is not None) is is_near


@pytest.mark.parametrize(
    ("found", "times"),
    [
        (Difference(3e-6, 0.0), 3.0),
        (Difference(5e-7, 4e-5), 5.0),  # one row is worse than the whole
        (Difference(0.0, 0.0), 0.0),
        (Difference(0.0, 0.0, "non-finite values in other places"), float("inf")),
    ],
)
def test_by_what_factor_an_output_misses_its_allowance(found: Difference, times: float) -> None:
    eager = Difference(1e-7, 1e-7)
    assert error_over_allowance(found, eager, 1e-6) == pytest.approx(times)


def test_wrong_integers_are_beyond_any_ladder() -> None:
    right = torch.arange(4)
    found = measure_error(right + 1, right, right)
    assert error_over_allowance(found, Difference(0.0, 0.0), 0.0) == float("inf")


def test_a_running_mean_blames_its_own_norm_and_what_that_normalises() -> None:
    _, graph = trace_source(TWO_NORMS)
    contract, device = Contract(), named_target("h200")
    traced = TracedProblem(
        Problem("two", "two.py", TWO_NORMS),
        contract,
        device,
        {"full": Workload("full")},
        {"full": graph},
        None,
    )
    names = ("implicit-gemm-conv", "batch-norm-training-statistics")
    recipes = {name: load_recipe(load_skill(SKILLS / name)) for name in names}
    options = find_options({"full": graph}, recipes, contract, device)
    choices = tuple(option.choice(option.told_apart()[0]) for option in options)
    assert len(choices) == 4
    known = traced, recipes, Rewrites()

    def climbed(family: str, kernel: Kernel) -> set[str]:
        above = next_rungs(kernel, ErrorReport(family, 0, 2e-5, 1e-6, 2e-6, 5.0), *known)
        return {
            old.site for old, new in zip(kernel.choices, above or (), strict=False) if old != new
        }

    kernel = Kernel("text", choices=choices)
    assert climbed("drawn", kernel) == {"conv2d", "conv2d_1"}, "the norms have one rung here"
    assert climbed("buffer n2.running_mean", kernel) == {"conv2d_1"}
    assert climbed("buffer n1.running_var", kernel) == {"conv2d"}
    refused = Measurement(
        Status.WRONG_VALUES,
        None,
        False,
        (ErrorReport("buffer n2.running_mean", 0, 2e-5, 1e-6, 2e-6, 5.0),),
    )
    attempt = Attempt(
        0, Candidate(kernel, Task(Move.SEED, "", None, 1, ""), "recipes"), refused, None
    )
    assert needed_rungs([attempt], *known) == {("implicit-gemm-conv", "conv2d_1"): 1}
    # where what is to blame is at the top of its ladder all others climb
    top = tuple(
        replace(choice, knobs=tuple(sorted({**dict(choice.knobs), ACCURACY: 1}.items())))
        if choice.site == "conv2d_1"
        else choice
        for choice in choices
    )
    assert climbed("buffer n2.running_mean", Kernel("text", choices=top)) == {"conv2d"}
