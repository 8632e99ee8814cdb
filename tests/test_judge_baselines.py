"""Baselines are loaded side by side and timed in a thread of their own, within their time."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from kmem.measure import competition
from kmem.measure.competition import Awaited, Competition, settle_baselines
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
    place = ("locks", "GPU-0")

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def hold(self, *, exclusive: bool, purpose: str) -> nullcontext:
        return nullcontext()


def time_all(
    monkeypatch: pytest.MonkeyPatch,
    times_ms: dict[str, float],
    *,
    takes_s: float = 1.0,
    names: Sequence[str] = BASELINES,
    moved_bytes: int = 1,
) -> SimpleNamespace:
    """Time baselines that take so long within 10 s: what was found and done.

    Args:
        moved_bytes: by the problem, on a device of 100 bytes.
    """
    seen = SimpleNamespace(now=0.0, told=[], kept=[], limits={}, pool=Pool(), steps=[], leases=0)
    quick = [name for name in names if name != "max_autotune"]
    together = threading.Barrier(len(quick) if quick and moved_bytes == 1 else 1)

    def prepare_baseline(module: LoadedModule, *about: object, **more: object) -> object:
        seen.steps.append(f"load {module.key}")
        if module.key in quick:  # none of them ends before the others have begun
            together.wait(timeout=10)
        if module.key not in times_ms:
            return Baseline(module.key, None, False, log="it broke")
        return None

    def time_baseline(module: LoadedModule, *about: object, limit_s: float, **more: int) -> object:
        seen.steps.append(f"time {module.key}")
        seen.limits[module.key] = limit_s
        seen.now += takes_s
        time_ms = times_ms[module.key]
        return Baseline(module.key, Timing(time_ms, time_ms, time_ms, 30), False)

    def open_lease(*about: object) -> Lease:
        seen.leases += 1
        return Lease()

    def try_on_cpu() -> None:
        assert not seen.leases, "others should have the GPU meanwhile"
        seen.was_tried = True

    monkeypatch.setattr(competition, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(competition, "time_baseline", time_baseline)
    monkeypatch.setattr(competition, "prepare_baseline", prepare_baseline)
    monkeypatch.setattr(competition, "open_lease", open_lease)
    resources = SimpleNamespace(
        traced=SimpleNamespace(
            problem=None,
            device=SimpleNamespace(l2_bytes=1, memory_bytes=100),
            bound=SimpleNamespace(bytes=moved_bytes),
        ),
        timed_inputs=lambda: SimpleNamespace(
            refresh=lambda worker: None, show=lambda worker: None, names=lambda worker: []
        ),
        reference=lambda: None,
        try_on_cpu=try_on_cpu,
        keep_baseline_worker=lambda name, worker: seen.kept.append((name, worker.number)),
    )
    timed = Competition(resources, seen.pool, Path("locks"), 10.0, lambda text: None)
    seen.found = timed.time_all(names, seen.told.append)
    assert seen.was_tried
    return seen


def test_the_best_ones_worker_stays_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = time_all(monkeypatch, {"eager": 3.0, "compile": 2.0, "max_autotune": 1.0})
    assert [baseline.name for baseline in seen.told] == list(BASELINES)
    assert seen.found == tuple(seen.told)
    # what was handed on may be in use when max-autotune turns out faster
    assert (seen.kept, seen.pool.ended) == ([("compile", 2), ("max_autotune", 3)], [1])
    assert seen.limits == {"eager": 10.0, "compile": 9.0, "max_autotune": 8.0}
    assert sorted(seen.steps[:2]) == ["load compile", "load eager"]
    assert seen.steps[2:] == [
        "time eager",
        "time compile",
        "load max_autotune",
        "time max_autotune",
    ]


def test_large_problems_load_one_baseline_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"eager": 3.0, "compile": 2.0, "max_autotune": 1.0}
    seen = time_all(monkeypatch, times, moved_bytes=50)
    assert seen.steps == [f"{verb} {name}" for name in BASELINES for verb in ("load", "time")]


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
    found = baseline_module.prepare_baseline(module, [], None, None, l2_bytes=1, limit_s=5.0)
    assert found.timed_out is timed_out
    assert ("timed out" in found.log) is timed_out


def test_a_checked_kernel_leaves_the_gpu_to_the_baselines_that_it_waits_for() -> None:
    fast = Baseline("eager", Timing(1.0, 1.0, 1.0, 30), False)
    pauses: list[int] = []
    examination = SimpleNamespace(pause=lambda: pauses.append(1))
    awaited = Awaited(lambda: len(pauses) == 3, lambda: [fast])
    assert settle_baselines(examination, awaited) == [fast]
    assert settle_baselines(examination, [fast]) == [fast]
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("batches_ms", "taken", "found_ms"),
    [
        ([[2.0, 2.0, 2.1]], 1, 2.0),
        ([[2.0, 7.0, 8.0], [1.9, 2.0, 2.1]], 2, 2.0),  # the host was busy, and is quiet now
        ([[2.0, 7.0, 8.0], [5.0, 6.0, 9.0], [2.0, 4.0, 6.0], [3.0, 5.0, 9.0]], 4, 4.0),
        ([[2.0, 7.0, 8.0], WorkerLost(Status.TIMED_OUT, "late")], 2, 7.0),
        ([WorkerLost(Status.TIMED_OUT, "late")], 1, None),
    ],
)
def test_times_of_a_busy_host_are_taken_again_and_the_quickest_batch_counts(
    monkeypatch: pytest.MonkeyPatch,
    batches_ms: list[list[float] | Exception],
    taken: int,
    found_ms: float | None,
) -> None:
    left = iter(batches_ms)
    seen: list[object] = []

    def sample_times(*about: object) -> SimpleNamespace:
        seen.append(batch := next(left))
        if isinstance(batch, Exception):
            raise batch
        return SimpleNamespace(event_ms=batch)

    monkeypatch.setattr(baseline_module, "sample_times", sample_times)
    found = baseline_module.time_baseline(LoadedModule(None, "eager"), [], None, l2_bytes=1)
    assert len(seen) == taken
    assert (found.timing and found.timing.latency_ms) == found_ms
    assert found.timed_out is (found_ms is None)
