"""The suite of `Author`: both built-in authors pass it, and each way to break it is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from module_problems import recipe
from scripted_models import (
    EDITED,
    ScriptedProvider,
    make_situation,
    reflection_answer,
    repair_answer,
    seed_answer,
)

from kmem.devices import named_target
from kmem.explore.models.author import LlmAuthor
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment, Author, Direction, RunContext, Situation
from kmem.problem.source.load import load_problem
from kmem.records import Attempt, Candidate, Kernel, Lesson, ModelChoice, Move
from kmem.testing import check_author, open_context, open_situation

H200 = named_target("h200")
SWISH = load_problem(Path(__file__).parent.parent / "problems" / "swish")
CHAIN = {"fuse-pointwise-chain": recipe("fuse-pointwise-chain")}
MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def test_the_recipe_author_keeps_the_contract() -> None:
    situation = open_situation(SWISH, H200, recipes=CHAIN)
    candidates = check_author(RecipeAuthor(), situation, open_context(situation, "recipes"))
    assert len(candidates) == 2


def test_the_author_that_asks_models_keeps_the_contract() -> None:
    situation = make_situation()
    provider = ScriptedProvider(
        generator=[seed_answer(["softmax"])] * 3,
        repairer=[repair_answer("NameError: name 'y' is not defined", EDITED)],
        reflector=[reflection_answer()],
    )
    models = (ModelChoice("any", "scripted", "scripted-1"),)
    context = open_context(situation, "llm", providers=[provider], models=models)
    candidates = check_author(LlmAuthor(), situation, context)
    assert len(provider.asked("repairer")) == 1 and candidates


class Honest(Author):
    """Keeps the contract; what breaks it derives from this."""

    name = "honest"

    def propose(self, situation: Situation) -> list[Direction]:
        return [Direction(self.name, Move.SEED, skill, "why") for skill in situation.recipes]

    def write(self, assignment: Assignment) -> list[Candidate]:
        task = assignment.task
        return [Candidate(Kernel(MODULE, parent=task.parent), task, self.name)]


class Renamed(Honest):
    def begin(self, context: RunContext) -> Author:
        author = Honest()
        author.name = "another"
        return author


class SpeaksForOthers(Honest):
    def propose(self, situation: Situation) -> list[Direction]:
        return [replace(direction, author="recipes") for direction in super().propose(situation)]


class InventsSkills(Honest):
    def propose(self, situation: Situation) -> list[Direction]:
        return [Direction(self.name, Move.SEED, "no-such-skill", "why")]


class FixesNothing(Honest):
    def propose(self, situation: Situation) -> list[Direction]:
        return [replace(direction, move=Move.FIX) for direction in super().propose(situation)]


class AnswersNone(Honest):
    def propose(self, situation: Situation) -> list[Direction]:
        return super().propose(situation) or None


class Raises(Honest):
    def write(self, assignment: Assignment) -> list[Candidate]:
        raise KeyError("graph")


class WritesTooMany(Honest):
    def write(self, assignment: Assignment) -> list[Candidate]:
        return super().write(assignment) * (assignment.task.samples + 1)


class ForgetsTheTask(Honest):
    def write(self, assignment: Assignment) -> list[Candidate]:
        (candidate,) = super().write(assignment)
        return [replace(candidate, task=replace(candidate.task, samples=1))]


class WritesAPiece(Honest):
    def write(self, assignment: Assignment) -> list[Candidate]:
        (candidate,) = super().write(assignment)
        return [replace(candidate, kernel=Kernel("y = 1\n"))]


class WritesProse(Honest):
    def write(self, assignment: Assignment) -> list[Candidate]:
        (candidate,) = super().write(assignment)
        return [replace(candidate, kernel=Kernel("Here is the kernel you asked for:"))]


class RepairsAnOrphan(Honest):
    repairs = 1

    def write(self, assignment: Assignment) -> list[Candidate]:
        return [Candidate(Kernel(MODULE), assignment.task, self.name)]


class ReflectsOnOthers(Honest):
    def reflect(self, situation: Situation, attempts: list[Attempt]) -> list[Lesson]:
        return [Lesson(0, "no kernel of this round", "unaided", "it was slow")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Renamed, "keeps its name"),
        (SpeaksForOthers, "names its author 'honest', not 'recipes'"),
        (InventsSkills, "rests on a skill of the situation"),
        (FixesNothing, "without a parent every direction is a seed"),
        (AnswersNone, r"propose\(\) returns a list, not None"),
        (Raises, "write raises only KmemError, not KeyError"),
        (WritesTooMany, "at most task.samples = 2 candidates, not 3"),
        (ForgetsTheTask, "carries its task"),
        (WritesAPiece, "defines ModelNew"),
        (WritesProse, "a whole module file, and this is none"),
        (RepairsAnOrphan, "a candidate's parent is that of its task"),
        (ReflectsOnOthers, "a lesson is about a kernel of the round"),
    ],
)
def test_an_author_that_breaks_the_contract_is_told_how(
    make: Callable[[], Author], message: str
) -> None:
    situation = open_situation(SWISH, H200, recipes=CHAIN)
    context = open_context(situation, "honest")
    check_author(Honest(), situation, context)
    with pytest.raises(AssertionError, match=message):
        check_author(make(), situation, context)
