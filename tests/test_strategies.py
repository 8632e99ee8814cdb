"""Strategies: which kernels a round goes on from, and who gets its samples.

Vetoes, doubts, repairs and the reasons to stop are tested here, too.
"""

import random
from dataclasses import replace

import pytest

from kmem.interfaces import UNAIDED, Direction
from kmem.orchestrate.lineage import arm_of, base_of, chain_length, origin
from kmem.orchestrate.plan import plan_round
from kmem.orchestrate.repair import plan_repairs
from kmem.orchestrate.stop import expected_gain, has_gained, reason_to_stop
from kmem.orchestrate.strategies import (
    BEAM_DIRECTIONS,
    BEAM_PARENTS,
    Offer,
    choose_parents,
    share_samples,
)
from kmem.orchestrate.vetoes import Past, count_doubts, find_vetoes, is_vetoed
from kmem.records import (
    Attempt,
    Bottleneck,
    Budget,
    Candidate,
    Claim,
    ClaimCheck,
    Diagnosis,
    Kernel,
    Knob,
    Lesson,
    Measurement,
    Move,
    Plan,
    Prescription,
    Signature,
    SiteChoice,
    Status,
    Strategy,
    Task,
    Timing,
)
from kmem.skills import bundled_skills_root, load_skill


def attempt(
    name: str,
    latency_ms: float | None,
    *,
    task: Task | None = None,
    parent_ms: float | None = None,
    round: int = 0,
    status: Status = Status.WRONG_VALUES,
    knobs: tuple[tuple[str, Knob], ...] | None = None,
) -> Attempt:
    """An attempt at kernel `name`.

    With knobs a recipe of the task's skill wrote it, without them a model did.
    """
    task = task or Task(Move.SEED, "fuse", None, 1, "test")
    kernel = Kernel(
        f"# {name}",
        choices=(SiteChoice("relu", "pointwise", task.skill, knobs),) if knobs is not None else (),
    )
    timing = Timing(latency_ms, latency_ms, latency_ms, 10) if latency_ms is not None else None
    measurement = Measurement(Status.PASSED if timing else status, timing, estimated=False)
    return Attempt(round, Candidate(kernel, task, task.author), measurement, parent_ms)


def fix(skill: str, author: str = "llm", instruction: str = "") -> Direction:
    return Direction(author, Move.FIX, skill, "because", instruction=instruction)


def tried(
    skill: str, parent: Attempt, name: str, latency_ms: float | None, **more: object
) -> Attempt:
    """What came of a direction from a parent."""
    task = Task(Move.FIX, skill, parent.candidate.kernel.hash, 1, "test", author="llm")
    return attempt(
        name, latency_ms, task=task, parent_ms=parent.measurement.latency_ms, round=1, **more
    )


def share(
    strategy: Strategy,
    offers: list[Offer],
    history: list[Attempt],
    samples: int = 12,
    seed: int = 0,
) -> list[tuple[str, str, int]]:
    shares = share_samples(strategy, offers, Past(history), samples, random.Random(seed))
    names = {offer.parent_hash: offer.parent.candidate.kernel.source for offer in offers}
    return [(names[entry.parent], entry.direction.skill, entry.samples) for entry in shares]


BEST = attempt("best", 1.0, knobs=(("BLOCK", 64),))


def test_greedy_takes_the_best_kernel_and_the_first_direction_with_all_samples() -> None:
    slow = attempt("slow", 2.0, knobs=(("KIND", "loop"),))
    assert choose_parents(Strategy.GREEDY, [BEST, slow]) == [BEST]
    assert share(Strategy.GREEDY, [Offer(BEST, (fix("a"), fix("b")))], [BEST]) == [
        ("# best", "a", 12)
    ]


def test_greedy_leaves_a_direction_that_brought_nothing_from_this_kernel_but_not_from_another() -> (
    None
):
    offer = Offer(BEST, (fix("a"), fix("b")))
    assert share(Strategy.GREEDY, [offer], [BEST, tried("a", BEST, "1", 1.1)]) == [
        ("# best", "b", 12)
    ]
    assert share(
        Strategy.GREEDY, [offer], [BEST, tried("a", BEST, "1", 1.1), tried("b", BEST, "2", None)]
    ) == [("# best", "a", 12)]
    other = attempt("other", 1.5)
    assert share(Strategy.GREEDY, [offer], [BEST, tried("a", other, "1", 1.6)]) == [
        ("# best", "a", 12)
    ]


def test_a_beam_takes_kernels_that_differ_in_kind_and_never_copies() -> None:
    same_kind = attempt("wider", 1.1, knobs=(("BLOCK", 128),))
    other_knob = attempt("split", 1.2, knobs=(("KIND", "split"),))
    by_model = attempt("model", 1.3, task=Task(Move.FIX, "vectorize", None, 1, "", author="llm"))
    again = attempt("model 2", 1.4, task=Task(Move.FIX, "vectorize", None, 1, "", author="llm"))
    last = attempt("last", 1.5, knobs=(("KIND", "loop"),))
    assert choose_parents(Strategy.BEAM, [BEST, same_kind, other_knob, by_model, again, last]) == [
        BEST,
        other_knob,
        by_model,
    ]
    assert BEAM_PARENTS == 3


