"""Which worker gets which work: longest first, nothing twice, and what a lost worker costs."""

import sys
from pathlib import Path

import pytest

from kmem.engines.executor import (
    Began,
    Crew,
    Ended,
    Event,
    Failed,
    Job,
    JobResult,
    Joined,
    Lost,
    Said,
    Worker,
)
from kmem.engines.scheduler import ATTEMPTS, Listener, Scheduler, Verdict, Work
from kmem.errors import ExecutorError

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from benchmark_scheduler import Asked, simulate  # noqa: E402

DONE = JobResult(0, "", "", {}, 1.0)


class Hand(Crew):
    """A crew whose events the test makes."""

    def __init__(self, *workers: Worker) -> None:
        self.coming: list[Event] = [Joined(worker) for worker in workers]
        self.started: list[tuple[str, str]] = []  # worker, key
        self.tickets: dict[str, str] = {}  # the last of each key
        self.cancelled: list[str] = []

    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        key = ticket.partition("#")[0]
        assert job.argv == (key, worker.id)
        self.started.append((worker.id, key))
        self.tickets[key] = ticket

    def cancel(self, ticket: str) -> None:
        self.cancelled.append(ticket.partition("#")[0])

    def events(self, timeout_s: float) -> list[Event]:
        found, self.coming = self.coming, []
        return found

    def close(self) -> None:
        pass


class Diary(Listener):
    """Writes down what it hears."""

    def __init__(self, *, unfit: str = "") -> None:
        self.heard: list[object] = []
        self._unfit = unfit

    def began(self, worker: Worker) -> None:
        self.heard.append("began")

    def said(self, worker: Worker, stream: str, text: str) -> None:
        self.heard.append(text)

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        if worker.id == self._unfit:
            return Verdict.ELSEWHERE
        self.heard.append(result.exit_code)
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self.heard.append(reason)


class Team:
    """A scheduler over a crew of hand-made events."""

    def __init__(self, *workers: Worker) -> None:
        self.crew, self.notes, self.now = Hand(*workers), [], 0.0
        self.scheduler = Scheduler(self.crew, self.notes.append, lambda: self.now)

    def add(self, key: str, expected_s: float = 1.0, gpu: bool = False, **diary: str) -> Diary:
        found = Diary(**diary)
        self.scheduler.add(
            Work(
                key, lambda worker: Job((key, worker.id), {}, {}), found, expected_s, 60.0, gpu=gpu
            )
        )
        return found

    def happens(self, *events: tuple[type, str] | Event) -> list[tuple[str, str]]:
        """Let something happen (a class of events of a key), and say what was started then."""
        known = len(self.crew.started)
        for event in events:
            if isinstance(event, tuple):
                kind, key = event
                ticket = self.crew.tickets[key]
                more = {Ended: (DONE,), Failed: ("a full disk",), Said: ("stdout", "hello")}
                self.crew.coming.append(kind(ticket, *more.get(kind, ())))
            else:
                self.crew.coming.append(event)
        self.scheduler.step(0)
        self.scheduler.step(0)
        return self.crew.started[known:]


def test_the_longest_is_begun_first_and_the_next_when_there_is_room() -> None:
    team = Team(Worker("a"), Worker("b"))
    for key, seconds in (("short", 1), ("long", 9), ("middle", 5)):
        team.add(key, seconds)
    assert team.happens() == [("a", "long"), ("b", "middle")]
    assert team.happens((Ended, "middle")) == [("b", "short")]
    team.happens((Ended, "long"), (Ended, "short"))
    assert team.scheduler.is_done


def test_work_for_a_gpu_goes_to_a_gpu_and_other_work_does_not() -> None:
    team = Team(Worker("card", gpu="GPU-1"), Worker("core"))
    team.add("measure", gpu=True)
    team.add("measure-2", gpu=True)
    team.add("compile")
    assert sorted(team.happens()) == [("card", "measure"), ("core", "compile")]


def test_a_worker_gets_one_job_ahead_only_while_there_is_enough_for_all() -> None:
    team = Team(Worker("a", ahead=1), Worker("b", ahead=1))
    for number in range(5):
        team.add(f"w{number}", 9 - number)
    # three wait for two workers: one is given ahead; the rest goes to whoever is free first
    assert team.happens() == [("a", "w0"), ("b", "w1"), ("a", "w2")]
    assert team.happens((Ended, "w1")) == [("b", "w3")]
    assert team.happens((Ended, "w3")) == [("b", "w4")]
    # and b, which has nothing left to do, takes over what a was given ahead
    assert team.happens((Ended, "w4")) == [("b", "w2")] and team.crew.cancelled == ["w2"]
    team.happens((Ended, "w0"), (Ended, "w2"))
    assert team.scheduler.is_done


