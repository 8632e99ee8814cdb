"""What a run knows of itself, without memory, directory or evaluator."""

from dataclasses import replace

from scripted_models import attempted, make_situation

from kmem.records import Attempt, Kernel, Launch, Profile, Status
from kmem.run.state.history import History
from kmem.run.state.resume import EarlierWork

FAST = attempted(Kernel("# fast"), ms=1.0)
SLOW = attempted(Kernel("# slow"), ms=2.0)
WRONG = attempted(Kernel("# wrong"), Status.WRONG_VALUES)
BROKEN = attempted(Kernel("# broken"), Status.BUILD_FAILED)


def history_of(*attempts: Attempt, earlier: EarlierWork | None = None) -> History:
    history = History(make_situation().traced, earlier or EarlierWork({}, {}, {}))
    for attempt in attempts:
        history.add_attempt(attempt)
    return history


def test_attempts_that_passed_are_ranked_and_what_did_not_build_was_not_measured() -> None:
    history = history_of(SLOW, WRONG, FAST, BROKEN)
    assert history.ranking() == [FAST, SLOW]
    assert (history.best, history.best_ms) == (FAST, 1.0)
    assert history.measurements == 3
    assert history.find(WRONG.candidate.kernel.hash) == WRONG
    assert history.find("another") is None


def test_nothing_is_best_before_anything_has_passed() -> None:
    history = history_of(WRONG)
    assert (history.best, history.best_ms, history.ranking()) == (None, None, [])


def test_an_attempt_that_a_final_verdict_refuses_is_ranked_no_more() -> None:
    history = history_of(FAST, SLOW)
    refused = replace(FAST, measurement=WRONG.measurement)
    history.add_verdict(FAST, refused)
    assert history.attempts == [refused, SLOW]
    history.add_verdict(SLOW, replace(SLOW, measurement=SLOW.measurement))
    assert history.best == SLOW
    assert history.measurements == 4


def test_a_resumed_run_takes_over_what_an_earlier_process_finished() -> None:
    kernel = FAST.candidate.kernel
    profile = Profile(kernel.hash, "ncu", "h200", False, (Launch("k", 1.0, None, None, {}),))
    earlier = EarlierWork({kernel.hash: FAST}, {kernel.hash: profile}, {})
    history = history_of(earlier=earlier)
    assert history.attempts == []
    assert history.take_over(kernel)
    assert not history.take_over(SLOW.candidate.kernel)
    assert history.attempts == [FAST]
    assert history.signature(FAST).values["launches"] == 1.0
    assert history.signature(SLOW) is None
