"""What a plugin can supply: Provider, Author, Executor, Profiler, Checker.

The docstring of each ABC is its contract; the register_* hooks of kmem/hookspecs.py take objects of
these classes. In order: language models and their providers, the conversations with them, authors
and what they see and answer, profilers, source checks. What an executor is stands in
kmem/engines/executor.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kmem.engines.executor import Executor as Executor
from kmem.engines.executor import Job as Job
from kmem.engines.executor import JobResult as JobResult
from kmem.problem.traced import TracedProblem
from kmem.recipes import Recipe
from kmem.records import (
    Attempt,
    Background,
    Candidate,
    Claim,
    Diagnosis,
    Experience,
    Kernel,
    Lesson,
    Move,
    Prescription,
    Profile,
    Run,
    Task,
    Veto,
)
from kmem.rewrites import Rewrites, Rewritten
from kmem.skills import Skill


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation: role is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a language model. None leaves a setting to the provider's default."""

    model: str
    messages: tuple[Message, ...]  # a system message, if any, comes first
    max_output_tokens: int
    temperature: float | None = None
    effort: str | None = None  # low, medium, high: where the model has such a setting
    base_url: str | None = None
    timeout_s: float = 600.0
    stable_chars: int = 0  # of the first user message: other questions of the role begin so, too
    stream: bool = True  # False: the answer comes whole, for servers that cannot stream


class StopReason(Enum):
    """Why a model stopped."""

    END = "end"
    LENGTH = "length"  # max_output_tokens reached: the answer is cut off
    REFUSAL = "refusal"
    # asked as often as is allowed, and no answer arrived; the text says why. The budget of the run
    # (kmem/explore/models/cost/budget.py) gives this reason, no provider does.
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer, with token counts where the provider reports them (`command` does not)."""

    text: str
    model: str
    input_tokens: int | None
    output_tokens: int | None
    stop: StopReason = StopReason.END
    cached_tokens: int = 0  # of the input: read from the provider's cache
    written_tokens: int = 0  # of the input: written to it


class Provider(ABC):
    """Text in, text out. Registering one imports no SDK and checks no key.

    - `complete` retries what is worth retrying and cannot have cost anything (429, 5xx, a
      connection that was never made) with back-off and Retry-After, within the request's timeout.
      Otherwise it raises ProviderError with the remedy: no key, wrong key, unknown model,
      unreachable server.
    - A connection that ends after the question was sent raises AnswerLost, because the provider may
      charge for it: the budget of the run decides whether the question is put again.
    - A refusal, or an answer cut off at max_output_tokens, is a Completion.
    - `interrupt` makes calls that wait in other threads give up.
    """

    name: str
    # whether completions carry token counts; without them a run can keep no budget of tokens or
    # dollars
    counts_tokens: bool = True

    @abstractmethod
    def complete(self, request: ModelRequest) -> Completion:
        """Ask a model. May be called from several threads at once. Raises ProviderError."""

    @abstractmethod
    def models(self, base_url: str | None = None) -> list[str]:
        """Names of the models that the provider offers; raises ProviderError like `complete`."""

    def check(self, model: str, base_url: str | None = None) -> None:
        """See before a run begins whether a question could be put at all.

        Quick, and nothing is asked. Raises ProviderError with the remedy: no key, no server, no
        program. What only an answer can show (a wrong key, an unknown model) is not found here.
        """
        return

    def interrupt(self) -> None:
        """Make every call now under way raise soon instead of waiting on; later calls go through.

        Called after Ctrl-C. Such a call raises ProviderError if it cannot have cost anything, and
        Interrupted if it may have.
        """
        return


@dataclass(frozen=True, slots=True)
class CompletionKey:
    """Which question of a run."""

    role: str
    round: int
    slot: str  # the task or kernel that the question is about: unique within a role and round
    turn: int  # 0, 1 after one re-ask, ...


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question that was put and may have been charged, with the most that it can have cost."""

    key: CompletionKey
    model: str
    tokens: int
    usd: float | None  # None where the price is unknown


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """One question to a language model and what came back. Never holds a key or another secret."""

    key: CompletionKey
    request: ModelRequest
    completion: Completion
    usd: float | None  # None where the price is unknown
    seconds: float


class CompletionArchive(Protocol):
    """Where every conversation of a run is kept, for resuming and replaying the run.

    A key says which question of the run it was (role, round, slot, turn), not how it was worded. A
    question is noted before it is put, so that a run which is killed meanwhile knows what the
    question may have cost. Several notes on one question stand for answers that were lost.
    """

    def note(self, question: Unanswered) -> None:
        """Store that a question is about to be put; on return it is on disk."""

    def withdraw(self, key: CompletionKey) -> None:
        """Take back the last note on a question: the question was not put, or cost nothing."""

    def unanswered(self) -> Iterable[Unanswered]:
        """Every note that stands.

        These are the questions whose answer was lost, or that were under way when the process
        ended.
        """

    def find(self, key: CompletionKey) -> CompletionRecord | None:
        """The answer this run (or the run being replayed) already has to a question."""

    def keep(self, record: CompletionRecord) -> None:
        """Store a question and its answer in place of the last note on the question.

        On return the answer is on disk.
        """

    def records(self) -> Iterable[CompletionRecord]:
        """Every answer this run already has, oldest first: a resumed run has paid for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that an author may know when it decides what to try.

    An author never sees the judge's inputs, seeds or tolerances.
    """

    traced: TracedProblem
    round: int = 0
    parent: Kernel | None  # the kernel to go on from; None in the first round
    diagnosis: Diagnosis | None  # of the parent
    prescriptions: Sequence[Prescription]  # skills offered for the diagnosis, at most three
    history: Sequence[Attempt]  # every attempt of the run so far, oldest first
    lessons: Sequence[Lesson] = ()
    vetoes: Sequence[Veto] = ()
    recipes: Mapping[str, Recipe]  # the executable skills that are loaded
    # executable skills that match, with the bytes of their sites
    writable: Mapping[str, float] = field(default_factory=dict)
    rewrites: Rewrites = field(default_factory=Rewrites)  # the skills that rewrite graphs
    # rewritten forms of the problem by the skill that is their direction, best first
    rewritten: Mapping[str, Rewritten] = field(default_factory=dict)
    skills: Mapping[str, Skill] = field(default_factory=dict)  # every skill, by name
    # a sentence on what each offered skill has earned
    track_records: Mapping[str, str] = field(default_factory=dict)
    experience: Sequence[Experience] = ()  # what settings of these recipes took on other graphs
    # the lowest rung of a recipe's precision ladder that is worth trying, by recipe and site
    rungs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    background: Background = field(default_factory=Background)
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Situation):
    """A situation, and the one task to write for."""

    task: Task