def test_a_lost_worker_is_one_line_and_its_work_goes_on_elsewhere() -> None:
    team = Team(Worker("a", at_once=2), Worker("b"))
    diaries = [team.add(f"w{number}", 9 - number) for number in range(3)]
    team.happens()
    assert team.happens(Lost("a", "the node died")) == []  # b is busy
    assert team.notes == ["worker a is lost: the node died; begun again: w0#4, w2#8"] or team.notes[
        0
    ].startswith("worker a is lost: the node died; begun again: w")
    assert len(team.notes) == 1
    assert team.happens((Ended, "w1")) == [("b", "w0")]
    assert team.happens((Ended, "w0")) == [("b", "w2")]
    team.happens((Ended, "w2"))
    assert [diary.heard for diary in diaries] == [[0], [0], [0]] and team.scheduler.is_done


def test_a_result_that_comes_twice_counts_once() -> None:
    team = Team(Worker("a"), Worker("b"))
    diary = team.add("w")
    team.happens()
    first = team.crew.tickets["w"]
    team.happens(Lost("a", "no answer"))
    team.happens((Ended, "w"), (Ended, "w"), Ended(first, DONE))
    team.add("w")  # again: it is done
    assert diary.heard == [0] and team.happens() == [] and team.scheduler.is_done


def test_what_machines_fail_at_is_tried_a_few_times_and_given_up_with_the_reason() -> None:
    team = Team(Worker("a"))
    diary = team.add("w")
    team.happens()
    for _ in range(ATTEMPTS - 1):
        assert team.happens((Failed, "w")) == [("a", "w")]
    assert team.happens((Failed, "w")) == [] and team.scheduler.is_done
    assert diary.heard == [f"begun {ATTEMPTS} times, the last time: a full disk"]
    assert team.notes == ["worker a failed at w: a full disk"] * ATTEMPTS


def test_what_one_worker_failed_at_goes_to_another_and_that_one_does_something_else() -> None:
    team = Team(Worker("a"), Worker("b"))
    for number in range(4):
        team.add(f"w{number}", 9 - number)
    assert team.happens() == [("a", "w0"), ("b", "w1")]
    assert team.happens((Failed, "w0")) == [("a", "w2")]
    assert team.happens((Ended, "w1")) == [("b", "w0")]


def test_a_worker_that_is_not_fit_gets_nothing_more_and_costs_no_attempt() -> None:
    team = Team(Worker("bad", at_once=2), Worker("good"))
    first, second = team.add("w0", 9, unfit="bad"), team.add("w1", 8, unfit="bad")
    third = team.add("w2", 7, unfit="bad")
    team.happens()
    team.happens((Ended, "w0"))
    assert list(team.scheduler.workers) == ["good"] and team.crew.cancelled == ["w2"]
    for key in ("w1", "w0", "w2"):
        team.happens((Ended, key))
    assert [diary.heard for diary in (first, second, third)] == [[0], [0], [0]]


def test_where_no_worker_is_fit_any_more_nobody_waits_for_one() -> None:
    team = Team(Worker("bad"))
    team.add("w0", unfit="bad")
    team.happens()
    with pytest.raises(ExecutorError, match="No worker is fit"):
        team.happens((Ended, "w0"))


def test_a_cancelled_work_is_ended_where_it_runs_and_says_nothing_more() -> None:
    team = Team(Worker("a"))
    running, waiting = team.add("w0", 9), team.add("w1", 1)
    team.happens()
    team.happens((Began, "w0"), (Said, "w0"))
    team.scheduler.cancel("w1")
    team.scheduler.cancel("w0")
    assert team.crew.cancelled == ["w0"] and team.scheduler.is_done
    team.happens((Ended, "w0"))
    assert running.heard == ["began", "hello"] and waiting.heard == []


def test_a_job_that_nothing_is_heard_of_is_begun_elsewhere() -> None:
    team = Team(Worker("a"), Worker("b"))
    diary = team.add("w")
    team.happens()
    team.happens((Began, "w"))
    team.now = 100.0  # its limit is over, but not for long
    assert team.happens() == []
    team.now = 1000.0
    team.happens()
    assert team.crew.cancelled == ["w"] and team.crew.started[-1][1] == "w"
    team.happens((Ended, "w"))
    assert diary.heard == ["began", 0]


def test_without_a_limit_nothing_is_overdue() -> None:
    team = Team(Worker("a"))
    team.scheduler.add(Work("w", lambda worker: Job(("w", worker.id), {}, {}), Listener()))
    team.happens()
    team.happens((Began, "w"))
    team.now = 1e9
    assert team.happens() == [] and team.crew.cancelled == []


def test_a_simulated_cluster_whose_workers_die_does_every_work_once_near_the_bound() -> None:
    found = simulate(Asked(600, 32, 20, 300.0, 0.02, 180.0, 0.6, 0.3, 2, 1, 0))
    # each death is a line, unless the worker was dead already; so is each failure of a machine
    assert 15 < found["notes"] < 60
    assert 1.0 <= found["over_bound"] < 1.15
