"""Author, Provider, Profiler, Executor: what a plugin can supply.

The docstring of each ABC is its contract.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe
from kmem.records import (
    Attempt,
    Bound,
    Candidate,
    Claim,
    Contract,
    Device,
    Diagnosis,
    Experience,
    Kernel,
    Lesson,
    Move,
    Prescription,
    Problem,
    Profile,
    Run,
    Task,
    Veto,
    Workload,
)
from kmem.skills import Skill


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All an author may know when it decides what to try.

    It never sees the judge's inputs, seeds or tolerances.
    """

    problem: Problem
    graphs: Mapping[str, OpGraph]  # by workload name
    device: Device
    contract: Contract
    bound: Bound | None = None
    round: int = 0
    parent: Kernel | None  # the kernel to go on from; None in the first round
    diagnosis: Diagnosis | None  # of the parent
    prescriptions: Sequence[Prescription]  # the skills offered for it, at most three
    history: Sequence[Attempt]  # every attempt of the run so far, oldest first
    lessons: Sequence[Lesson] = ()
    vetoes: Sequence[Veto] = ()
    recipes: Mapping[str, Recipe]  # the executable skills that are loaded
    # executable skills that match, with the bytes of their sites
    writable: Mapping[str, float] = field(default_factory=dict)
    skills: Mapping[str, Skill] = field(default_factory=dict)  # every skill, by name
    # a sentence on what each offered skill has earned
    track_records: Mapping[str, str] = field(default_factory=dict)
    experience: Sequence[Experience] = ()  # what settings of these recipes took on other graphs
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Situation):
    """A situation, and the one task to write for."""

    task: Task


#: The skill of a language model's own idea, and of a move among the knobs that one named.
UNAIDED = "unaided"
KNOBS = "knobs"


@dataclass(frozen=True, slots=True)
class Direction:
    """Something an author could do in a situation; the strategy decides which directions get how
    many candidates.

    `skill` names the skill it rests on (one of those offered, or of those already in the parent); a
    language model's own idea without a skill is "unaided".
    """

    author: str
    move: Move
    skill: str
    reason: str
    claims: tuple[Claim, ...] = ()
    instruction: str = ""


class CompletionArchive(Protocol):
    """Where every conversation of a run is kept, and found again when the run is resumed or
    replayed.

    A key is (role, round, slot, turn): which question of the run it was, not how it was worded. A
    question is noted before it is put, so that a run which is killed meanwhile knows what it may
    have cost; several notes on one question are answers that were lost.
    """

    def note(self, question: "Unanswered") -> None:
        """Store that a question is about to be put; on return it is on disk."""

    def withdraw(self, key: "CompletionKey") -> None:
        """Take back the last note on a question: it was not put, or cost nothing."""

    def unanswered(self) -> "Iterable[Unanswered]":
        """Every note that stands: questions whose answer was lost, or under way when the process
        ended.
        """

    def find(self, key: "CompletionKey") -> "CompletionRecord | None":
        """The answer this run (or the run being replayed) already has to a question."""

    def keep(self, record: "CompletionRecord") -> None:
        """Store a question and its answer in place of the last note on it; on return it is on disk."""

    def records(self) -> "Iterable[CompletionRecord]":
        """Every answer this run already has, oldest first; a resumed run's spending starts from
        them.
        """


@dataclass(frozen=True, slots=True)
class CompletionKey:
    """Which question of a run."""

    role: str
    round: int
    slot: str  # the task or kernel it is about: unique within a role and round
    turn: int  # 0, 1 after one re-ask, ...


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question that was put and may have been charged, and the most it can have cost."""

    key: CompletionKey
    model: str
    tokens: int
    usd: float | None  # None where the price is unknown


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """One question to a language model and what came back. Never holds a key or another secret."""

    key: CompletionKey
    request: "ModelRequest"
    completion: "Completion"
    usd: float | None  # None where the price is unknown
    seconds: float


@dataclass(frozen=True, slots=True)
class RunContext:
    """What an author needs to work for one run."""

    run: Run
    providers: Mapping[str, "Provider"]
    archive: CompletionArchive
    announce: Callable[[str], None]  # one line for the progress display

    def give_up(self) -> None:
        """Make every question under way end soon, for the run is interrupted."""
        for provider in self.providers.values():
            provider.interrupt()


class Author(ABC):
    """Writes candidate kernels; a recipe engine or a language model.

    `begin` gives the author that works for one run. `propose` says what it could try in a
    situation, most promising first; in the first round (no parent) these are its seeds. `write`
    returns at most `task.samples` candidates, best guess first, each a whole module file. Having no
    idea is an empty list. With `repairs` above 0 a candidate of its own that failed comes back as a
    task with Move.REPAIR whose parent is the failed kernel (its log is the last entry of the
    history for that kernel), at most so many times in a chain. `reflect` sees the attempts it wrote
    this round, measured, and may return lessons. All raise only KmemError, and only if they cannot
    work at all; none of them runs or measures what it writes. `write` may be called from several
    threads at once.
    """

    name: str
    repairs: int = 0
    # why it asks no language model any more, once a budget does not cover the next question
    spent: str = ""

    def begin(self, context: RunContext) -> "Author":
        """The author that works for this run; itself if it keeps nothing about runs."""
        return self

    @abstractmethod
    def propose(self, situation: Situation) -> list[Direction]:
        """What it could try."""

    @abstractmethod
    def write(self, assignment: Assignment) -> list[Candidate]:
        """Write candidates for one task."""

    @property
    def complaint(self) -> str:
        """What the user should hear of language models none of whose answers could be used, with
        the remedy; empty if there is nothing.
        """
        return ""

    def reflect(self, situation: Situation, attempts: Sequence[Attempt]) -> list[Lesson]:
        """What this round's attempts taught; by default nothing beyond what arithmetic says."""
        return []


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