#: The skill of an idea that no skill gave, and of a move among the knobs that a kernel names.
UNAIDED, KNOBS = "unaided", "knobs"
#: The author that brings the kernel a run was told to start from, and the one that asks recipes.
GIVEN, RECIPES = "given", "recipes"


@dataclass(frozen=True, slots=True)
class Direction:
    """Something that an author could do in a situation.

    The strategy decides which directions get how many candidates. `skill` names the skill that the
    direction rests on: one of those offered, or of those already in the parent; a language model's
    own idea without a skill is "unaided".
    """

    author: str
    move: Move
    skill: str
    reason: str
    claims: tuple[Claim, ...] = ()
    instruction: str = ""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What an author needs to work for one run."""

    run: Run
    providers: Mapping[str, Provider]
    archive: CompletionArchive
    announce: Callable[[str], None]  # one line for the progress display

    def give_up(self) -> None:
        """Make every question under way end soon, because the run is interrupted."""
        for provider in self.providers.values():
            provider.interrupt()


class Author(ABC):
    """Writes candidate kernels; a recipe engine or a language model.

    - `begin` gives the author that works for one run.
    - `propose` says what the author could try in a situation, most promising first; in the first
      round (no parent) these are its seeds. Having no idea is an empty list.
    - `write` returns at most `task.samples` candidates, best guess first, each a whole module file.
      Several threads may call `write` at once.
    - `reflect` sees the attempts that the author wrote this round, measured, and may return
      lessons.

    With `repairs` above 0, a failed candidate of the author comes back as a task with Move.REPAIR,
    at most so many times in a chain. The parent of such a task is the failed kernel; the last entry
    of the history for that kernel has its log.

    Every method raises only KmemError, and only if the author cannot work at all. No author runs or
    measures what it writes.
    """

    name: str
    repairs: int = 0
    mended_by: str = ""  # the author that mends what this one wrote; empty: itself
    # why the author asks no language model any more, once a budget does not cover the next question
    spent: str = ""
    # questions to language models so far without an answer that could be used: no attempts, but no
    # sign either that there is nothing left to try
    unanswered: int = 0

    def begin(self, context: RunContext) -> "Author":
        """The author that works for this run; the same object if it keeps nothing about runs."""
        return self

    def uses(self, skill: Skill, situation: Situation) -> bool:
        """Whether the author could act on a skill, were it prescribed for the parent kernel.

        What no author of a run uses is prescribed only if they use nothing else either. By default
        every skill is used: its text can be read.
        """
        return True

    @abstractmethod
    def propose(self, situation: Situation) -> list[Direction]:
        """What the author could try in a situation."""

    @abstractmethod
    def write(self, assignment: Assignment) -> list[Candidate]:
        """Write candidates for one task."""

    def foresee(self, assignment: Assignment) -> float | None:
        """What the first candidate of `write` is predicted to take, in ms, without writing it.

        None if nothing is predicted, or nothing would be written.
        """
        return None

    @property
    def complaint(self) -> str:
        """What to tell the user of a language model that gave no usable answer, with the remedy.

        Empty if there is nothing to tell.
        """
        return ""

    def reflect(self, situation: Situation, attempts: Sequence[Attempt]) -> list[Lesson]:
        """What this round's attempts taught beyond what arithmetic says; by default nothing."""
        return []


class Profiler(ABC):
    """Profiles every launch of one forward of a kernel file.

    `unavailable_reason` says why the profiler cannot run here: no GPU, no counters. `profile`
    raises ProfilerError with the remedy. Raw counter names are kept; a counter that is missing is
    absent, never zero.
    """

    name: str
    estimated: bool  # whether figures are computed rather than counted

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None if the profiler can run here, else one line that names the remedy."""

    @abstractmethod
    def profile(self, kernel: Kernel, traced: TracedProblem, executor: Executor) -> Profile:
        """Profile one forward at the sizes that the problem's file gives."""


class Checker(ABC):
    """Reads a candidate's source before it runs, beside the judge's own source check.

    The user asks for a checker by name: `kmem verify --check NAME`. `check` runs nothing of the
    candidate.
    """

    name: str

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None if the checker can run here, else one line that names the remedy."""

    @abstractmethod
    def check(self, source: str) -> list[str]:
        """Why this source must not run, one line per reason; empty if nothing speaks against it."""
