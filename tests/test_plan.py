"""Planning is deterministic: recall first, then seeds, then tuning and prescriptions; vetoes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kmem.interfaces import Direction
from kmem.orchestrate.plan import plan_first_round, plan_round, plan_seeds
from kmem.orchestrate.stop import is_as_remembered
from kmem.orchestrate.strategies import Offer
from kmem.orchestrate.vetoes import Past, find_vetoes
from kmem.records import (
    Attempt,
    Budget,
    Candidate,
    Contract,
    Experience,
    Kernel,
    Measurement,
    Move,
    Outcome,
    Plan,
    Recalled,
    SiteChoice,
    Status,
    Strategy,
    Task,
    Timing,
    Veto,
)

CHOICE = SiteChoice("relu", "pointwise", "fuse", (("BLOCK", 1024),))


def attempt(
    skill: str,
    latency_ms: float | None,
    *,
    recipe: str | None = None,
    status: Status = Status.WRONG_VALUES,
) -> Attempt:
    task = Task(Move.SEED, skill, None, 1, "test")
    choices = (SiteChoice("relu", "pointwise", recipe or skill, ()),)
    kernel = Kernel(f"# {skill} {latency_ms}", choices=choices)
    if latency_ms is None:
        measurement = Measurement(status, None, estimated=False)
    else:
        measurement = Measurement(
            Status.PASSED, Timing(latency_ms, latency_ms, latency_ms, 10), estimated=False
        )
    return Attempt(0, Candidate(kernel, task, "recipes"), measurement, None)


def recalled(
    *, exact: bool, distance: float = 0.0, choices: tuple[SiteChoice, ...] = (CHOICE,)
) -> Recalled:
    outcome = Outcome(
        problem="p",
        graph_hash="g",
        structure_hash="s",
        sizes=(4,),
        operators=("pointwise",),
        workload="full",
        device="NVIDIA H200",
        arch="sm_90",
        contract=Contract(),
        skill="fuse",
        choices=choices,
        move=Move.SEED,
        bottleneck=None,
        signature=None,
        source_hash="h",
        parent_hash=None,
        status=Status.PASSED,
        latency_ms=1.0,
        latency_ms_p20=1.0,
        latency_ms_p80=1.0,
        parent_ms=None,
        baseline="eager",
        baseline_ms=2.0,
        ratio=2.0,
        ratio_low=1.9,
        ratio_high=2.1,
        bound_ms=0.5,
        flags=(),
        versions={},
        origin="test",
        created_at="2026-01-01",
    )
    return Recalled(outcome, None, exact, distance)


def direction(
    skill: str, move: Move = Move.SEED, author: str = "recipes", instruction: str = ""
) -> Direction:
    return Direction(author, move, skill, "because", instruction=instruction)


def first_round(
    hits: list[Recalled],
    *,
    strategy: Strategy = Strategy.BANDIT,
    experience: Sequence[Experience] = (),
    rewrites: bool = True,
) -> Plan:
    return plan_first_round(
        hits, [direction("fuse")], Budget(), strategy, experience=experience, rewrites=rewrites
    )


def test_an_exact_hit_is_re_verified_alone() -> None:
    plan = first_round([recalled(exact=True), recalled(exact=False)])
    assert [(task.move, task.samples) for task in plan.tasks] == [(Move.RECALL, 1)]
    assert plan.tasks[0].choices == (CHOICE,)


@pytest.mark.parametrize(
    "ratios",
    [
        {"ratio": None, "ratio_low": None, "ratio_high": None},
        {"ratio": 1.0, "ratio_low": 0.99},
        {"ratio": 1.003, "ratio_low": 1.001},  # less than a run calls an improvement
    ],
)
def test_a_hit_that_was_only_screened_or_beat_nothing_is_a_seed_not_a_winner(
    ratios: dict[str, float | None],
) -> None:
    hit = Recalled(replace(recalled(exact=True).outcome, **ratios), None, True, 0.0)
    assert [task.move for task in first_round([hit]).tasks] == [Move.RECALL, Move.SEED]


def test_a_winner_that_was_not_timed_in_pairs_is_one() -> None:
    """A run's end asks the same: an interval counts where there is one."""
    hit = Recalled(
        replace(recalled(exact=True).outcome, ratio_low=None, ratio_high=None), None, True, 0.0
    )
    assert [task.move for task in first_round([hit]).tasks] == [Move.RECALL]


@pytest.mark.parametrize(
    ("won", "holds"),
    [({}, True), ({"ratio": 1.0, "ratio_low": 0.99}, False), ({"latency_ms": 0.9}, False)],
)
def test_a_run_is_done_when_a_remembered_winner_holds_and_not_when_a_loser_does(
    won: dict[str, float], holds: bool
) -> None:
    hit = recalled(exact=True)
    hit = Recalled(replace(hit.outcome, **won), None, True, 0.0)
    task = Task(Move.RECALL, hit.outcome.skill, None, 1, "", hit.outcome.choices)
    timing = Timing(1.0, 1.0, 1.0, 10)
    kernel = Kernel("", choices=hit.outcome.choices)
    best = Attempt(
        0,
        Candidate(kernel, task, "recipes"),
        Measurement(Status.PASSED, timing, estimated=False),
        None,
    )
    assert is_as_remembered(best, [hit]) is holds


def test_near_hits_go_before_the_seeds_and_repeats_of_one_setting_count_once() -> None:
    plan = first_round([recalled(exact=False, distance=1.0), recalled(exact=False, distance=2.0)])
    assert [task.move for task in plan.tasks] == [Move.RECALL, Move.SEED]


