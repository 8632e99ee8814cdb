"""Baselines are timed once on a machine, and what failed for a passing reason is tried again."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_evaluator import ScriptedEvaluator, make_run, open_traced_session, timing

from kmem.memory.store import Memory
from kmem.records import BASELINES, Baseline
from kmem.run.evaluation.baselines import count_loaded_at_once, keep_baselines, known_baselines
from kmem.run.setup.session import Session
from kmem.run.stages.parts import open_parts

TIMES_MS = {"eager": 4.0, "compile": 2.0, "max_autotune": 1.0}


class Timer(ScriptedEvaluator):
    """Times what it is asked for; notes that, and which remembered baselines it is to load."""

    def __init__(self, session: Session, found: dict[str, Baseline]) -> None:
        super().__init__(session)
        self._found = found
        self.asked: list[str] = []
        self.loaded: list[str] = []

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        self.asked += names
        for name in names:
            on_found(self._found[name])

    def load_baseline(self, name: str) -> None:
        self.loaded.append(name)


def timed(**failed: Baseline) -> dict[str, Baseline]:
    return {name: Baseline(name, timing(ms), False) for name, ms in TIMES_MS.items()} | failed


def wait_for_all(home: Path, memory: Memory, found: dict[str, Baseline]) -> Timer:
    """What a run's evaluator was asked for until all baselines were known."""
    run = make_run(home, base_url="")
    session = replace(open_traced_session(memory), present=True)
    timer = Timer(session, found)
    with open_parts(run, session, memory, lambda event: None, lambda announce: timer) as parts:
        parts.baselines.start(parts.announce)
        parts.baselines.wait()
    return timer


def test_a_second_run_times_nothing_and_loads_the_best(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        first = wait_for_all(tmp_path, memory, timed())
        second = wait_for_all(tmp_path, memory, timed())
    assert (first.asked, first.loaded) == (list(BASELINES), [])
    assert (second.asked, second.loaded) == ([], ["max_autotune"])


@pytest.mark.parametrize("ends", [False, True])
def test_max_autotune_begins_once_a_kernel_is_verified_or_the_search_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr("kmem.run.evaluation.baselines._TUNING_AFTER_S", 600.0)
    began: list[str] = []
    tuning = threading.Event()

    class Tuner(Timer):
        def baselines(self, names: Sequence[str], limit_s: float, on_found: object) -> None:
            for name in names:
                began.append(name)
                if name == "max_autotune":
                    tuning.set()
                on_found(self._found[name])

    with Memory(tmp_path / "kmem.db") as memory:
        session = replace(open_traced_session(memory), present=True)
        timer = Tuner(session, timed())
        run = make_run(tmp_path, base_url="")
        with open_parts(run, session, memory, lambda event: None, lambda announce: timer) as parts:
            parts.baselines.start(parts.announce)
            assert [each.name for each in parts.baselines.wait_for_quick()] == ["eager", "compile"]
            assert not tuning.wait(0.2) and began == ["eager", "compile"]
            if ends:
                assert len(parts.baselines.wait()) == 3
            else:
                parts.baselines.let_tune()
                assert tuning.wait(60)


@pytest.mark.parametrize(
    ("log", "timed_out", "asked"),
    [
        ("timed out: not timed within 8 s", True, ["compile"]),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB", False, ["compile"]),
        ("the worker was killed by SIGKILL", False, ["compile"]),
        ("torch._dynamo.exc.Unsupported: a generator", False, []),
    ],
)
def test_what_failed_for_a_passing_reason_is_tried_again(
    log: str, timed_out: bool, asked: list[str], tmp_path: Path
) -> None:
    failed = Baseline("compile", None, False, log=log, timed_out=timed_out)
    with Memory(tmp_path / "kmem.db") as memory:
        wait_for_all(tmp_path, memory, timed(compile=failed))
        again = wait_for_all(tmp_path, memory, timed())
    assert again.asked == asked


def test_processes_are_begun_for_the_quick_baselines_that_are_not_remembered(
    tmp_path: Path,
) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        traced = open_traced_session(memory).traced

        def count(*names: str) -> int:
            return count_loaded_at_once(
                memory, traced.problem, traced.device, traced.contract, names
            )

        assert count(*BASELINES) == 2
        assert (count("eager", "max_autotune"), count("max_autotune"), count()) == (1, 0, 0)
        keep_baselines(memory, traced, (timed()["eager"],))
        assert (count(*BASELINES), count("eager")) == (1, 1)
        keep_baselines(memory, traced, tuple(timed().values()))
        assert len(known_baselines(memory, traced)) == 3
        assert count(*BASELINES) == 1  # the best is loaded, for paired timing
