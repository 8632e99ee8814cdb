"""The suite of `kmem.interfaces.Author`.

Covered: every sentence of the contract about what an author returns and raises, with `write` called
from several threads where there are several directions. Not covered: whether the author runs or
measures what it writes, and whether what it writes is correct or fast.
"""

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial

from kmem.errors import KmemError
from kmem.host.parallel import in_parallel
from kmem.host.syntax import parse_python
from kmem.interfaces import (
    KNOBS,
    UNAIDED,
    Assignment,
    Author,
    Direction,
    RunContext,
    Situation,
)
from kmem.records import (
    Attempt,
    Candidate,
    Lesson,
    Measurement,
    Move,
    Status,
    Task,
    Timing,
)
from kmem.testing.wording import check_line, check_name

#: Directions that the suite has written; language models are asked once for each.
_MOST_DIRECTIONS = 3
_SAMPLES = 2


def check_author(author: Author, situation: Situation, context: RunContext) -> list[Candidate]:
    """Hold an author to its contract in the first round of a run.

    Args:
        situation: one in which the author has ideas: see `open_situation`. With two and more,
            `write` is called from several threads at once.
        context: the run: see `open_context`. Its providers must give answers that can be used.
    Returns: What the author wrote, for checks of your own.
    Raises:
        AssertionError: naming what the contract says and the author does otherwise.
    """
    check_name(author.name)
    assert type(author.repairs) is int and author.repairs >= 0, (
        f"repairs is how often a candidate may be mended, not {author.repairs!r}"
    )
    with _kmem_errors_only("begin"):
        begun = author.begin(context)
    assert isinstance(begun, Author), f"begin() gives an author, not {begun!r}"
    assert begun.name == author.name, f"the author of a run keeps its name: {begun.name!r}"
    directions = _propose(begun, situation)
    assert directions, "the suite needs a situation in which the author has an idea"
    tasks = [_task(direction, situation) for direction in directions[:_MOST_DIRECTIONS]]
    written = in_parallel(partial(_write, begun, situation), tasks, context.give_up)
    candidates = [candidate for found in written for candidate in found]
    assert candidates, "the suite needs a situation in which the author writes something"
    _check_idleness(begun, situation)
    if begun.repairs:
        candidates += _repair(begun, situation, candidates[0])
    _check_reflection(begun, situation, candidates)
    for what, text in (("complaint", begun.complaint), ("spent", begun.spent)):
        assert isinstance(text, str), f"{what} is text, empty if there is nothing, not {text!r}"
    return candidates


@contextmanager
def _kmem_errors_only(what: str) -> Iterator[None]:
    try:
        yield
    except (KmemError, AssertionError):
        raise
    except Exception as ex:
        raise AssertionError(f"{what} raises only KmemError, not {type(ex).__name__}: {ex}") from ex


def _propose(author: Author, situation: Situation) -> list[Direction]:
    with _kmem_errors_only("propose"):
        directions = author.propose(situation)
    assert isinstance(directions, list), f"propose() returns a list, not {directions!r}"
    known = {UNAIDED, KNOBS, *situation.recipes, *situation.skills, *situation.writable}
    for direction in directions:
        assert isinstance(direction, Direction), f"propose() lists Directions, not {direction!r}"
        assert direction.author == author.name, (
            f"a direction names its author {author.name!r}, not {direction.author!r}"
        )
        assert direction.skill in known, (
            f"a direction rests on a skill of the situation or on {UNAIDED!r}: {direction.skill!r}"
        )
        assert situation.parent or direction.move is Move.SEED, (
            f"without a parent every direction is a seed, not {direction.move}"
        )
        check_line(direction.reason, "the reason of a direction")
    return directions


def _task(direction: Direction, situation: Situation) -> Task:
    return Task(
        direction.move,
        direction.skill,
        situation.parent.hash if situation.parent else None,
        _SAMPLES,
        direction.reason,
        author=direction.author,
        claims=direction.claims,
        instruction=direction.instruction,
    )


def _write(author: Author, situation: Situation, task: Task) -> list[Candidate]:
    known = {field.name: getattr(situation, field.name) for field in fields(Situation)}
    with _kmem_errors_only("write"):
        candidates = author.write(Assignment(**known, task=task))
    assert isinstance(candidates, list), f"write() returns a list, not {candidates!r}"
    assert len(candidates) <= task.samples, (
        f"write() returns at most task.samples = {task.samples} candidates, not {len(candidates)}"
    )
    for candidate in candidates:
        assert isinstance(candidate, Candidate), f"write() lists Candidates, not {candidate!r}"
        assert candidate.task == task, f"a candidate carries its task, not {candidate.task}"
        assert candidate.author == author.name, (
            f"a candidate names its author {author.name!r}, not {candidate.author!r}"
        )
        assert candidate.kernel.parent == task.parent, (
            f"a candidate's parent is that of its task, {task.parent}, not "
            f"{candidate.kernel.parent}"
        )
        _check_module(candidate.kernel.source)
    return candidates


def _check_module(source: str) -> None:
    try:
        statements = parse_python(source).body
    except SyntaxError as ex:
        raise AssertionError(f"a candidate is a whole module file, and this is none: {ex}") from ex
    classes = {node.name for node in statements if isinstance(node, ast.ClassDef)}
    assert "ModelNew" in classes, f"a candidate's file defines ModelNew; it has {sorted(classes)}"


def _check_idleness(author: Author, situation: Situation) -> None:
    """An author to whom nothing is offered may have no idea, and must say so by an empty list."""
    _propose(author, replace(situation, recipes={}, writable={}, skills={}, prescriptions=()))


def _repair(author: Author, situation: Situation, candidate: Candidate) -> list[Candidate]:
    """What the author makes of a candidate of its own that failed."""
    failed = Measurement(Status.BUILD_FAILED, None, False, log="NameError: name 'y' is not defined")
    attempt = Attempt(situation.round, candidate, failed, None)
    later = replace(
        situation,
        round=situation.round + 1,
        parent=candidate.kernel,
        history=(*situation.history, attempt),
    )
    task = replace(candidate.task, move=Move.REPAIR, parent=candidate.kernel.hash)
    return _write(author, later, task)


def _check_reflection(
    author: Author, situation: Situation, candidates: Sequence[Candidate]
) -> None:
    attempts = [
        Attempt(situation.round, candidate, _passed(1.0 + place), None)
        for place, candidate in enumerate(candidates)
    ]
    with _kmem_errors_only("reflect"):
        lessons = author.reflect(replace(situation, history=tuple(attempts)), attempts)
    assert isinstance(lessons, list), f"reflect() returns a list, not {lessons!r}"
    known = {candidate.kernel.hash for candidate in candidates}
    for lesson in lessons:
        assert isinstance(lesson, Lesson), f"reflect() lists Lessons, not {lesson!r}"
        assert lesson.kernel in known, f"a lesson is about a kernel of the round: {lesson.kernel}"
        check_line(lesson.text, "the text of a lesson")


def _passed(latency_ms: float) -> Measurement:
    return Measurement(Status.PASSED, Timing(latency_ms, latency_ms, latency_ms, 10), False)
