"""The minutes of a run: what they count and what they do not."""

import os
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_evaluator import make_run, open_traced_session

from kmem.host.environment import CORES_VARIABLE
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.traced import TracedProblem
from kmem.records import Baseline, Kernel, Measurement, Status, Timing
from kmem.run.evaluation import evaluator
from kmem.run.evaluation.processes import EvaluatorProcesses


class Clock:
    """Stands in for `time`: moves only when told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class StandingJudge:
    """A judge whose baselines take 100 s, 30 of which another thread waits for the GPU."""

    locks = Path("locks")

    def __init__(self, clock: Clock) -> None:
        self._clock, self.waited_s = clock, 0.0
        self.left: list[float] = []
        self.verified_next: list[bool] = []
        self.verdict_takes_s, self.status = 4.0, Status.PASSED
        self.screening_takes_s = 1.0
        self.others_take_s = 0.0  # of a verdict's time

    @property
    def own_time(self) -> float:
        return self._clock.now - self.waited_s

    def open(self) -> None:
        pass

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        self._clock.now += 10.0
        self.waited_s += 3.0
        self.left.append(self.evaluator.seconds_left)

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: object,
        *,
        deadline_s: float,
        verified_next: bool,
        by_recipes: Set[str],
    ) -> None:
        self.verified_next.append(verified_next)
        self._clock.now += self.screening_takes_s

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        self._clock.now += self.verdict_takes_s
        self.waited_s += self.others_take_s
        passes = self.status is Status.PASSED
        timing = Timing(1.0, 1.0, 1.0, 30) if passes else None
        return Measurement(self.status, timing, estimated=False, log="" if passes else "it is not")


class StandingPool:
    """A pool that compiles nothing."""

    def __init__(self, traced: TracedProblem, **options: object) -> None:
        self.traced, self.is_postponed = traced, False

    @contextmanager
    def postponed(self) -> Iterator[None]:
        self.is_postponed = True
        yield
        self.is_postponed = False

    def begin(self, kernels: Sequence[Kernel], *, timeout_s: float) -> None:
        pass


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[evaluator.LiveEvaluator]:
    """An evaluator of one minute, whose processes started 5 s ago, with a clock and a judge."""
    clock = Clock()
    judge = StandingJudge(clock)
    monkeypatch.setattr(evaluator, "time", clock)
    monkeypatch.setattr(evaluator, "Judge", lambda *args, **options: judge)
    monkeypatch.setattr(evaluator, "CompilePool", StandingPool)
    run = make_run(tmp_path, base_url="", minutes=1.0)
    with Memory(tmp_path / "kmem.db") as memory:
        session = replace(open_traced_session(memory), present=True)
        processes = SimpleNamespace(
            compilers=None,
            workers=None,
            cores=SimpleNamespace(waited_s=0.0),
            cache_dir=tmp_path / "cache",
            started_at=clock.now - 5.0,
        )
        judge.evaluator = made = evaluator.LiveEvaluator(
            run, session, Registry(), processes, lambda stage, text: None
        )
    made.clock, made.judge, made.cores = clock, judge, processes.cores
    yield made


def test_minutes_begin_with_the_processes_and_do_not_count_waiting_for_others(
    live: evaluator.LiveEvaluator,
) -> None:
    assert live.seconds_left == 55.0
    live.clock.now += 20.0
    live.judge.waited_s += 12.0
    assert live.seconds_left == 47.0
    live.clock.now += 9.0
    live.cores.waited_s += 4.0  # runs of the same bench had all cores
    assert live.seconds_left == 42.0


def test_minutes_count_what_the_search_waits_for_its_own_baselines_meanwhile(
    live: evaluator.LiveEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def look(made: object, name: str, value: object) -> None:
        object.__setattr__(made, name, value)
        seen.append(live.seconds_left)

    # as another thread may, between any two steps
    monkeypatch.setattr(evaluator.LiveEvaluator, "__setattr__", look)
    live.baselines(("eager",), 60.0, print)
    assert (live.judge.left, live.seconds_left) == ([45.0], 45.0)
    assert seen and set(seen) == {55.0, 45.0}
    live.grant_s(7.0)  # it waited for them at its end
    assert live.seconds_left == 52.0


def test_the_minutes_that_are_kept_follow_how_long_a_verification_takes(
    live: evaluator.LiveEvaluator,
) -> None:
    assert live.reserve_s == 15.0
    live.verify(Kernel("# a kernel"), ())
    assert live.reserve_s == 8.0
    live.judge.verdict_takes_s, live.judge.others_take_s = 100.0, 96.0
    live.verify(Kernel("# one that waits for other programs"), ())
    assert live.reserve_s == 8.0
    live.judge.others_take_s = 0.0
    live.judge.verdict_takes_s = 100.0
    live.verify(Kernel("# a slow one"), ())
    assert live.reserve_s == 30.0, "never more than half of them"


def test_until_a_verdict_the_minutes_that_are_kept_follow_how_long_screening_one_takes(
    live: evaluator.LiveEvaluator,
) -> None:
    one, two = Kernel("# one"), Kernel("# two")
    live.judge.screening_takes_s = 5.0
    live.screen([one], lambda index, verdict: None)
    assert live.reserve_s == 15.0, "never less than without"
    live.judge.screening_takes_s = 12.0
    live.screen([one, two], lambda index, verdict: None)
    assert live.reserve_s == 15.0, "of two at once no one knows whose time it is"
    live.screen([two], lambda index, verdict: None)
    assert live.reserve_s == 24.0
    live.judge.screening_takes_s = 20.0
    live.screen([two], lambda index, verdict: None)
    assert live.reserve_s == 30.0, "never more than half of them"
    live.verify(one, ())
    assert live.reserve_s == 8.0, "now it is known"


def test_small_sizes_are_compiled_while_the_judge_checks_the_full_one(
    live: evaluator.LiveEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, small = live._pool, live._small_pool
    assert small.traced.workload == live._session.traced.workloads["small"]
    at_work: list[bool] = []
    monkeypatch.setattr(small, "begin", lambda *args, **options: at_work.append(full.is_postponed))
    live.verify(Kernel("# one"), ())
    assert at_work == [True], "ahead of candidates that wait for a compiler"


def test_the_first_kernel_of_all_that_comes_alone_is_verified_next(
    live: evaluator.LiveEvaluator,
) -> None:
    one, two = Kernel("# one"), Kernel("# two")
    for kernels in ([one], [two], [one, two]):
        live.screen(kernels, lambda index, verdict: None)
    assert live.judge.verified_next == [True, False, False]


def test_a_quick_refusal_does_not_say_how_long_a_verification_takes(
    live: evaluator.LiveEvaluator,
) -> None:
    live.judge.status = Status.WRONG_VALUES
    live.verify(Kernel("# a wrong one"), ())
    assert live.reserve_s == 15.0


def _children() -> list[tuple[int, str]]:
    """Numbers and command lines of this process's children that run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (place / "stat").read_text(), (place / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        state, parent = status.rpartition(")")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found.append((int(place.name), line))
    return found


