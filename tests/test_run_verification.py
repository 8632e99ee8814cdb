"""Final verdicts: down the ranking until a kernel holds or the minutes are over."""

import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ladder_runs import (
    Judgement,
    ladder_registry,
    ladder_run,
    ladder_session,
    rungs,
    takes_ms,
    walk_ladder,
)

from kmem.memory.store import Memory
from kmem.records import Candidate, Kernel, Move, Recalled, Run, SiteChoice, Status, Task
from kmem.run import replay
from kmem.run.stages import verifying
from kmem.run.stages.batches import in_batches
from kmem.run.stages.recall import Remembered
from kmem.run.state.clock import Clock


def never_early() -> Clock:
    """A clock without end, in whose run the baselines are not there before the search ends."""

    class Waiting(Clock):
        def is_ready(self, known: bool) -> bool:
            return False

    return Waiting(lambda: 1000.0)


def test_verification_goes_down_the_ranking_until_a_candidate_holds(tmp_path: Path) -> None:
    refused: list[Kernel] = []

    def refuses(kernel: Kernel) -> bool:
        if len(refused) < 5:
            refused.append(kernel)
            return True
        return False

    judgement = Judgement(refuses=refuses)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, _, _ = walk_ladder(run, memory, judgement, clock=never_early())
    assert [takes_ms(kernel) for kernel in judgement.verified] == sorted(
        takes_ms(kernel) for kernel in judgement.judged
    )[:6]
    assert result.best.candidate.kernel == judgement.verified[-1]


def test_a_winner_refused_for_its_error_is_repaired_on_the_way_and_wins(tmp_path: Path) -> None:
    judgement = Judgement(verifying_needs=2)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        result, attempts, _ = walk_ladder(run, memory, judgement, clock=never_early())
        assert replayed(run, memory, tmp_path) == []
    assert [rungs(kernel) for kernel in judgement.verified] == [[0, 0], [1, 1], [2, 2]]
    assert result.best.candidate.task.move is Move.CLIMB
    assert result.speedup == pytest.approx(20.0 / 2.4)
    assert [attempt.round for attempt in attempts][-2:] == [0, 0]


