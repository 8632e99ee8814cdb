"""Who has the GPU: one process alone or several together, and nobody starves. No GPU is needed.

Inductor takes its turn too while it tunes.
"""

import fcntl
import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TextIO

import pytest

from kmem.host.lease import GpuLease
from kmem.measure.examine.examination import Examination
from kmem.measure.examine.provenance import check_provenance
from kmem.measure.pool.template import WORKER_FILES
from kmem.measure.worker import commands
from kmem.records import Contract, Kernel


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The worker's tuning.py, which has its siblings beside it as in a worker; no GPU is joined."""
    for place in {path.parent for path in WORKER_FILES}:
        monkeypatch.syspath_prepend(str(place))
    module = importlib.import_module("tuning")
    for each in (module, importlib.import_module("clocks")):
        monkeypatch.setattr(each, "_synchronize", lambda: None)
    return module


def is_taken(directory: Path) -> bool:
    """Whether somebody holds the lease of "card" alone."""

    class Taken(Exception):
        pass

    def on_wait(text: str) -> None:
        raise Taken

    with GpuLease(directory, "card", on_wait) as lease:
        try:
            with lease.hold(exclusive=False, purpose="a test"):
                return False
        except Taken:
            return True


def test_only_one_lease_holds_a_gpu_alone_and_the_other_is_told_to_wait(tmp_path: Path) -> None:
    waits: list[str] = []

    class Waited(Exception):
        """Raised instead of waiting."""

    def on_wait(text: str) -> None:
        waits.append(text)
        raise Waited

    one, two = GpuLease(tmp_path, "GPU-1", on_wait), GpuLease(tmp_path, "GPU-1", on_wait)
    other_card = GpuLease(tmp_path, "GPU-2", on_wait)
    with (
        one.hold(exclusive=False, purpose="a test"),
        two.hold(exclusive=False, purpose="a test"),
    ):  # checks may run side by side
        pass
    with (
        one.hold(exclusive=True, purpose="a test"),
        other_card.hold(exclusive=True, purpose="a test"),
        pytest.raises(Waited),
        two.hold(exclusive=False, purpose="a test"),
    ):
        pass
    with two.hold(exclusive=True, purpose="a test"):  # given up again
        pass
    assert waits == ["waiting for the GPU: another kmem is measuring on it"]
    assert one.exclusive_s > 0
    for lease in (one, two, other_card):
        lease.close()


def test_a_lease_held_for_timing_goes_back_to_what_it_was_held_for_before(tmp_path: Path) -> None:
    def on_wait(text: str) -> None:
        raise AssertionError(text)

    one, two = GpuLease(tmp_path, "GPU-1", on_wait), GpuLease(tmp_path, "GPU-1", on_wait)
    with one.hold(exclusive=False, purpose="a test"):
        with one.hold(exclusive=True, purpose="a test"):
            pass
        with two.hold(exclusive=False, purpose="a test"):
            pass
    one.close()
    two.close()