class StopReason(Enum):
    """Why a model stopped."""

    END = "end"
    LENGTH = "length"  # max_output_tokens reached: the answer is cut off
    REFUSAL = "refusal"
    # asked as often as is allowed, and no answer arrived; the text says why. No provider answers
    # so: budget.py does
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer with the provider's own token counts; None where it reports none (the
    `command` provider).
    """

    text: str
    model: str
    input_tokens: int | None
    output_tokens: int | None
    stop: StopReason = StopReason.END


class Provider(ABC):
    """Text in, text out. Registering one imports no SDK and checks no key.

    `complete` retries what is worth retrying and cannot have cost anything (429, 5xx, a connection
    that was never made: with back-off and Retry-After, within the request's timeout) and raises
    ProviderError with the remedy otherwise (no key, wrong key, unknown model, unreachable server).
    A connection that ends after the question was sent raises AnswerLost, for the provider may
    charge for it: whoever keeps the purse decides on asking again. A refusal or an answer cut off
    at max_output_tokens is a Completion. `interrupt` makes calls that wait in other threads give
    up.
    """

    name: str
    # whether its completions carry token counts: without them no budget of tokens or dollars can be
    # kept
    counts_tokens: bool = True

    @abstractmethod
    def complete(self, request: ModelRequest) -> Completion:
        """Ask a model. May be called from several threads at once. Raises ProviderError."""

    @abstractmethod
    def models(self, base_url: str | None = None) -> list[str]:
        """Names of models it offers; raises ProviderError like `complete`."""

    def interrupt(self) -> None:
        """Make every call now under way raise soon instead of waiting on (after Ctrl-C); later
        calls are not affected.

        What it raises is ProviderError if the call cannot have cost anything, else Interrupted.
        """
        return


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run in a fresh directory: argv, files to put there (relative path -> text) and
    extra environment variables.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job.

    `exit_code` is None if it was killed at its time limit; `files` is what it left under out/.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, bytes]
    seconds: float


class Executor(ABC):
    """Runs jobs on some machine.

    A job that fails, hangs or crashes the GPU is a JobResult; ExecutorError means the machine, not
    the job, failed. Covered: fresh directory, new process group, killed on timeout, environment
    scrubbed of secrets. Not covered: the network, a hostile kernel.
    """

    name: str

    @abstractmethod
    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job to its end or its time limit."""


class Profiler(ABC):
    """Profiles every launch of one forward of a kernel file.

    `is_available` says why not (None if it is): no GPU, no counters. `profile` raises ProfilerError
    with the remedy. Raw counter names are kept; a counter that is missing is absent, never zero.
    """

    name: str
    estimated: bool  # whether figures are computed rather than counted

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None if it can run here, else one line that names the remedy."""

    @abstractmethod
    def profile(
        self,
        kernel: Kernel,
        problem: Problem,
        workload: Workload,
        contract: Contract,
        device: Device,
        executor: Executor,
    ) -> Profile:
        """Profile one forward."""


class Checker(ABC):
    """Reads a candidate's source before it runs, beside the judge's own source check; asked for by
    name (`kmem verify --check NAME`).

    `unavailable_reason` says why it cannot run here, with the remedy (None if it can). `check` runs
    nothing of the candidate.
    """

    name: str

    @abstractmethod
    def unavailable_reason(self) -> str | None:
        """None if it can run here, else one line that names the remedy."""

    @abstractmethod
    def check(self, source: str) -> list[str]:
        """Why this source must not run, one line per reason; empty if nothing speaks against it."""
