"""Stage 5: the authors of a run, asked together.

Authors propose directions, write for tasks, repair what failed, and reflect on what was measured.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from kmem.errors import OutOfTime
from kmem.host.parallel import in_parallel
from kmem.interfaces import GIVEN, Assignment, CompletionArchive, Direction, RunContext, Situation
from kmem.orchestrate.accuracy import plan_climbs
from kmem.orchestrate.lineage import base_of
from kmem.orchestrate.repair import plan_repairs
from kmem.orchestrate.strategies import Offer
from kmem.plugins import Registry, lookup
from kmem.records import Attempt, Candidate, Kernel, Lesson, Move, Recalled, Run, Strategy, Task
from kmem.run.stages.batches import Guess
from kmem.run.state.clock import Clock, PunctualProvider
from kmem.run.state.history import History
from kmem.run.state.progress import Announce
from kmem.skills import Skill

Answer = TypeVar("Answer", Direction, Candidate, Lesson)

#: How long guesses are waited for before the first kernel is written, in seconds: of a network of a
#: thousand nodes each rewritten form takes seconds to guess at, and there are ten.
FORESEEN_S = 5.0


class Authors:
    """The authors of one run, in the order in which they seed."""

    def __init__(
        self,
        run: Run,
        registry: Registry,
        archive: CompletionArchive,
        clock: Clock,
        history: History,
        announce: Announce,
    ) -> None:
        """Begin the run's authors; each may raise what keeps it from working at all.

        Raises NotRegistered: for an author that no plugin registered.
        """
        providers = {
            name: PunctualProvider(provider, clock) for name, provider in registry.providers.items()
        }
        self._context = context = RunContext(
            run, providers, archive, lambda text: announce("explore", text)
        )
        self._history = history
        self._authors = {
            name: lookup(registry.authors, name, "author").begin(context) for name in run.authors
        }

    @property
    def repairs(self) -> Mapping[str, int]:
        """By author, how many repairs in a chain it is granted."""
        return {name: author.repairs for name, author in self._authors.items()}

    @property
    def _menders(self) -> Mapping[str, str]:
        """By author, who mends what it wrote."""
        return {name: author.mended_by or name for name, author in self._authors.items()}

    @property
    def spent(self) -> str:
        """Why language models are asked nothing more; empty while they are asked.

        Their budget does not cover the next question then; authors that ask no model go on.
        """
        return next((author.spent for author in self._authors.values() if author.spent), "")

    @property
    def complaint(self) -> str:
        """What to tell the user of a language model that gave no usable answer, with the remedy."""
        return next((author.complaint for author in self._authors.values() if author.complaint), "")

    @property
    def unanswered(self) -> int:
        """Questions to language models so far without an answer that could be used."""
        return sum(author.unanswered for author in self._authors.values())

    @property
    def rewrite(self) -> bool:
        """Whether one of the authors writes a kernel again from remembered choices."""
        return "recipes" in self._authors

    def used(self, skills: Sequence[Skill], situation: Situation) -> list[Skill]:
        """Those of the skills that an author of this run could act on; all if it is none."""
        authors = self._authors.values()
        return [
            skill for skill in skills if any(author.uses(skill, situation) for author in authors)
        ] or list(skills)

    def propose(self, situations: Mapping[str | None, Situation]) -> list[Offer]:
        """What could be done in each situation, most promising first.

        Without a parent kernel the given one seeds, and the first other author that has an idea;
        where kernels are to be independent, every author does. With a parent kernel the author
        named last goes first: models go on from what recipes seeded.
        """
        offers = []
        for kernel_hash, situation in situations.items():
            directions: list[Direction] = []
            if situation.parent is not None:
                for author in reversed(self._authors.values()):
                    directions += self._ask(author.propose, situation)
            else:
                for author in self._authors.values():
                    has_ideas = any(each.author != GIVEN for each in directions)
                    if not has_ideas or self._context.run.strategy is Strategy.BEST_OF_N:
                        directions += self._ask(author.propose, situation)
            claimed = tuple(_with_claims(direction, situation.skills) for direction in directions)
            offers.append(Offer(self._history.find(kernel_hash), claimed))
        return offers

    def write(
        self,
        tasks: Sequence[Task],
        situations: Mapping[str | None, Situation],
        recalled: Sequence[Recalled] = (),
    ) -> list[Candidate]:
        """Candidates for all tasks, in order; a remembered model's kernel needs no author.

        On KeyboardInterrupt authors that wait for a model give up.
        """
        return self.write_all(tasks, self.writer(situations, recalled))

    def write_all(
        self, tasks: Sequence[Task], write_one: Callable[[Task], list[Candidate]]
    ) -> list[Candidate]:
        """What a `writer` writes for all tasks, as `write` does."""
        return [
            candidate
            for candidates in in_parallel(write_one, tasks, self._context.give_up)
            for candidate in candidates
        ]

    def writer(
        self,
        situations: Mapping[str | None, Situation],
        recalled: Sequence[Recalled] = (),
    ) -> Callable[[Task], list[Candidate]]:
        """Writes for one task; knows of the run what is known by now, whenever it is asked."""
        about = self._reader(situations)

        def write_one(task: Task) -> list[Candidate]:
            if (remembered := self._recall(task, recalled)) is not None:
                return [remembered]
            return self._ask(self._authors[task.author].write, about(task))

        return write_one

    def foresee(
        self,
        tasks: Sequence[Task],
        situations: Mapping[str | None, Situation],
        recalled: Sequence[Recalled] = (),
    ) -> list[Guess]:
        """The tasks that have a first kernel, and what it is predicted to take if that is known.

        Nothing is written. Once that has taken long, no further author is asked: the first tasks
        are the likeliest.
        """
        about, ends = self._reader(situations), time.monotonic() + FORESEEN_S
        guesses: list[Guess] = []
        for task in tasks:
            if self._recall(task, recalled) is not None:
                guesses.append(Guess(task, None))
            elif guesses and time.monotonic() > ends:
                continue
            elif (time_ms := self._authors[task.author].foresee(about(task))) is not None:
                guesses.append(Guess(task, time_ms))
        return guesses

    def _recall(self, task: Task, recalled: Sequence[Recalled]) -> Candidate | None:
        """The remembered text of a task that no author writes anew."""
        return None if task.choices and self.rewrite else _remembered(task, recalled)

    def _reader(self, situations: Mapping[str | None, Situation]) -> Callable[[Task], Assignment]:
        """Makes a task's assignment, of what is known of the run by now."""
        history, lessons = tuple(self._history.attempts), tuple(self._history.lessons)

        def assign(task: Task) -> Assignment:
            situation = situations[base_of(task, history)]
            parent = self._history.find(task.parent)
            known = {field.name: getattr(situation, field.name) for field in fields(Situation)}
            known |= {
                "parent": parent.candidate.kernel if parent else None,
                "history": history,
                "lessons": lessons,
            }
            return Assignment(**known, task=task)

        return assign

    def write_repairs(
        self, measured: Sequence[Attempt], situations: Mapping[str | None, Situation]
    ) -> list[Candidate]:
        """Candidates in place of those that failed, by authors that repair, and from higher rungs.

        None if every candidate passed, or the chains of repairs and the ladders are used up.
        """
        history = self._history.attempts
        tasks = plan_repairs(measured, history, self.repairs, self._menders)
        if tasks:
            self._context.announce(f"repairing {len(tasks)} candidates")
        if self.rewrite:
            about = next(iter(situations.values()))
            climbs = plan_climbs(measured, history, about.traced, about.recipes, about.rewrites)
            if climbs:
                self._context.announce(f"more accurate: {climbs[0].reason}")
            tasks += climbs
        return self.write(tasks, situations) if tasks else []

    def reflect(self, situation: Situation, attempts: Sequence[Attempt]) -> list[Lesson]:
        """What each author makes of its own attempts, which answered this situation."""
        lessons: list[Lesson] = []
        for name, author in self._authors.items():
            own = [attempt for attempt in attempts if attempt.candidate.author == name]
            if own:
                lessons += self._ask(author.reflect, situation, own)
        return lessons

    def _ask(self, question: Callable[..., list[Answer]], *about: object) -> list[Answer]:
        """An author's answer; nothing if the run's minutes ended meanwhile.

        What other authors wrote until then is still judged.
        """
        try:
            return question(*about)
        except OutOfTime:
            return []


def _with_claims(direction: Direction, skills: Mapping[str, Skill]) -> Direction:
    """The direction with the claims of its skill, if it is a fix and its author makes none."""
    if direction.claims or direction.move is not Move.FIX or direction.skill not in skills:
        return direction
    return replace(direction, claims=skills[direction.skill].claims)


def _remembered(task: Task, recalled: Sequence[Recalled]) -> Candidate | None:
    """The recalled kernel of a task, if memory kept its text and it is for this very graph.

    A kernel that a recipe wrote is written anew where an author can: another module with the same
    graph may have another constructor.
    """
    if task.move is not Move.RECALL:
        return None
    kept = [
        hit
        for hit in recalled
        if hit.exact and hit.source is not None and hit.outcome.choices == task.choices
    ]
    if not kept:
        return None
    # Kernels of language models have no choices to be told apart by: the first one verified is the
    # one that was planned.
    hit = min(kept, key=lambda hit: hit.outcome.ratio is None)
    kernel = Kernel(
        hit.source,
        choices=hit.outcome.choices,
        flags=hit.outcome.flags,
        small_constants=hit.small_constants,
    )
    return Candidate(kernel, task, "memory")