def test_who_waits_to_have_the_gpu_alone_is_not_starved_by_new_sharers(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = {"alone": threading.Event(), "later": threading.Event()}
    first = GpuLease(tmp_path, "card", lambda text: None)

    def take(name: str, exclusive: bool) -> None:
        with GpuLease(tmp_path, "card", lambda text: waiting[name].set()).hold(
            exclusive=exclusive, purpose="a test"
        ):
            order.append(name)

    threads = [
        threading.Thread(target=take, args=("alone", True)),
        threading.Thread(target=take, args=("later", False)),
    ]
    with first.hold(exclusive=False, purpose="a test"):
        for thread, name in zip(threads, waiting, strict=True):
            thread.start()
            assert waiting[name].wait(10), f"{name} did not have to wait"
    for thread in threads:
        thread.join(10)
    assert order == ["alone", "later"]


def test_a_long_check_lets_a_timing_in_between_its_steps(tmp_path: Path) -> None:
    wants, order = threading.Event(), list[str]()
    check = GpuLease(tmp_path, "card", lambda text: None)

    def time_it() -> None:
        with GpuLease(tmp_path, "card", lambda text: wants.set()).hold(
            exclusive=True, purpose="a test"
        ):
            order.append("timed")

    thread = threading.Thread(target=time_it)
    with check.hold(exclusive=False, purpose="a test"):
        thread.start()
        assert wants.wait(10), "the timing did not have to wait"
        check.pause()
        order.append("second step")
    thread.join(10)
    assert order == ["timed", "second step"]
    assert check.waited_s > 0
    check.pause()  # with nothing held, nothing happens
    with check.hold(exclusive=True, purpose="a test"):
        check.pause()  # nor while it is held alone
        assert is_taken(tmp_path)
    check.close()


def test_who_steps_aside_for_one_that_wants_room_gives_device_memory_back(tmp_path: Path) -> None:
    order: list[str] = []
    check = GpuLease(tmp_path, "card", lambda text: None, lambda: order.append("given back"))

    def use_it_alone(*, with_room: bool, waits: threading.Event) -> None:
        with GpuLease(
            tmp_path, "card", lambda text: waits.set(), lambda: order.append("own given back")
        ) as lease:
            hold = lease.hold(exclusive=True, purpose="a test")
            with lease.hold_with_room("a test") if with_room else hold:
                order.append("alone")
                lease.pause()

    for with_room in (True, False):
        waits = threading.Event()
        thread = threading.Thread(
            target=use_it_alone, kwargs={"with_room": with_room, "waits": waits}
        )
        with check.hold(exclusive=False, purpose="a test"):
            thread.start()
            assert waits.wait(10), "nobody had to wait"
            check.pause()
            order.append("second step")
        thread.join(10)
    check.pause()
    check.close()
    with_room = ["own given back", "given back", "alone", "own given back", "second step"]
    assert order == [*with_room, "alone", "second step"]


def test_inductor_has_the_gpu_alone_while_it_times_its_alternatives_and_a_moment_longer(
    tmp_path: Path, tuning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime import benchmarking

    seen: list[bool] = []

    class Tool:
        def benchmark(self) -> float:
            seen.append(is_taken(tmp_path))
            return self.benchmark_gpu(lambda: None)

        def benchmark_gpu(self, call: Callable[[], None]) -> float:
            seen.append(is_taken(tmp_path))
            return 1.5

    tool = Tool()
    monkeypatch.setattr(benchmarking, "benchmarker", tool)
    monkeypatch.setattr(tuning, "_LINGER_S", 0.05)
    with tuning.tuning_in_turn(GpuLease(tmp_path, "card", lambda text: None)):
        assert not is_taken(tmp_path)
        for _ in range(2):
            assert benchmarking.benchmarker.benchmark() == 1.5
        deadline = time.monotonic() + 10
        while is_taken(tmp_path):
            assert time.monotonic() < deadline, "the GPU is never given back"
        tool.benchmark()
    assert not is_taken(tmp_path)  # at the end at once
    assert seen == [True] * 6
    with tuning.tuning_in_turn(None):
        tool.benchmark()
    tool.benchmark()
    assert seen == [True] * 6 + [False] * 4


@pytest.mark.parametrize("longest_s", [0.0, 60.0])
def test_whoever_waits_goes_first_once_a_tuning_has_had_the_gpu_for_long(
    longest_s: float, tmp_path: Path, tuning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime import benchmarking

    order: list[str] = []
    waits = threading.Event()

    def time_a_candidate() -> None:
        with (
            GpuLease(tmp_path, "card", lambda text: waits.set()) as lease,
            lease.hold(exclusive=True, purpose="a test"),
        ):
            order.append("candidate")

    tool = SimpleNamespace(benchmark=order.append)
    monkeypatch.setattr(benchmarking, "benchmarker", tool)
    monkeypatch.setattr(tuning, "_LINGER_S", 60.0)
    monkeypatch.setattr(tuning, "_LONGEST_S", longest_s)
    waiter = threading.Thread(target=time_a_candidate)
    with tuning.tuning_in_turn(GpuLease(tmp_path, "card", lambda text: None)):
        tool.benchmark("one alternative")
        waiter.start()
        assert waits.wait(10)
        tool.benchmark("another")
    waiter.join(10)
    between = ["candidate", "another"] if longest_s == 0.0 else ["another", "candidate"]
    assert order == ["one alternative", *between]


@pytest.mark.parametrize(
    ("took_s", "options", "called", "found"),
    [
        ([0.2, 0.3], {}, 2, 300.0),  # so slow that one call is a time
        ([0.2, 0.001], {}, 2, 1.5),  # the first also loaded the kernel
        ([0.001], {}, 1, 1.5),
        ([0.2, 0.2], {"return_mode": "all"}, 0, 1.5),  # wants more than one number
    ],
)
def test_a_slow_alternative_is_timed_once(
    took_s: list[float],
    options: dict[str, str],
    called: int,
    found: float,
    tuning: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls = [0.0], [0]

    def call() -> None:
        now[0] += took_s[calls[0]]
        calls[0] += 1

    monkeypatch.setattr("clocks._clock", lambda: now[0])
    timed = tuning._once_if_slow(lambda call, **kwargs: 1.5)(call, **options)
    assert (timed, calls[0]) == (pytest.approx(found), called)


def test_an_alternative_that_cannot_be_launched_is_left_to_inductor(tuning: ModuleType) -> None:
    """Inductor goes on with the next alternative, as after an invalid configuration."""

    def call() -> None:
        raise RuntimeError("CUDA error: invalid configuration argument")

    assert tuning._once_if_slow(lambda call: float("inf"))(call) == float("inf")


def test_kernels_are_profiled_alone_so_that_nobody_else_makes_them_slow(tmp_path: Path) -> None:
    alone: dict[type, bool] = {}

    class Worker:
        def request(self, command: commands.Command, *, timeout_s: float) -> dict[str, object]:
            alone[type(command)] = is_taken(tmp_path)
            return {
                "operators": {},
                "origins": [],
                "kernels": [["scale", 5.0]],
                "own": {"scale": 1},
                "binaries": {},
            }

    with (
        GpuLease(tmp_path, "card", lambda text: None) as lease,
        lease.hold(exclusive=False, purpose="a test"),
    ):
        examination = Examination(
            Kernel("class ModelNew: pass"), Worker(), Contract(), 1.0, 1.0, lease
        )
        inputs = SimpleNamespace(fill=lambda family, seed: None, shared=SimpleNamespace(name="in"))
        examination.reference = SimpleNamespace(name="full", inputs=inputs)
        check_provenance(examination, 0, gpu=True)
    assert alone == {commands.Operators: False, commands.Kernels: True}
    assert examination.gpu_kernels == (("scale", 5.0),)


class TooLate(Exception):
    """A deadline that passed."""


def test_a_wait_that_a_deadline_ends_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_deadline(text: str) -> None:
        raise TooLate

    holder = GpuLease(tmp_path, "card", lambda text: None)
    waiter = GpuLease(tmp_path, "card", pass_deadline)
    with holder.hold(exclusive=True, purpose="a test"):
        with pytest.raises(TooLate), waiter.hold(exclusive=True, purpose="a test"):
            pass
        with pytest.raises(TooLate), waiter.hold_with_room("a test"):
            pass
    assert not is_taken(tmp_path)
    # a signal may come in just when the last lock has been taken
    taken = []

    def interrupted(file: TextIO, mode: int, on_wait: object) -> None:
        fcntl.flock(file, mode)
        taken.append(mode)
        if len(taken) == 2:  # of the gate and the card
            raise TooLate

    with monkeypatch.context() as patched:
        patched.setattr(waiter, "_is_room_wanted", lambda: False)
        patched.setattr("kmem.host.lease._wait_for", interrupted)
        with pytest.raises(TooLate), waiter.hold(exclusive=True, purpose="a test"):
            pass
    assert not is_taken(tmp_path)


def test_room_stays_asked_for_until_the_outermost_hold_ends(tmp_path: Path) -> None:
    lease, other = (GpuLease(tmp_path, "card", lambda text: None) for _ in range(2))
    with lease.hold_with_room("a test"):
        with lease.hold_with_room("within it"):
            assert other._is_room_wanted()
        assert other._is_room_wanted()
    assert not other._is_room_wanted()