def test_a_beam_deals_equal_shares_to_distinct_directions_of_each_parent() -> None:
    other = attempt("other", 1.2, knobs=(("KIND", "split"),))
    offers = [Offer(BEST, (fix("a"), fix("a"), fix("b"), fix("c"))), Offer(other, (fix("a"),))]
    assert share(Strategy.BEAM, offers, [BEST, other]) == [
        ("# best", "a", 4),
        ("# best", "b", 4),
        ("# other", "a", 4),
    ]
    assert BEAM_DIRECTIONS == 2
    assert share(Strategy.BEAM, offers, [BEST, other], samples=2) == [
        ("# best", "a", 1),
        ("# best", "b", 1),
    ]


def test_the_bandit_is_the_same_for_a_seed_and_leaves_a_slow_arm_that_was_tried_much() -> None:
    offers = [Offer(BEST, (fix("good"), fix("slow")))]
    history = [
        BEST,
        *(tried("good", BEST, f"g{i}", 0.9) for i in range(4)),
        *(tried("slow", BEST, f"s{i}", 9.0) for i in range(20)),
    ]
    counts = dict(entry[1:] for entry in share(Strategy.BANDIT, offers, history))
    assert counts == {"good": 12}
    fresh = [Offer(BEST, (fix("a"), fix("b"), fix("c")))]
    draws = [share(Strategy.BANDIT, fresh, [BEST], seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) > 1


def test_best_of_n_has_no_parents() -> None:
    assert choose_parents(Strategy.BEST_OF_N, [BEST]) == []


@pytest.mark.parametrize("strategy", [Strategy.GREEDY, Strategy.BEAM, Strategy.BANDIT])
def test_no_strategy_gives_samples_to_what_is_vetoed(strategy: Strategy) -> None:
    history = [BEST, *(tried("bad", BEST, f"b{i}", None) for i in range(3))]
    past = Past(history, find_vetoes(history, BEST, [], {}))
    plan = plan_round(1, [Offer(BEST, (fix("bad"), fix("good")))], past, strategy, Budget(), seed=0)
    assert {task.skill for task in plan.tasks} == {"good"}
    assert [veto.skill for veto in plan.vetoes] == ["bad"]
    assert plan_round(1, [Offer(BEST, (fix("bad"),))], past, strategy, Budget(), seed=0).tasks == ()


def test_a_veto_binds_the_author_and_the_idea_it_was_found_with() -> None:
    history = [BEST, *(tried("bad", BEST, f"b{i}", None) for i in range(3))]
    (veto,) = find_vetoes(history, BEST, [], {})
    assert is_vetoed(fix("bad"), "any kernel", [veto])
    assert not is_vetoed(fix("bad", author="recipes"), "any kernel", [veto])
    own = [
        replace(
            entry,
            candidate=replace(
                entry.candidate,
                task=replace(entry.candidate.task, skill=UNAIDED, instruction="unroll  it"),
            ),
        )
        for entry in history[1:]
    ]
    (veto,) = find_vetoes([BEST, *own], BEST, [], {})
    assert is_vetoed(fix(UNAIDED, instruction="unroll it"), None, [veto])
    assert not is_vetoed(fix(UNAIDED, instruction="use shared memory"), None, [veto])


CLAIM = Claim("traffic_ratio", "<=", 0.7, relative=True)
FALSIFIED = ClaimCheck(CLAIM, 2.0, 2.0, False)


def lesson(about: Attempt, *checks: ClaimCheck) -> Lesson:
    return Lesson(1, about.candidate.kernel.hash, about.candidate.task.skill, "text", checks)


def test_a_claim_falsified_without_gain_vetoes_its_arm_from_every_kernel() -> None:
    without = tried("a", BEST, "without", 1.0)
    history = [BEST, without]
    (veto,) = find_vetoes(history, BEST, [lesson(without, FALSIFIED)], {})
    assert "traffic_ratio <= 0.7x was falsified (2 before, 2 after)" in veto.reason
    assert is_vetoed(fix("a"), "a kernel of a later round", [veto])
    assert count_doubts(history, [lesson(without, FALSIFIED)]) == {}


def test_a_claim_falsified_with_gain_only_loses_weight() -> None:
    gained = tried("a", BEST, "gained", 0.5)
    history, lessons = [BEST, gained], [lesson(gained, FALSIFIED)]
    assert find_vetoes(history, BEST, lessons, {}) == ()
    doubts = count_doubts(history, lessons)
    assert doubts == {arm_of(fix("a")): 1}
    offers = [Offer(gained, (fix("a"), fix("b")))]
    (first,) = share_samples(
        Strategy.GREEDY, offers, Past(history, (), doubts), 12, random.Random(0)
    )
    assert first.direction.skill == "b"


def test_a_claim_that_held_or_could_not_be_checked_refutes_nothing() -> None:
    without = tried("a", BEST, "without", 1.0)
    lessons = [
        lesson(without, ClaimCheck(CLAIM, 2.0, 1.0, True), ClaimCheck(CLAIM, 2.0, None, None))
    ]
    assert find_vetoes([BEST, without], BEST, lessons, {}) == ()


def chain() -> list[Attempt]:
    """A failing attempt at a fix, and two repairs of it, the last one sound."""
    failed = tried("a", BEST, "failed", None, status=Status.BUILD_FAILED)
    (first,) = plan_repairs([failed], [BEST, failed], {"llm": 2})
    again = attempt("again", None, task=first, status=Status.WRONG_VALUES, round=1)
    (second,) = plan_repairs([again], [BEST, failed, again], {"llm": 2})
    return [BEST, failed, again, attempt("sound", 0.5, task=second, parent_ms=1.0, round=1)]


def test_a_chain_of_repairs_keeps_the_skill_and_goes_back_to_the_base() -> None:
    history = chain()
    failed, again = history[1:3]
    sound = history[3]
    task = sound.candidate.task
    assert (task.move, task.skill, task.author) == (Move.REPAIR, "a", "llm")
    assert task.parent == again.candidate.kernel.hash
    assert origin(task, history) == failed.candidate.task
    assert base_of(task, history) == BEST.candidate.kernel.hash
    assert [chain_length(entry.candidate.task, history) for entry in history] == [0, 0, 1, 2]
    assert sound.speedup == 2.0


def test_a_chain_ends_after_as_many_repairs_as_the_author_is_granted() -> None:
    history = chain()[:3]
    assert len(plan_repairs([history[2]], history, {"llm": 2})) == 1
    assert plan_repairs([history[2]], history, {"llm": 1}) == []
    assert plan_repairs([history[2]], history, {}) == []


def test_a_direction_that_cannot_be_repaired_is_vetoed_for_its_base_only() -> None:
    history = chain()[:3]
    (veto,) = find_vetoes(history, BEST, [], {"llm": 2})
    assert is_vetoed(fix("a"), BEST.candidate.kernel.hash, [veto])
    assert not is_vetoed(fix("a"), "another kernel", [veto])
    assert "1 repairs did not help" in veto.reason
    assert find_vetoes(chain(), BEST, [], {"llm": 2}) == ()


def test_what_does_not_build_is_repaired_before_what_crashes_computes_wrongly_or_hangs() -> None:
    statuses = [
        Status.TIMED_OUT,
        Status.WRONG_VALUES,
        Status.CRASHED,
        Status.BUILD_FAILED,
        Status.INTERRUPTED,
    ]
    failed = [
        tried("a", BEST, f"f{place}", None, status=status) for place, status in enumerate(statuses)
    ]
    tasks = plan_repairs([*failed, BEST], [BEST, *failed], {"llm": 1})
    reasons = [task.reason.rpartition(" ")[2] for task in tasks]
    assert reasons == ["build_failed", "crashed", "wrong_values", "timed_out"]


def diagnosis(speed_of_light: float | None) -> Diagnosis:
    return Diagnosis(Bottleneck.LATENCY, (), Signature({}), speed_of_light, None, "", None)


SKILLS = {name: load_skill(bundled_skills_root() / name) for name in ("fuse-pointwise-chain",)}
OFFERED = [Prescription("fuse-pointwise-chain", 1.0, ())]


@pytest.mark.parametrize(
    ("light", "stale", "target", "expected"),
    [
        (0.98, 0, 0.97, "98% of the speed of light"),
        (0.5, 2, 0.97, "2 rounds brought no gain"),
        (0.998, 0, 1.0, "no prescription's ceiling"),
        (None, 0, 0.97, ""),
        (0.5, 1, 0.97, ""),
    ],
)
def test_a_run_stops_at_the_bound_without_hope_and_when_it_has_converged(
    light: float | None, stale: int, target: float, expected: str
) -> None:
    reason = reason_to_stop(
        diagnosis(light), OFFERED, SKILLS, stale, Budget(target_speed_of_light=target)
    )
    assert (expected in reason) if expected else reason == ""


def test_what_changes_the_work_itself_is_not_limited_by_the_bound() -> None:
    assert expected_gain(diagnosis(0.999), (Bottleneck.ALGORITHMIC,)) == float("inf")
    assert expected_gain(diagnosis(0.5), (Bottleneck.LATENCY,)) == 2.0


def test_a_gain_within_what_a_rerun_moves_is_none() -> None:
    assert has_gained(None, None)
    assert has_gained(1.0, 0.99)
    assert not has_gained(1.0, 0.996)
    assert not has_gained(1.0, None)


def test_a_plan_says_how_it_was_made() -> None:
    plan = plan_round(
        1, [Offer(BEST, (fix("a"), fix("b")))], Past([BEST]), Strategy.BEAM, Budget(), seed=0
    )
    assert plan == Plan(plan.tasks, (), "beam: 12 samples, 2 tasks, from one kernel")