def _processes_seen() -> list[int]:
    """How many compile processes, processes that workers are forked from and baselines' run."""
    lines = [line for _, line in _children()]
    return [
        sum(name in line for line in lines)
        for name in ("kmem.profile.compile.worker", "template.py", "serve.py")
    ]


@pytest.mark.usefixtures("cold_processes")  # which are known by their command lines
def test_processes_for_a_gpu_comes_up_before_it_is_asked_and_ends_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    # a worker finds out later that there is no GPU
    with EvaluatorProcesses(
        tmp_path / "run", tmp_path / "cache", present=True, baselines=2
    ) as processes:
        deadline = time.monotonic() + 10.0
        # a process has no command line yet at the moment it becomes a program
        while _processes_seen() != [3, 1, 2]:
            assert time.monotonic() < deadline, _processes_seen()
        own = os.getpriority(os.PRIO_PROCESS, 0)
        for number, line in _children():  # compilers yield to those that time
            yields = os.getpriority(os.PRIO_PROCESS, number) > own
            assert yields is ("kmem.profile.compile.worker" in line), line
    assert _processes_seen() == [0, 0, 0]
    processes.close()


def test_processes_without_a_gpu_wait_until_they_are_asked(tmp_path: Path) -> None:
    with EvaluatorProcesses(tmp_path / "run", tmp_path / "cache", present=False):
        assert _processes_seen() == [0, 0, 0]
