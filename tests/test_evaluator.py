"""The minutes of a run: what they count and what they do not."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_evaluator import make_run, open_traced_session

from kmem.host.environment import CORES_VARIABLE
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Baseline
from kmem.run import evaluator


class Clock:
    """Stands in for `time`: moves only when told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class StandingJudge:
    """A judge whose baselines take 100 s, 30 of which it waits for the GPU."""

    locks = Path("locks")

    def __init__(self, clock: Clock) -> None:
        self._clock, self.waited_s = clock, 0.0
        self.left: list[float] = []

    @property
    def own_time(self) -> float:
        return self._clock.now - self.waited_s

    def open(self) -> None:
        pass

    def baselines(self) -> tuple[Baseline, ...]:
        self._clock.now += 100.0
        self.waited_s += 30.0
        self.left.append(self.evaluator.seconds_left)
        return ()


def test_minutes_count_neither_baselines_nor_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    judge = StandingJudge(clock)
    monkeypatch.setattr(evaluator, "time", clock)
    monkeypatch.setattr(evaluator, "Judge", lambda *args, **options: judge)
    monkeypatch.setattr(evaluator, "CompilePool", lambda *args, **options: None)
    run = make_run(tmp_path, base_url="", minutes=1.0)
    with Memory(tmp_path / "kmem.db") as memory:
        session = replace(open_traced_session(memory), present=True)
        processes = SimpleNamespace(compilers=None, workers=None, cache_dir=tmp_path / "cache")
        judge.evaluator = live = evaluator.LiveEvaluator(
            run, session, Registry(), processes, lambda stage, text: None
        )
    clock.now += 5.0
    assert live.seconds_left == 55.0
    seen: list[float] = []

    def look(evaluator: object, name: str, value: object) -> None:
        object.__setattr__(evaluator, name, value)
        seen.append(live.seconds_left)

    # as another thread may, between any two steps
    monkeypatch.setattr(evaluator.LiveEvaluator, "__setattr__", look)
    live.baselines()
    assert (judge.left, live.seconds_left) == ([55.0], 55.0)
    assert seen and set(seen) == {55.0}
    clock.now += 20.0
    judge.waited_s += 12.0
    assert live.seconds_left == 47.0


def _children() -> list[str]:
    """Command lines of this process's children that run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (place / "stat").read_text(), (place / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        state, parent = status.rpartition(")")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found.append(line)
    return found


def _processes_seen() -> list[int]:
    """How many compile processes and workers of a judge run now."""
    lines = _children()
    return [
        sum(name in line for line in lines) for name in ("kmem.profile.compile.worker", "serve.py")
    ]


def test_processes_for_a_gpu_comes_up_before_it_is_asked_and_ends_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    # a worker finds out later that there is no GPU
    with evaluator.EvaluatorProcesses(
        tmp_path / "run", tmp_path / "cache", present=True
    ) as processes:
        deadline = time.monotonic() + 10.0
        # a process has no command line yet at the moment it becomes a program
        while _processes_seen() != [2, 1]:
            assert time.monotonic() < deadline, _processes_seen()
    assert _processes_seen() == [0, 0]
    processes.close()


def test_processes_without_a_gpu_wait_until_they_are_asked(tmp_path: Path) -> None:
    with evaluator.EvaluatorProcesses(tmp_path / "run", tmp_path / "cache", present=False):
        assert _processes_seen() == [0, 0]
