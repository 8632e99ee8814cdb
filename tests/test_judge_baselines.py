"""Baselines are timed in a thread of their own, each within what is left of its time."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kmem.measure import judge as judge_module
from kmem.measure.judge import Judge
from kmem.measure.pool.process import WorkerLost
from kmem.measure.timing import baseline as baseline_module
from kmem.measure.timing.gpu_clock import LoadedModule
from kmem.records import BASELINES, Baseline, Status, Timing


class Worker:
    def __init__(self, number: int) -> None:
        self.number = number

    def wait_ready(self) -> "Worker":
        return self


class Pool:
    """Workers by number, those that were ended, and the time by the judge's clock."""

    def __init__(self) -> None:
        self.started, self.ended = 0, []

    def start(self, *, clean: bool) -> Worker:
        assert clean
        self.started += 1
        return Worker(self.started)

    def discard(self, worker: Worker) -> None:
        self.ended.append(worker.number)


class Lease:
    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def hold(self, *, exclusive: bool) -> nullcontext:
        return nullcontext()


def time_all(
    monkeypatch: pytest.MonkeyPatch,
    times_ms: dict[str, float],
    *,
    takes_s: float = 1.0,
    names: Sequence[str] = BASELINES,
) -> SimpleNamespace:
    """Have a judge of 10 s time baselines that take so long: what it found and did."""
    seen = SimpleNamespace(now=0.0, told=[], kept=[], limits={}, pool=Pool())

    def time_baseline(module: LoadedModule, *about: object, limit_s: float, **more: int) -> object:
        seen.limits[module.key] = limit_s
        seen.now += takes_s
        time_ms = times_ms.get(module.key)
        timing = None if time_ms is None else Timing(time_ms, time_ms, time_ms, 30)
        return Baseline(module.key, timing, False, log="" if timing else "it broke")

    monkeypatch.setattr(judge_module, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(judge_module, "time_baseline", time_baseline)
    monkeypatch.setattr(judge_module, "open_lease", lambda *about: Lease())
    made = object.__new__(Judge)
    made.locks, made._on_event, made._workers = None, lambda text: None, seen.pool
    made._traced = SimpleNamespace(problem=None, device=SimpleNamespace(l2_bytes=1))
    made._resources = SimpleNamespace(
        timed_inputs=lambda: SimpleNamespace(
            refresh=lambda worker: None, show=lambda worker: None, names=lambda worker: []
        ),
        reference=lambda: None,
        keep_baseline_worker=lambda name, worker: seen.kept.append((name, worker.number)),
    )
    seen.found = made.baselines(names, 10.0, seen.told.append)
    return seen


def test_the_best_ones_worker_stays_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = time_all(monkeypatch, {"eager": 3.0, "compile": 2.0, "max_autotune": 1.0})
    assert [baseline.name for baseline in seen.told] == list(BASELINES)
    assert seen.found == tuple(seen.told)
    # what was handed on may be in use when max-autotune turns out faster
    assert (seen.kept, seen.pool.ended) == ([("compile", 2), ("max_autotune", 3)], [1])
    assert seen.limits == {"eager": 10.0, "compile": 9.0, "max_autotune": 8.0}


def test_a_slow_baseline_that_is_not_the_best_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = time_all(monkeypatch, {"eager": 1.0, "compile": 2.0, "max_autotune": 3.0})
    assert (seen.kept, seen.pool.ended) == ([("eager", 1)], [2, 3])


def test_a_baseline_that_fails_says_why_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = time_all(monkeypatch, {"eager": 1.0})
    assert [baseline.log for baseline in seen.found] == ["", "it broke", "it broke"]
    assert (seen.kept, seen.pool.ended) == ([("eager", 1)], [2, 3])


def test_max_autotune_alone_is_timed_where_the_others_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = time_all(monkeypatch, {"max_autotune": 1.0}, names=("max_autotune",))
    assert (seen.kept, seen.pool.ended) == ([("max_autotune", 1)], [])


def test_what_is_not_begun_in_time_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"eager": 3.0, "compile": 2.0, "max_autotune": 1.0}
    seen = time_all(monkeypatch, times, takes_s=6.0)
    late = seen.found[-1]
    assert (late.name, late.timed_out, late.timing) == ("max_autotune", True, None)
    assert late.log == "timed out: not timed within 10 s; --baseline-minutes gives it more"
    assert seen.kept == [("compile", 2)]


@pytest.mark.parametrize(
    ("lost", "timed_out"),
    [
        (WorkerLost(Status.TIMED_OUT, "no answer within 5 s"), True),
        (WorkerLost(Status.CRASHED, "it ended"), False),
    ],
)
def test_a_baseline_that_gives_no_answer_in_time_is_named_as_that(
    lost: WorkerLost, timed_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*about: object, timeout_s: float) -> None:
        assert timeout_s == pytest.approx(5.0, abs=0.5)
        raise lost

    monkeypatch.setattr(baseline_module, "start_baseline", lose)
    module = LoadedModule(Worker(1), "max_autotune")
    found = baseline_module.time_baseline(module, [], None, None, l2_bytes=1, limit_s=5.0)
    assert found.timed_out is timed_out
    assert ("timed out" in found.log) is timed_out
