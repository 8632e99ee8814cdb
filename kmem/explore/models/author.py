"""The author that asks language models: it proposes, writes first kernels, edits and repairs.

Which role answers what: without a parent `propose` names granularities and asks nobody; with one it
asks the diagnoser, then the planner. `write` asks the generator (SEED), the optimiser (FIX) or the
repairer (REPAIR), and moves knobs without asking anyone (TUNE, and the further samples of any
answer). `reflect` asks the reflector.

An answer that stays unusable after its re-ask yields no candidate, for there is no code to try: it
is announced, and kept word for word with the run's conversations. An answer that was lost
on the way as often as it may be asked for is unusable, too: that concerns one question, not the
run. A diagnosis or plan that stays unusable yields no direction. A spent budget ends whatever needs
a model, and is announced once.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from kmem.codegen.module.constants import keeps_constants
from kmem.errors import BudgetExhausted, OutOfTime
from kmem.explore.models.answers.reading import (
    WrittenFile,
    read_diagnoser,
    read_generator,
    read_optimiser,
    read_planner,
    read_reflector,
    read_repairer,
)
from kmem.explore.models.answers.schema import ALGEBRAIC, DiagnoserAnswer, short_hash
from kmem.explore.models.conversation import REASK_TOKENS, Conversation, Question
from kmem.explore.models.granularity import seeds
from kmem.explore.models.knobs import knob_variants
from kmem.explore.models.prompts import briefs
from kmem.explore.models.prompts.message import PromptTooLong, Section, fit_prompt
from kmem.explore.models.prompts.sections import own_kernel_section
from kmem.explore.models.prompts.system import system_prompt
from kmem.explore.models.roles import (
    DIAGNOSER,
    GENERATOR,
    OPTIMISER,
    PLANNER,
    REFLECTOR,
    REPAIRER,
    Role,
)
from kmem.explore.models.selection import (
    allowed_skills,
    is_worth_repairing,
    telling_attempts,
    untried_variants,
)
from kmem.explore.models.starting import StartingPoint
from kmem.host.parallel import in_parallel
from kmem.interfaces import KNOBS, UNAIDED, Assignment, Author, Direction, RunContext, Situation
from kmem.records import (
    Attempt,
    Candidate,
    Kernel,
    Lesson,
    Move,
    Strategy,
    Task,
    content_hash,
)

AnswerT = TypeVar("AnswerT")


class LlmAuthor(Author):
    """Writes kernels with language models.

    It works only within a run: `begin` gives the author that has the run's models, budget and
    archive.
    """

    name = "llm"
    repairs = 3

    def begin(self, context: RunContext) -> "LlmRunAuthor":
        """The author of one run.

        Raises:
            ProviderError: if a role has no model.
            NotRegistered: if no plugin registered a model's provider.
            PriceError: if a price is needed and not known.
        """
        return LlmRunAuthor(context)

    def propose(self, situation: Situation) -> list[Direction]:
        raise RuntimeError("an author that has not begun a run has no model to ask")

    def write(self, assignment: Assignment) -> list[Candidate]:
        raise RuntimeError("an author that has not begun a run has no model to ask")


class LlmRunAuthor(LlmAuthor):
    """The author of one run.

    It keeps nothing that the run's archive and history do not, so that a resumed run goes the same
    way.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._conversation = Conversation(context)
        self._lock = threading.Lock()
        self._start = StartingPoint()

    @property
    def complaint(self) -> str:
        """See `Author`."""
        return self._conversation.complaint

    @property
    def unanswered(self) -> int:
        """See `Author`."""
        return self._conversation.unanswered

    def propose(self, situation: Situation) -> list[Direction]:
        """Seeds of several sizes, or from a parent the planner's directions and its knobs."""
        if situation.parent is None:
            if self.spent:
                return []
            return [
                Direction(self.name, Move.SEED, seed.skill, seed.size, instruction=seed.instruction)
                for seed in seeds(situation)
            ]
        directions = [] if self.spent else self._plan(situation, situation.parent)
        if next(untried_variants(situation), None) is not None:
            directions.append(
                Direction(
                    self.name, Move.TUNE, KNOBS, "settings of its knobs that were not measured yet"
                )
            )
        return directions

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Candidates of one answer: the model's own settings first, then others of its knobs."""
        task = assignment.task
        if task.move is Move.TUNE:
            found = list(islice(untried_variants(assignment), task.samples))
            return [
                Candidate(replace(kernel, parent=task.parent), task, self.name) for kernel in found
            ]
        if task.move is Move.SEED:
            return self._write_seeds(assignment)
        if task.move is Move.FIX and assignment.parent is not None:
            return self._write_fix(assignment, assignment.parent)
        if task.move is Move.REPAIR:
            return self._write_repair(assignment)
        return []  # RECALL: no model writes a remembered kernel

    def reflect(self, situation: Situation, attempts: Sequence[Attempt]) -> list[Lesson]:
        """The reflector's lessons about attempts that did more than move knobs.

        Nothing is asked about a round that only moved knobs, for there arithmetic says it all.
        """
        telling = telling_attempts(attempts)
        if not telling or self.spent:
            return []
        slot = _slot(situation.parent.hash if situation.parent else "")
        answer = self._ask(
            REFLECTOR,
            situation,
            slot,
            briefs.reflector_brief(situation, telling),
            lambda text: read_reflector(text, telling),
        )
        if answer is None:
            return []
        known = {
            short_hash(attempt.candidate.kernel.hash): attempt.candidate for attempt in telling
        }
        return [
            Lesson(
                situation.round,
                known[lesson.kernel].kernel.hash,
                known[lesson.kernel].task.skill,
                lesson.text,
                worth_a_skill=lesson.worth_a_skill,
                effect=lesson.effect,
            )
            for lesson in answer
        ]

    def _plan(self, situation: Situation, parent: Kernel) -> list[Direction]:
        """The planner's directions for what the diagnoser finds."""
        slot = _slot(parent.hash)
        signature = situation.diagnosis.signature if situation.diagnosis else None
        finding = self._ask(
            DIAGNOSER,
            situation,
            slot,
            briefs.diagnoser_brief(situation),
            lambda text: read_diagnoser(text, signature),
        )
        if not isinstance(finding, DiagnoserAnswer):
            return []
        allowed = allowed_skills(situation, self.name)
        planned = self._ask(
            PLANNER,
            situation,
            slot,
            briefs.planner_brief(situation, finding, allowed),
            lambda text: read_planner(text, allowed, signature),
        )
        if planned is None:
            return []
        return [
            Direction(
                self.name,
                Move.FIX,
                direction.skill,
                direction.reason,
                tuple(dict.fromkeys((direction.claim, finding.claim))),
                direction.change,
            )
            for direction in planned
        ]

    def _write_seeds(self, assignment: Assignment) -> list[Candidate]:
        """Candidates of one answer at several settings of its knobs.

        For best-of-n, which wants independent kernels, every candidate is an answer of its own.
        """
        names = [node.name for node in assignment.traced.graph.nodes]
        is_free = assignment.task.skill == UNAIDED and bool(assignment.background.first_skills)
        start = None if is_free else self._start.find(assignment)
        warmer = _place_among_seeds(assignment)
        independent = self._context.run.strategy is Strategy.BEST_OF_N

        def write_one(place: int) -> list[Candidate]:
            slot = _slot(*_task_identity(assignment.task), str(place))
            answer = self._ask(
                GENERATOR,
                assignment,
                slot,
                [
                    own_kernel_section(self._context.run.start),
                    *briefs.generator_brief(assignment, start),
                ],
                lambda text: read_generator(text, names),
                warmer=warmer + place,
            )
            return self._candidates(
                answer, assignment, None, 1 if independent else assignment.task.samples
            )

        written = in_parallel(
            write_one, range(assignment.task.samples if independent else 1), self._context.give_up
        )
        return [candidate for candidates in written for candidate in candidates]

    def _write_fix(self, assignment: Assignment, parent: Kernel) -> list[Candidate]:
        slot = _slot(*_task_identity(assignment.task))
        answer = self._ask(
            OPTIMISER,
            assignment,
            slot,
            briefs.optimiser_brief(assignment),
            lambda text: read_optimiser(text, parent),
        )
        return self._candidates(answer, assignment, parent, assignment.task.samples)

    def _write_repair(self, assignment: Assignment) -> list[Candidate]:
        failed = next(
            (
                item
                for item in reversed(assignment.history)
                if item.candidate.kernel.hash == assignment.task.parent
            ),
            None,
        )
        if failed is None or not is_worth_repairing(failed, assignment.history):
            return []
        slot = _slot(*_task_identity(assignment.task))
        answer = self._ask(
            REPAIRER,
            assignment,
            slot,
            briefs.repairer_brief(assignment, failed),
            lambda text: read_repairer(text, failed),
        )
        return self._candidates(
            answer, assignment, failed.candidate.kernel, assignment.task.samples
        )

    def _candidates(
        self,
        answer: WrittenFile | None,
        assignment: Assignment,
        parent: Kernel | None,
        samples: int,
    ) -> list[Candidate]:
        if answer is None:
            return []
        derived_from = parent.hash if parent else None
        # What an edit starts from has saved its arithmetic already, whether or not the model says
        # so again.
        inherited = (ALGEBRAIC,) if parent is not None and ALGEBRAIC in parent.flags else ()
        kernel = Kernel(
            answer.source,
            derived_from,
            flags=inherited or answer.flags,
            knob_space=answer.knob_space,
            small_constants=_small_constants(answer.source, parent),
        )
        variants = islice(knob_variants(kernel, str(assignment.seed)), samples - 1)
        return [Candidate(variant, assignment.task, self.name) for variant in (kernel, *variants)]

    def _ask(
        self,
        role: Role,
        situation: Situation,
        slot: str,
        sections: Sequence[Section],
        read: Callable[[str], AnswerT],
        *,
        warmer: int = 0,
    ) -> AnswerT | None:
        """The model's answer; of several to one question each is asked for a step `warmer`.

        None, with an announcement, if the question is too long, cannot be paid for, or has no
        answer that can be used; None if the run's minutes ended before the answer came.
        """
        system = system_prompt(role, situation.traced.contract)
        try:
            user = fit_prompt(role, system, sections, reserved=REASK_TOKENS)
            about = Question(role, situation.round, slot, warmer)
            return self._conversation.ask(about, system, user, read)
        except PromptTooLong as ex:
            self._context.announce(f"{ex}; this question is not asked")
        except OutOfTime:
            pass  # the run ends for this reason, and says so
        except BudgetExhausted as ex:
            with self._lock:
                is_news = not self.spent
                self.spent = self.spent or str(ex)
            if is_news:
                self._context.announce(f"no more questions to language models: {ex}")
        return None


def _small_constants(source: str, parent: Kernel | None) -> str:
    """The parent's constants for the small workload, if an edit of it still takes them."""
    block = parent.small_constants if parent is not None else ""
    return block if block and keeps_constants(source, block) else ""


def _place_among_seeds(assignment: Assignment) -> int:
    """Which of the seeds a task is; 0 for a task that is none of them."""
    told = [seed.instruction for seed in seeds(assignment)]
    wanted = assignment.task.instruction
    return told.index(wanted) if wanted in told else 0


def _task_identity(task: Task) -> tuple[str, ...]:
    return task.move.value, task.skill, task.parent or "", task.instruction


def _slot(*parts: str) -> str:
    """A short name for what a question is about, the same whenever the run is walked again."""
    return content_hash(*parts)[:12]
