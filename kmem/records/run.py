"""A run: what it was asked, what it may spend, and what it ended with."""

from dataclasses import dataclass, field
from enum import Enum

from kmem.records.identity import ABSENT_IF_NONE
from kmem.records.kernel import Kernel
from kmem.records.problem import Bound, Contract, Problem
from kmem.records.verdict import BASELINES, Attempt, Baseline


@dataclass(frozen=True, slots=True)
class Budget:
    """What one run may spend.

    The run stops when it reaches `target_speed_of_light`. `usd` and `tokens` (input plus output)
    limit language models; None is no limit. `baselines` are what a kernel must beat, and
    `baseline_minutes` how long timing them may take beside the search; None is as long as the run.
    """

    rounds: int = 4
    minutes: float = 3.0
    candidates_per_round: int = 12
    target_speed_of_light: float = 0.97
    usd: float | None = None
    tokens: int | None = None
    baselines: tuple[str, ...] = BASELINES
    baseline_minutes: float | None = None


class Strategy(Enum):
    """How a round's candidates are shared out over parents and directions."""

    GREEDY = "greedy"  # the best kernel, in the most promising direction
    BEAM = "beam"  # several parents, several distinct directions of each
    BANDIT = "bandit"  # the best kernel, directions by Thompson sampling
    RANDOM_SKILLS = "random-skills"  # as bandit, with prescriptions drawn at random: their control
    BEST_OF_N = "best-of-n"  # independent first kernels: the control that search must beat


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which language model plays a role, and how the model is asked.

    The role "any" stands for every role without a choice of its own.
    """

    role: str
    provider: str
    model: str
    base_url: str | None = None
    temperature: float | None = None
    effort: str | None = None
    max_output_tokens: int | None = None
    stream: bool = True  # False: the answer comes whole, for servers that cannot stream


@dataclass(frozen=True, slots=True)
class UserTest:
    """A test of the user's own, as it was when the run was begun: for pytest, or a script."""

    path: str
    source: str
    is_pytest: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One `kmem optimize`: what was asked, so that the run can be resumed exactly."""

    id: str
    problem: Problem
    target: str
    contract: Contract
    budget: Budget
    memory_mode: str  # off, read, rw
    seed: int
    out_dir: str
    created_at: str
    authors: tuple[str, ...] = ("recipes",)  # in the order in which they seed
    strategy: Strategy = Strategy.BANDIT
    models: tuple[ModelChoice, ...] = ()
    # the user's own kernel to start from
    start: Kernel | None = field(default=None, metadata=ABSENT_IF_NONE)
    # what a kernel must pass beside all that the judge asks
    test: UserTest | None = field(default=None, metadata=ABSENT_IF_NONE)


class RunState(Enum):
    """Where a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run ends with; `best` is None if nothing beat the best baseline."""

    run: str
    problem: str
    target: str
    estimated: bool
    best: Attempt | None
    baselines: tuple[Baseline, ...]
    bound: Bound | None
    speedup: float | None  # best baseline / best
    speed_of_light: float | None
    recalled: bool
    measurements: int
    seconds: float
    reason: str  # why the run stopped
    flags: tuple[str, ...] = ()
    # how often the run looked at its clock before the minutes were over; None if they never were
    looks_in_time: int | None = None
    # how many final verdicts it asked for before they were over; None if they never were
    verifications_in_time: int | None = None
    # candidates that were timed faster than the answer and have no final verdict
    unverified_faster: int = 0
