"""What a round tries: tasks, candidates written for them, vetoes, and lessons of earlier rounds."""

from dataclasses import dataclass, field
from enum import Enum

from kmem.records.diagnosis import Claim, ClaimCheck
from kmem.records.identity import ABSENT_IF_NONE
from kmem.records.kernel import Kernel, SiteChoice


class Move(Enum):
    """Why a task is in a plan."""

    SEED = "seed"
    RECALL = "recall"
    TUNE = "tune"
    FIX = "fix"
    REPAIR = "repair"
    CLIMB = "climb"  # up the precision ladder, for a kernel refused for its error


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to try: from which parent, with which skill, how many candidates."""

    move: Move
    skill: str
    parent: str | None
    samples: int
    reason: str
    choices: tuple[SiteChoice, ...] = ()  # knobs to start from: for RECALL, CLIMB
    author: str = "recipes"  # who writes the candidates
    claims: tuple[Claim, ...] = ()  # what the next profile must show if the change works
    instruction: str = ""  # what a language model is to do; empty for recipes


class Effect(Enum):
    """What became of a kernel beside its parent."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a run learnt from one kernel, in a sentence.

    A refuted claim, or what a language model made of the measurement.
    """

    round: int
    kernel: str  # hash
    skill: str
    text: str
    checks: tuple[ClaimCheck, ...] = ()
    worth_a_skill: bool = False  # whether its author thinks that it holds beyond this problem
    # what its author says became of the kernel; it was held to the measurement
    effect: Effect | None = field(default=None, metadata=ABSENT_IF_NONE)


@dataclass(frozen=True, slots=True)
class Veto:
    """Something that a run will not try, and why."""

    skill: str
    reason: str
    author: str = "recipes"  # the author that must not try it
    parent: str | None = None  # hash of the parent kernel it is vetoed for; None: for any
    instruction: str = ""  # the instruction, where the veto is on an idea without a skill


@dataclass(frozen=True, slots=True)
class Plan:
    """How a round spends its budget."""

    tasks: tuple[Task, ...]
    vetoes: tuple[Veto, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that somebody wrote for a task.

    `estimated_ms` is the cost models' prediction of what recipes wrote, `whole_ms` of that and what
    is left to the library; for ranking only.
    """

    kernel: Kernel
    task: Task
    author: str
    estimated_ms: float | None = None
    whole_ms: float | None = None
