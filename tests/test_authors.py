"""The authors of a run: who seeds, who goes on, whose claims stand; and the run's clock."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_evaluator import make_run, small_registry
from scripted_models import DictArchive, make_situation

from kmem.errors import AnswerLost, NotRegistered, OutOfTime, ProviderError
from kmem.interfaces import (
    Assignment,
    Author,
    Completion,
    CompletionKey,
    CompletionRecord,
    Direction,
    Message,
    ModelRequest,
    Provider,
    Situation,
)
from kmem.plugins import Registry
from kmem.records import Candidate, Claim, Kernel, Lesson, Move, Strategy, Task
from kmem.run.directory import RunDirectory
from kmem.run.stages.authors import Authors
from kmem.run.state.clock import Clock, PunctualProvider
from kmem.run.state.conversations import FiledArchive
from kmem.run.state.history import History
from kmem.run.state.resume import EarlierWork

PARENT = Kernel("# parent")
OWN = (Claim("waves", ">=", 3.0),)


class FakeAuthor(Author):
    """Proposes what it is told, and writes one kernel a task, the first task last."""

    def __init__(self, name: str, *directions: Direction) -> None:
        self.name, self._directions = name, list(directions)

    def propose(self, situation: Situation) -> list[Direction]:
        return self._directions

    def write(self, assignment: Assignment) -> list[Candidate]:
        time.sleep(0.05 if assignment.task.skill == "first" else 0.0)
        if assignment.task.skill == "too late":
            raise OutOfTime("the minutes are over")
        if assignment.task.skill == "fails":
            raise ProviderError(f"no answer for {assignment.task.instruction}")
        return [Candidate(Kernel(f"# {assignment.task.skill}"), assignment.task, self.name)]

    def foresee(self, assignment: Assignment) -> float | None:
        time.sleep(0.05)
        return 1.0

    def reflect(self, situation: Situation, attempts: list) -> list[Lesson]:
        return []


def begin_authors(
    home: Path, names: tuple[str, ...], registry: Registry, strategy: Strategy = Strategy.BANDIT
) -> Authors:
    """The authors of a run that has tried nothing yet and has nothing to tell."""
    run = replace(make_run(home, base_url="http://nowhere", strategy=strategy), authors=names)
    history = History(make_situation().traced, EarlierWork({}, {}, {}))

    def announce(stage: str, text: str) -> None:
        raise AssertionError(f"nothing here is worth telling: {text}")

    return Authors(run, registry, DictArchive(), Clock(lambda: 100.0), history, announce)


def make_authors(home: Path, *authors: FakeAuthor, strategy: Strategy = Strategy.BANDIT) -> Authors:
    table = {author.name: author for author in authors}
    return begin_authors(home, tuple(table), replace(small_registry(), authors=table), strategy)


def fix(author: str, skill: str, claims: tuple[Claim, ...] = ()) -> Direction:
    return Direction(author, Move.FIX, skill, "why", claims)


def skills_proposed(authors: Authors, situation: Situation) -> list[str]:
    (offer,) = authors.propose({situation.parent.hash if situation.parent else None: situation})
    return [direction.skill for direction in offer.directions]


def test_recipes_seed_and_models_go_on(tmp_path: Path) -> None:
    recipes = FakeAuthor("recipes", fix("recipes", "tile"))
    models = FakeAuthor("llm", fix("llm", "idea"))
    authors = make_authors(tmp_path, recipes, models)
    assert skills_proposed(authors, make_situation()) == ["tile"]
    assert skills_proposed(authors, make_situation(parent=PARENT)) == ["idea", "tile"]
    without = make_authors(tmp_path, FakeAuthor("recipes"), models)
    assert skills_proposed(without, make_situation()) == ["idea"], (
        "where no recipe matches, models seed"
    )
    control = make_authors(tmp_path, recipes, models, strategy=Strategy.BEST_OF_N)
    assert skills_proposed(control, make_situation()) == ["tile", "idea"]


def test_the_claims_of_a_skill_stand_where_the_author_makes_none(tmp_path: Path) -> None:
    seed = Direction("llm", Move.TUNE, "online-softmax", "why")
    author = FakeAuthor(
        "llm",
        fix("llm", "online-softmax"),
        fix("llm", "online-softmax", OWN),
        fix("llm", "unaided"),
        seed,
    )
    authors = make_authors(tmp_path, author)
    situation = make_situation(parent=PARENT, offered=["online-softmax"])
    (offer,) = authors.propose({PARENT.hash: situation})
    stated = [direction.claims for direction in offer.directions]
    assert stated == [situation.skills["online-softmax"].claims, OWN, (), ()]
    assert stated[0]


def task(skill: str, instruction: str = "") -> Task:
    return Task(Move.SEED, skill, None, 1, "why", author="llm", instruction=instruction)


class MeetingAuthor(FakeAuthor):
    """Writes nothing until `parties` tasks are being written at once."""

    def __init__(self, name: str, parties: int) -> None:
        super().__init__(name)
        # the barrier breaks after 30 s, and the test fails, if tasks are written one by one
        self._meeting = threading.Barrier(parties, timeout=30.0)

    def write(self, assignment: Assignment) -> list[Candidate]:
        self._meeting.wait()
        return super().write(assignment)


def test_tasks_are_written_side_by_side_and_come_back_in_their_order(tmp_path: Path) -> None:
    authors = make_authors(tmp_path, MeetingAuthor("llm", parties=3))
    written = authors.write(
        [task("first"), task("second"), task("third")], {None: make_situation()}
    )
    assert [candidate.task.skill for candidate in written] == ["first", "second", "third"]


def test_guesses_that_take_long_end_with_the_likeliest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authors = make_authors(tmp_path, FakeAuthor("recipes"))
    tasks = [Task(Move.SEED, f"skill {number}", None, 1, "recipes") for number in range(4)]
    situations = {None: make_situation()}
    assert [guess.task for guess in authors.foresee(tasks, situations)] == tasks
    monkeypatch.setattr("kmem.run.stages.authors.FORESEEN_S", 0.0)
    assert [guess.task for guess in authors.foresee(tasks, situations)] == tasks[:1]


def test_the_first_error_in_the_order_of_tasks_ends_the_run(tmp_path: Path) -> None:
    authors = make_authors(tmp_path, FakeAuthor("llm"))
    with pytest.raises(ProviderError, match="no answer for one"):
        authors.write(
            [task("first"), task("fails", "one"), task("fails", "two")], {None: make_situation()}
        )


def test_what_others_wrote_before_the_minutes_ended_is_kept(tmp_path: Path) -> None:
    authors = make_authors(tmp_path, FakeAuthor("llm"))
    written = authors.write(
        [task("first"), task("too late"), task("second")], {None: make_situation()}
    )
    assert [candidate.task.skill for candidate in written] == ["first", "second"]


def test_an_author_nobody_registered_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotRegistered, match="No author named 'nobody'"):
        begin_authors(tmp_path, ("nobody",), small_registry())


class SlowProvider(Provider):
    """Answers with the time it was given; fails if it is told to."""

    name = "slow"

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure

    def complete(self, request: ModelRequest) -> Completion:
        if self._failure is not None:
            raise self._failure
        return Completion(f"{request.timeout_s:g}", request.model, 1, 1)

    def models(self, base_url: str | None = None) -> list[str]:
        return ["one"]


def test_no_call_outlasts_the_minutes_of_the_run() -> None:
    request = ModelRequest("m", (Message("user", "?"),), 10, timeout_s=600.0)
    assert PunctualProvider(SlowProvider(), Clock(lambda: 1000.0)).complete(request).text == "600"
    assert PunctualProvider(SlowProvider(), Clock(lambda: 7.0)).complete(request).text == "7"
    with pytest.raises(OutOfTime, match="minutes of this run are over"):
        PunctualProvider(SlowProvider(), Clock(lambda: 0.0)).complete(request)


def test_a_failure_after_the_minutes_is_theirs_and_before_them_the_servers_own() -> None:
    request = ModelRequest("m", (Message("user", "?"),), 10)

    def fail(failure: Exception, *seconds_left: float) -> None:
        times = iter(seconds_left)
        PunctualProvider(SlowProvider(failure), Clock(lambda: next(times))).complete(request)

    with pytest.raises(OutOfTime, match="were over before m answered: wait a minute"):
        fail(ProviderError("wait a minute"), 3.0, -1.0)
    with pytest.raises(ProviderError, match="^wait a minute$"):
        fail(ProviderError("wait a minute"), 3.0, 1.0)
    with pytest.raises(AnswerLost, match="^gone$"):  # which may have been charged
        fail(AnswerLost("gone"), 3.0, -1.0)


def test_a_clock_that_has_run_out_stays_so_and_knows_how_often_it_was_looked_at_in_time() -> None:
    times = iter([2.0, 1.0, 0.0, 5.0])
    clock = Clock(lambda: next(times))
    assert [clock.is_over(), clock.is_over()] == [False, False]
    assert clock.looks_in_time is None
    assert [clock.is_over(), clock.is_over()] == [True, True]
    assert clock.looks_in_time == 2


def test_conversations_are_filed_as_text_beside_the_archive(tmp_path: Path) -> None:
    inner = DictArchive()
    archive = FiledArchive(inner, RunDirectory(tmp_path))
    request = ModelRequest("m", (Message("system", "be brief"), Message("user", "what now?")), 10)
    record = CompletionRecord(
        CompletionKey("planner", 2, "abc", 1), request, Completion("nothing", "m", 5, 2), 0.5, 1.0
    )
    archive.keep(record)
    assert archive.find(record.key) == record
    assert list(archive.records()) == [record]
    text = (tmp_path / "conversations" / "02-planner-abc-1.md").read_text()
    for expected in (
        "planner of round 2 about abc, turn 1, asked of m",
        "be brief",
        "what now?",
        "nothing",
        "5 tokens read, 2 written, 0.5000 USD",
    ):
        assert expected in text