def test_a_near_hit_whose_graph_memory_knows_well_is_left_to_the_ranking() -> None:
    hit = recalled(exact=False, distance=1.0)
    entries = [
        Experience(
            "fuse", (("BLOCK", 2**place),), 1.0, 1.0, hit.outcome.graph_hash, "structure", (8,)
        )
        for place in range(4)
    ]
    assert [task.move for task in first_round([hit], experience=entries).tasks] == [Move.SEED]
    assert [task.move for task in first_round([hit], experience=entries[:3]).tasks] == [
        Move.RECALL,
        Move.SEED,
    ]
    assert [task.move for task in first_round([hit], experience=entries[:1] * 4).tasks] == [
        Move.RECALL,
        Move.SEED,
    ]
    of_another = [replace(entry, recipe="another") for entry in entries]
    assert [task.move for task in first_round([hit], experience=of_another).tasks] == [
        Move.RECALL,
        Move.SEED,
    ]


def test_without_an_author_that_rewrites_only_texts_are_recalled() -> None:
    assert [task.move for task in first_round([recalled(exact=True)], rewrites=False).tasks] == [
        Move.SEED
    ]
    kept = Recalled(recalled(exact=True).outcome, "the text", True, 0.0)
    assert [task.move for task in first_round([kept], rewrites=False).tasks] == [Move.RECALL]


def test_seeds_share_the_samples_in_the_order_of_the_directions() -> None:
    tasks = plan_seeds([direction("large"), direction("small")], 8)
    assert [(task.skill, task.samples, task.parent) for task in tasks] == [
        ("large", 4, None),
        ("small", 4, None),
    ]


def test_where_there_are_fewer_samples_than_directions_the_first_have_one_each() -> None:
    tasks = plan_seeds([direction("large"), direction("middle"), direction("small")], 2)
    assert [(task.skill, task.samples) for task in tasks] == [("large", 1), ("middle", 1)]


def test_best_of_n_spends_the_samples_of_all_rounds_on_first_kernels() -> None:
    (task,) = first_round([], strategy=Strategy.BEST_OF_N).tasks
    assert (task.move, task.parent) == (Move.SEED, None)
    assert task.samples == Budget().candidates_per_round * (Budget().rounds + 1)


def vetoes(history: list[Attempt], best: Attempt | None, **more: object) -> tuple[Veto, ...]:
    return find_vetoes(history, best, more.get("lessons", ()), more.get("repairs", {}))


def test_a_skill_that_only_fails_is_vetoed_with_its_reason() -> None:
    best = attempt("good", 1.0)
    found = vetoes([best, *(attempt("bad", None) for _ in range(3))], best)
    assert [veto.skill for veto in found] == ["bad"]
    assert "wrong_values" in found[0].reason


def test_two_failures_or_interruptions_are_no_veto() -> None:
    best = attempt("good", 1.0)
    history = [
        best,
        attempt("bad", None),
        attempt("bad", None),
        attempt("bad", None, status=Status.INTERRUPTED),
    ]
    assert vetoes(history, best) == ()


def test_nothing_is_vetoed_while_nothing_has_passed() -> None:
    assert vetoes([attempt("bad", None) for _ in range(5)], None) == ()


def test_a_skill_far_slower_than_the_best_after_enough_tries_is_vetoed() -> None:
    best = attempt("good", 1.0)
    assert [
        veto.skill for veto in vetoes([best, *(attempt("slow", 1.4 + i) for i in range(4))], best)
    ] == ["slow"]
    assert vetoes([best, *(attempt("near", 1.2 + i) for i in range(4))], best) == ()


def plan(best: Attempt, directions: list[Direction], history: list[Attempt], seed: int = 0) -> Plan:
    offer = Offer(best, tuple(directions))
    past = Past(history, vetoes(history, best))
    return plan_round(1, [offer], past, Strategy.BANDIT, Budget(), seed)


def test_a_round_tunes_the_best_and_tries_what_is_prescribed_but_not_what_is_vetoed() -> None:
    best = attempt("good", 1.0)
    history = [best, *(attempt("bad", None) for _ in range(3))]
    planned = plan(
        best,
        [direction("good", Move.TUNE), direction("other", Move.FIX), direction("bad")],
        history,
    )
    moves = {task.skill: task.move for task in planned.tasks}
    assert moves["good"] is Move.TUNE
    assert moves["other"] is Move.FIX
    assert "bad" not in moves
    assert [veto.skill for veto in planned.vetoes] == ["bad"]
    assert sum(task.samples for task in planned.tasks) == Budget().candidates_per_round
    assert all(task.parent == best.candidate.kernel.hash for task in planned.tasks)


def test_the_same_seed_gives_the_same_plan_and_another_seed_may_differ() -> None:
    best = attempt("good", 1.0)
    directions = [direction("good", Move.TUNE), direction("other"), direction("third")]
    plans = [plan(best, directions, [best], seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len({tuple(task.samples for task in planned.tasks) for planned in plans}) > 1


def test_a_run_with_every_skill_refuted_stops_with_the_reason() -> None:
    best = attempt("good", 1.0, recipe="gone")
    history = [attempt("bad", None) for _ in range(3)] + [attempt("gone", None) for _ in range(3)]
    planned = plan(best, [direction("gone", Move.SEED), direction("bad")], history)
    assert planned.tasks == ()
    assert "refuted" in planned.reason


def test_while_nothing_has_passed_the_round_begins_again() -> None:
    planned = plan_round(
        1,
        [Offer(None, (direction("fuse"),))],
        Past([attempt("fuse", None)]),
        Strategy.GREEDY,
        Budget(),
        0,
    )
    assert [(task.move, task.parent) for task in planned.tasks] == [(Move.SEED, None)]
    assert "nothing has passed" in planned.reason
