"""What each role answers: a JSON object as a frozen dataclass, with the limits that always hold.

reading.py holds an answer to the situation it is about (offered skills, the log, the code). Every
field is required, except a claim's `relative` and a lesson's `effect`. Authors of code say which
knobs their file has, and whether it is `algebraic`: whether exact algebra lets it do less
arithmetic than the module as written, which moves the judge's floor for its time and is named in
the result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kmem.records import Bottleneck, Claim, Effect, Status
from kmem.vocabulary import SIGNATURE_METRICS

#: Distinct directions of one parent. More dilute the budget: 12 candidates a round, 4 of each.
#: Source: records.Budget.
MAX_DIRECTIONS = 3
#: The flag of a kernel that exact algebra lets do less arithmetic than the module as written (see
#: records.Kernel.flags).
ALGEBRAIC = "algebraic"
_SHORT_HASH = 8


class Issue(Enum):
    """What a failed candidate must be cured of first.

    They are in the order of cure: a kernel that does not build cannot be wrong yet.
    """

    BUILD = "build"
    CRASH = "crash"
    # number, shape, dtype of outputs; inputs changed; GPU time that --purity forbids
    CONTRACT = "contract"
    NUMERIC = "numeric"
    TIMEOUT = "timeout"


#: In the order in which they must be cured.
_ISSUES: Mapping[Status, Issue] = {
    Status.REFUSED_SOURCE: Issue.BUILD,
    Status.BUILD_FAILED: Issue.BUILD,
    Status.CRASHED: Issue.CRASH,
    Status.OUT_OF_MEMORY: Issue.CRASH,
    Status.WRONG_CONTRACT: Issue.CONTRACT,
    Status.MUTATED_INPUT: Issue.CONTRACT,
    Status.IMPURE: Issue.CONTRACT,
    Status.WRONG_VALUES: Issue.NUMERIC,
    Status.NOT_REPEATABLE: Issue.NUMERIC,
    Status.IMPLAUSIBLE: Issue.NUMERIC,  # faster than the bytes allow: part of the work is left out
    Status.TIMED_OUT: Issue.TIMEOUT,
}


def short_hash(kernel_hash: str) -> str:
    """How prompts and answers name a kernel."""
    return kernel_hash[:_SHORT_HASH]


def issue_of(status: Status) -> Issue | None:
    """What a repair must cure first; None for a status that is no fault of the candidate."""
    return _ISSUES.get(status)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorAnswer:
    """A first kernel: how it works, and which nodes of the graph it computes itself."""

    plan: str
    operators: tuple[str, ...]
    algebraic: bool
    knobs: dict[str, tuple[int | str, ...]]

    def __post_init__(self) -> None:
        _demand_text(plan=self.plan)
        if not self.operators:
            raise ValueError("operators must name at least one node of the graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoserAnswer:
    """What limits the parent, the metrics that show it, and what its cure must change."""

    bottleneck: Bottleneck
    cause: str
    evidence: tuple[str, ...]
    claim: Claim

    def __post_init__(self) -> None:
        _demand_text(cause=self.cause)
        if self.bottleneck is Bottleneck.UNKNOWN:
            raise ValueError("bottleneck must name what limits the kernel")
        if not self.evidence:
            raise ValueError("evidence must name at least one metric")
        check_claim(self.claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDirection:
    """One change to try: the skill it rests on, what to change, and what is seen if it works."""

    skill: str
    change: str
    reason: str
    claim: Claim

    def __post_init__(self) -> None:
        _demand_text(change=self.change, reason=self.reason)
        check_claim(self.claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerAnswer:
    """Distinct directions, most promising first."""

    directions: tuple[PlannedDirection, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.directions) <= MAX_DIRECTIONS:
            raise ValueError(f"directions must hold 1 to {MAX_DIRECTIONS} entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistItem:
    """One item of the plan and the line of the new file that carries it out, quoted."""

    item: str
    line: str

    def __post_init__(self) -> None:
        _demand_text(item=self.item, line=self.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserAnswer:
    """An edit of the parent: where each item of the plan went."""

    summary: str
    checklist: tuple[ChecklistItem, ...]
    algebraic: bool
    knobs: dict[str, tuple[int | str, ...]]

    def __post_init__(self) -> None:
        _demand_text(summary=self.summary)
        if not self.checklist:
            raise ValueError("checklist must hold at least one item")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairerAnswer:
    """What is wrong with a failed candidate, the words of the log that show it, and the least cure.

    `anchor` is the line of the failed file that the fix starts from, quoted; `invariants` is what
    the fix must leave as it is. `evidence` quotes the log.
    """

    issue: Issue
    evidence: tuple[str, ...]
    cause: str
    trigger: str
    invariants: tuple[str, ...]
    fix: str
    anchor: str
    algebraic: bool
    knobs: dict[str, tuple[int | str, ...]]

    def __post_init__(self) -> None:
        _demand_text(cause=self.cause, trigger=self.trigger, fix=self.fix, anchor=self.anchor)
        if not self.evidence or not all(quote.strip() for quote in self.evidence):
            raise ValueError("evidence must quote the log at least once, and no quote may be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtLesson:
    """One lesson from one attempt, which is named by its short hash.

    `worth_a_skill` says that the lesson would help with other problems too. `effect` is what the
    lesson says became of the kernel.
    """

    kernel: str
    text: str
    worth_a_skill: bool
    effect: Effect | None = None

    def __post_init__(self) -> None:
        _demand_text(text=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorAnswer:
    """What the round taught; no lesson is an answer too."""

    lessons: tuple[TaughtLesson, ...]


def check_claim(claim: Claim) -> None:
    """Refuse a claim that cannot be checked.

    Raises:
        ValueError: if the claim names no signature metric, no comparison, or no finite number.
    """
    if claim.metric not in SIGNATURE_METRICS:
        raise ValueError(
            f"the claim's metric {claim.metric!r} is none of {', '.join(SIGNATURE_METRICS)}"
        )
    if claim.comparison not in ("<=", ">="):
        raise ValueError(f"the claim's comparison {claim.comparison!r} must be <= or >=")
    if not math.isfinite(claim.number) or (claim.relative and claim.number <= 0):
        raise ValueError(
            f"the claim's number {claim.number} must be finite, and positive where it is a "
            "multiple of the parent's value"
        )


def _demand_text(**fields: str) -> None:
    for name, text in fields.items():
        if not text.strip():
            raise ValueError(f"{name} must not be empty")