def replayed(run: Run, memory: Memory, home: Path) -> list[str]:
    """How a replay of the run differs from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "open_session", lambda *about: ladder_session(about[-1]))
        return replay.replay_run(run, home / "again", ladder_registry(), memory, lambda event: None)


def test_slower_candidates_than_the_baseline_are_not_verified_one_after_another(
    tmp_path: Path,
) -> None:
    judgement = Judgement(baselines={"eager": 1.0}, refuses=lambda kernel: True)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, _, _ = walk_ladder(run, memory, judgement)
    assert len(judgement.verified) == 1
    assert "the judge refused the fastest (not_repeatable): it wavers" in result.reason


def test_what_is_no_faster_than_one_that_lost_beside_the_baseline_is_not_verified(
    tmp_path: Path,
) -> None:
    # all are timed 1.5% slower than eager; beside eager the first to be verified is a third slower
    judgement = Judgement(
        baselines={"eager": 2.0},
        slower=lambda kernel: (2.03 if takes_ms(kernel) > 2 else 2.5) / takes_ms(kernel),
    )
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, attempts, _ = walk_ladder(run, memory, judgement)
    assert len(attempts) == 8
    assert len(judgement.verified) == 1
    assert result.best is None


def test_no_run_ends_with_the_baseline_while_a_faster_candidate_and_time_are_left(
    tmp_path: Path,
) -> None:
    # eager takes 9 ms, so eight of the kernels were timed faster
    judgement = Judgement(baselines={"eager": 9.0}, refuses=lambda kernel: True)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=16)
        result, _, _ = walk_ladder(run, memory, judgement, clock=never_early())
    faster = [kernel for kernel in judgement.judged if takes_ms(kernel) <= 9.0]
    assert len(faster) > 4
    assert judgement.verified == sorted(faster, key=takes_ms)
    assert result.best is None


def test_the_next_is_verified_where_others_held_the_memory_that_the_fastest_wanted(
    tmp_path: Path,
) -> None:
    fastest: list[Kernel] = []

    def has_no_room(kernel: Kernel) -> bool:
        fastest[:] = fastest or [kernel]
        return kernel in fastest

    judgement = Judgement(has_no_room=has_no_room)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, attempts, _ = walk_ladder(run, memory, judgement, clock=never_early())
        assert replayed(run, memory, tmp_path) == []
        remembered = [entry.outcome.status for entry in memory.ledger.entries()]
        assert set(remembered) == {Status.PASSED}
    first, second, *_ = sorted(judgement.judged, key=takes_ms)
    assert list(dict.fromkeys(judgement.verified)) == [first, second]
    assert result.best.candidate.kernel == second
    assert all(attempt.measurement.status is Status.PASSED for attempt in attempts)
    assert "the fastest has no verdict: other processes hold the GPU's memory" in result.reason


def test_minutes_end_the_verification_and_the_run_says_so(tmp_path: Path) -> None:
    judgement = Judgement(refuses=lambda kernel: True, verifying_s=50.0)
    clock = Clock(lambda: 120.0 - judgement.now_s)
    clock.is_ready = lambda known: False
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, _, _ = walk_ladder(run, memory, judgement, clock=clock)
        assert result.reason.endswith(
            "the minutes ended before every faster candidate was verified"
        )
        assert (len(judgement.verified), result.verifications_in_time) == (3, 3)
        assert result.unverified_faster == len(judgement.judged) - 3
        assert replayed(run, memory, tmp_path) == []


def test_a_part_of_the_minutes_is_kept_for_the_verification() -> None:
    left = [100.0]
    clock = Clock(lambda: left[0], lambda: 15.0)
    assert (clock.seconds_left, clock.run_seconds_left) == (85.0, 100.0)
    assert not clock.is_over()
    left[0] = 15.0
    assert clock.is_over()
    assert clock.may_verify(is_first=False)
    left[0] = -1.0
    assert not clock.may_verify(is_first=False)
    assert not clock.may_verify(is_first=True), "once over they stay over"
    assert (clock.looks_in_time, clock.verifications_in_time) == (1, 1)


def test_no_further_candidates_are_measured_in_the_time_that_is_kept_for_the_verdict(
    tmp_path: Path,
) -> None:
    judgement = Judgement(screening_s=30.0)
    clock = Clock(lambda: 60.0 - judgement.now_s, lambda: 31.0)
    clock.is_ready = lambda known: False
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, attempts, _ = walk_ladder(run, memory, judgement, clock=clock)
        assert replayed(run, memory, tmp_path) == []
    assert len(attempts) == 1
    assert (judgement.verified, result.unverified_faster) == (judgement.judged, 0)


def test_one_verdict_is_due_even_when_the_minutes_are_over() -> None:
    clock = Clock(lambda: -1.0)
    assert clock.may_verify(is_first=True)


def test_the_first_good_candidate_is_verified_before_the_others_are_measured(
    tmp_path: Path,
) -> None:
    judgement = Judgement()
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=1, candidates_per_round=4)
        result, attempts, said = walk_ladder(run, memory, judgement)
        first = next(place for place, text in enumerate(said) if "first verified" in text)
        assert said[first] == "first verified kernel after 0 s: 2 ms, 10.00x eager"
        assert sum(": passed" in text for text in said[:first]) == 1 < len(attempts)
        # it is also the fastest in the end, and its verdict stands
        assert len(judgement.verified) == 1
        assert result.best.measurement.timing.ratio == 10.0
        assert replayed(run, memory, tmp_path) == []


def test_the_first_candidate_is_checked_while_the_baselines_are_timed(tmp_path: Path) -> None:
    judgement = Judgement(baselines={"eager": 20.0, "compile": 10.0}, late="compile")
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        result, attempts, said = walk_ladder(run, memory, judgement)
        assert replayed(run, memory, tmp_path) == []
    assert judgement.awaited == [attempts[0].candidate.kernel]
    assert (judgement.against[0], result.speedup) == ("compile", 5.0)
    assert any(text.startswith("first verified kernel") for text in said)


def test_a_slow_compile_does_not_hold_the_search_up_and_is_timed_against_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_QUICK_BASELINES_S", 0.0)
    judgement = Judgement(baselines={"eager": 20.0, "compile": 10.0}, late="compile")
    threading.Timer(1.0, judgement.timed.set).start()
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        result, _, said = walk_ladder(run, memory, judgement)
        assert replayed(run, memory, tmp_path) == []
    assert "first verified kernel after 0 s: 2 ms, 10.00x eager" in said
    assert (judgement.against, result.speedup) == (["eager", "compile"], 5.0)


def test_all_candidates_are_compiled_ahead_in_the_order_in_which_they_are_measured(
    tmp_path: Path,
) -> None:
    judgement = Judgement()
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        _, attempts, _ = walk_ladder(run, memory, judgement)
    measured = [attempt.candidate.kernel for attempt in attempts]
    assert len(measured) > 2
    assert (judgement.expected, judgement.admitted) == (measured, measured)


def test_faster_candidates_are_verified_after_a_winner_and_counted_where_time_ends(
    tmp_path: Path,
) -> None:
    # what the early verdict refuses at rung 0 is repaired by a slower kernel, which wins
    judgement = Judgement(verifying_needs=1, slower=lambda kernel: 1.0 + 2.0 * min(rungs(kernel)))
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        result, attempts, _ = walk_ladder(run, memory, judgement, clock=never_early())
    (won_ms,) = (
        each.measurement.latency_ms
        for each in attempts
        if each.candidate.kernel == result.best.candidate.kernel
    )
    faster = [each for each in attempts if each.measurement.latency_ms < won_ms]
    assert len(faster) > 1
    assert {each.candidate.kernel for each in faster} <= set(judgement.verified)
    assert result.unverified_faster == 0


def test_a_refusal_of_the_early_verdict_raises_the_rung_of_all_that_follows(
    tmp_path: Path,
) -> None:
    judgement = Judgement(verifying_needs=1)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=4)
        result, attempts, _ = walk_ladder(run, memory, judgement)
        assert replayed(run, memory, tmp_path) == []
    assert [rungs(attempt.candidate.kernel) for attempt in attempts] == [[0, 0], *[[1, 1]] * 5]
    assert result.best is not None


def test_a_resumed_run_takes_its_verdicts_over(tmp_path: Path) -> None:
    judgement = Judgement(verifying_needs=1)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=1, candidates_per_round=4)
        result, attempts, _ = walk_ladder(run, memory, judgement)
        verified, judged = len(judgement.verified), len(judgement.judged)
        again, same, _ = walk_ladder(run, memory, judgement)
    assert (len(judgement.verified), len(judgement.judged)) == (verified, judged)
    assert (again.best, same) == (result.best, attempts)


def test_a_better_baseline_that_comes_late_is_timed_against_the_winner(tmp_path: Path) -> None:
    judgement = Judgement(baselines={"eager": 20.0, "compile": 10.0, "max_autotune": 5.0})
    late = Judgement(baselines={"eager": 20.0, "compile": 10.0, "max_autotune": 1.0})
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=2)
        result, _, _ = walk_ladder(run, memory, judgement)
        assert (judgement.against[-1], result.speedup) == ("max_autotune", 2.5)
    with Memory(tmp_path / "other.db") as memory:
        run = ladder_run(tmp_path / "other", rounds=0, candidates_per_round=2)
        result, _, _ = walk_ladder(run, memory, late)
    assert result.best is None
    assert result.reason.endswith("nothing beat the best baseline")


def scout(skill: str, predicted_ms: float | None, move: Move = Move.SEED) -> Candidate:
    choices = (SiteChoice("site", "conv", skill, ()),) if move is Move.RECALL else ()
    task = Task(move, skill, None, 2, "", choices)
    return Candidate(Kernel(f"# {skill} {predicted_ms}"), task, "recipes", 0.1, predicted_ms)


def parts_at_the_beginning(card: str = "NVIDIA H200") -> Any:
    return SimpleNamespace(
        run=SimpleNamespace(start=None),
        history=SimpleNamespace(best=None),
        session=SimpleNamespace(
            present=True, traced=SimpleNamespace(device=SimpleNamespace(full_name=card))
        ),
    )


def test_the_direction_that_is_predicted_to_be_the_fastest_goes_ahead() -> None:
    slow, quick, quick_too = scout("pointwise", 3.0), scout("conv", 1.0), scout("conv", 0.5)
    model = scout("idea", None)
    written = [slow, quick, quick_too, model]
    # of each direction the first; the second of one comes with the rest
    expected = [[quick], [slow, model], [quick_too]]
    assert (
        in_batches(written, parts_at_the_beginning(), Remembered((), ()), has_passed=False)
        == expected
    )


def test_of_what_memory_holds_the_best_as_measured_goes_ahead_whatever_is_predicted() -> None:
    """A group norm took 4.7 ms with one setting and 5.2 with another that is predicted faster."""
    best, second = scout("best", 5.55, Move.RECALL), scout("second", 5.47, Move.RECALL)
    outcomes = [
        SimpleNamespace(choices=each.task.choices, device="", latency_ms=ms)
        for each, ms in ((best, 4.7), (second, 5.2))
    ]
    held = tuple(Recalled(cast(Any, each), None, True, 0.0, True) for each in outcomes)
    batches = in_batches(
        [second, best], parts_at_the_beginning(), Remembered(held, ()), has_passed=False
    )
    assert batches == [[best], [second]]


def test_what_memory_holds_goes_ahead_beside_a_guess_that_is_expected_to_be_faster() -> None:
    slow, quick, recalled = (
        scout("pointwise", 3.0),
        scout("conv", 1.0),
        scout("like", 1.05, Move.RECALL),
    )
    written = [slow, quick, recalled]
    alone, beside = [[recalled], [quick, slow]], [[recalled, quick], [slow]]
    parts = parts_at_the_beginning()
    outcome = SimpleNamespace(
        choices=recalled.task.choices, device="NVIDIA H200", latency_ms=1.2, graph_hash="g"
    )

    def taking(latency_ms: float) -> Remembered:
        took = SimpleNamespace(**{**vars(outcome), "latency_ms": latency_ms})
        return Remembered((Recalled(took, None, True, 0.0, True),), ())  # type: ignore[arg-type]

    exact = taking(1.2)
    like = Remembered((Recalled(outcome, None, False, 0.1, True),), ())  # type: ignore[arg-type]
    other = Recalled(outcome, None, False, math.inf, True)  # type: ignore[arg-type]
    # by predictions the two are as fast; this very graph took longer on such a card
    assert in_batches(written, parts, exact, has_passed=False) == beside
    assert in_batches(written, parts, like, has_passed=False) == alone
    assert (
        in_batches(written, parts_at_the_beginning("NVIDIA L4"), exact, has_passed=False) == alone
    )
    # nothing is known but that it is slower
    recalled = replace(recalled, whole_ms=2.0)
    assert in_batches([slow, quick, recalled], parts, like, has_passed=False) == [
        [recalled, quick],
        [slow],
    ]
    # it took less than that on this graph, as the guess may too
    assert in_batches([slow, quick, recalled], parts, taking(0.8), has_passed=False) == [
        [recalled, quick],
        [slow],
    ]
    # it won in a graph of another structure: one guess among others
    expected = [[quick], [recalled, slow]]
    assert (
        in_batches([slow, quick, recalled], parts, Remembered((other,), ()), has_passed=False)
        == expected
    )
