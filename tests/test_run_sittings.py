"""A run over several sittings: its clock stands still between them and while it catches up."""

from pathlib import Path

from scripted_evaluator import ScriptedEvaluator, kernel_text, make_run, open_traced_session
from scripted_models import attempted

from kmem.memory.store import Memory
from kmem.records import Kernel
from kmem.run.stages.parts import open_parts
from kmem.run.state.resume import time_over_all_sittings


class Hours:
    """A clock that is set by hand, and an evaluator's minutes that run with it."""

    def __init__(self, budget_s: float) -> None:
        self.now = 0.0
        self._budget_s = budget_s

    def left(self) -> float:
        return self._budget_s - self.now


def test_a_new_run_has_all_its_minutes() -> None:
    hours = Hours(180.0)
    left = time_over_all_sittings(hours.left, 0.0, lambda: False, now=lambda: hours.now)
    hours.now = 30.0
    assert left() == 150.0


def test_walking_the_old_path_again_costs_nothing_and_new_work_does() -> None:
    hours, caught_up = Hours(180.0 - 100.0), False
    left = time_over_all_sittings(hours.left, 100.0, lambda: caught_up, now=lambda: hours.now)
    hours.now = 20.0
    assert left() == 80.0
    caught_up = True
    hours.now = 25.0
    assert left() == 80.0
    hours.now = 35.0
    assert left() == 70.0


def test_a_path_that_never_comes_up_again_does_not_stop_the_clock_for_good() -> None:
    hours = Hours(80.0)
    left = time_over_all_sittings(hours.left, 100.0, lambda: False, now=lambda: hours.now)
    hours.now = 150.0
    assert left() == 30.0


def test_what_a_run_spent_is_kept_with_its_findings_and_never_grows_less(tmp_path: Path) -> None:
    run = make_run(tmp_path, base_url="", minutes=2.0)
    with Memory(tmp_path / "kmem.db") as memory:
        memory.runs.start(run)
        session = open_traced_session(memory)
        evaluator = ScriptedEvaluator(session, clock=lambda: 100.0)
        with open_parts(run, session, memory, lambda event: None, lambda announce: evaluator) as it:
            it.recorder.record_attempt(1, attempted(Kernel("# one"), ms=1.0), None)
        assert memory.runs.seconds_spent(run.id) == 20.0
        memory.runs.put_seconds_spent(run.id, 10.0)
        memory.runs.start(run)
        assert memory.runs.seconds_spent(run.id) == 20.0


def test_the_best_kernel_so_far_lies_where_the_winner_will_be(tmp_path: Path) -> None:
    run = make_run(tmp_path, base_url="")
    slow, fast, worst = (
        attempted(Kernel(kernel_text(takes_ms))).candidate for takes_ms in (9.0, 1.0, 11.0)
    )
    with Memory(tmp_path / "kmem.db") as memory:
        memory.runs.start(run)
        session = open_traced_session(memory)
        evaluator = ScriptedEvaluator(session)
        with open_parts(run, session, memory, lambda event: None, lambda announce: evaluator) as it:
            it.baselines.start(it.announce)
            it.measurer.measure(0, [worst], {})
            assert not it.directory.best_kernel.exists(), "slower than the module itself"
            for candidate in (slow, fast, worst):
                it.measurer.measure(0, [candidate], {})
            text = it.directory.best_kernel.read_text()
    assert text.startswith("# PROVISIONAL, NOT VERIFIED")
    assert "1 ms (measured), eager 10 ms" in text
    assert text.endswith(fast.kernel.source)
