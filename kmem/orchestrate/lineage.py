"""What an attempt answered: its arm (who tried what), and the task and base behind its repairs."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from kmem.interfaces import UNAIDED
from kmem.records import Attempt, Move, Task

#: Author, skill and, of an idea without a skill, its instruction: what a strategy gives samples to
#: and a veto speaks of.
Arm: TypeAlias = tuple[str, str, str]
#: Moves that mend the failed kernel that is their task's parent.
MENDS = (Move.REPAIR, Move.CLIMB)


class Idea(Protocol):
    """A Direction or a Task."""

    @property
    def author(self) -> str: ...
    @property
    def skill(self) -> str: ...
    @property
    def instruction(self) -> str: ...


def arm_of(idea: Idea) -> Arm:
    """Which arm a direction or task belongs to."""
    return (
        idea.author,
        idea.skill,
        " ".join(idea.instruction.split()) if idea.skill == UNAIDED else "",
    )


def origin(task: Task, history: Sequence[Attempt]) -> Task:
    """The task whose failed candidate a chain of repairs goes back to.

    It is the task itself if it repairs nothing.
    """
    while task.move in MENDS:
        task = repaired_attempt(task, history).candidate.task
    return task


def repaired_attempt(task: Task, history: Sequence[Attempt]) -> Attempt:
    """The failed attempt a repair task is about: the last one of its parent.

    Raises:
        StopIteration: if history lacks it.
    """
    return next(
        attempt for attempt in reversed(history) if attempt.candidate.kernel.hash == task.parent
    )


def base_of(task: Task, history: Sequence[Attempt]) -> str | None:
    """Hash of the sound kernel a task started from; None for one that started from nothing."""
    return origin(task, history).parent


def arms_within(attempt: Attempt, history: Sequence[Attempt]) -> set[Arm]:
    """The arms that led to a kernel, from the first one on."""
    found = set()
    step: Attempt | None = attempt
    while step is not None:
        task = step.candidate.task
        found.add(arm_of(task))
        base = base_of(task, history)
        step = next((earlier for earlier in history if earlier.candidate.kernel.hash == base), None)
    return found


def chain_length(task: Task, history: Sequence[Attempt]) -> int:
    """How many repairs in a row led to this task, itself included."""
    length = 0
    while task.move in MENDS:
        length += 1
        task = repaired_attempt(task, history).candidate.task
    return length


def kind(attempt: Attempt) -> tuple[tuple[str, str, str], ...]:
    """What an attempt chose by name rather than by number: recipes and their knobs of kind.

    Without a recipe it is the author and the skill.
    """
    choices = attempt.candidate.kernel.choices
    if not choices:
        return ((attempt.candidate.author, attempt.candidate.task.skill, ""),)
    named = [(choice.recipe, "", "") for choice in choices]
    return tuple(
        named
        + [
            (choice.recipe, name, value)
            for choice in choices
            for name, value in choice.knobs
            if isinstance(value, str)
        ]
    )
