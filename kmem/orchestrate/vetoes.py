"""What a run will not try again, with the reason.

The reasons are failures, kernels far too slow, falsified claims, and repairs that did not help.
Everything follows from the run's attempts and lessons, so that it survives going back to an earlier
kernel and resuming. The rule for a falsified claim: without a gain the arm is vetoed for the rest
of the run; with one it only loses weight (`doubts`), because the kernel is faster for another
reason than was claimed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kmem.interfaces import Direction
from kmem.orchestrate.lineage import MENDS, Arm, arm_of, base_of, origin
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, ClaimCheck, Lesson, Move, Status, Veto

#: An arm this much slower than the best after enough tries is refuted in this run.
_REFUTED_RATIO = 1.3
_ENOUGH_TRIES = 4
_FAILURES_TO_VETO = 3


@dataclass(frozen=True, slots=True)
class Past:
    """What a run has tried, and what speaks against trying it again.

    `doubts` counts each arm's falsified claims that came with a gain all the same.
    """

    attempts: Sequence[Attempt]
    vetoes: Sequence[Veto] = ()
    doubts: Mapping[Arm, int] = field(default_factory=dict)


def find_vetoes(
    history: Sequence[Attempt],
    best: Attempt | None,
    lessons: Sequence[Lesson],
    repairs: Mapping[str, int],
) -> tuple[Veto, ...]:
    """Everything this run will not try again.

    It is nothing while no kernel has passed, for then there is nothing better to try.

    Args:
        repairs: by author, how many repairs in a chain it is granted.
    """
    if best is None:
        return ()
    vetoes = [
        *_refuted_by_times(history, best),
        *_refuted_by_claims(history, lessons),
        *_beyond_repair(history, repairs),
    ]
    return tuple(
        {
            (veto.author, veto.skill, veto.instruction, veto.parent): veto
            for veto in reversed(vetoes)
        }.values()
    )[::-1]


def is_vetoed(direction: Direction, parent: str | None, vetoes: Sequence[Veto]) -> bool:
    """Whether a veto speaks of this direction from this parent (hash)."""
    arm = arm_of(direction)
    return any(
        (veto.author, veto.skill, veto.instruction) == arm and veto.parent in (None, parent)
        for veto in vetoes
    )


def count_doubts(history: Sequence[Attempt], lessons: Sequence[Lesson]) -> Counter[Arm]:
    """How many falsified claims each arm has whose attempt gained all the same."""
    return Counter(
        arm_of(attempt.candidate.task)
        for attempt, _, gained in _falsified(history, lessons)
        if gained
    )


def by_arm(history: Sequence[Attempt]) -> dict[Arm, list[Attempt]]:
    """Attempts by arm, oldest first."""
    groups: dict[Arm, list[Attempt]] = {}
    for attempt in history:
        groups.setdefault(arm_of(attempt.candidate.task), []).append(attempt)
    return groups


def _refuted_by_times(history: Sequence[Attempt], best: Attempt) -> list[Veto]:
    """Arms with nothing but failures, or far slower than the best after enough tries.

    A chain of repairs counts as one failure.
    """
    vetoes = []
    in_best = {
        best.candidate.task.skill,
        *(choice.recipe for choice in best.candidate.kernel.choices),
    }
    for arm, attempts in by_arm(history).items():
        passed = [attempt for attempt in attempts if attempt.measurement.status is Status.PASSED]
        counted = [
            attempt
            for attempt in attempts
            if attempt.measurement.status is not Status.INTERRUPTED
            and attempt.candidate.task.move not in MENDS
        ]
        if not passed and len(counted) >= _FAILURES_TO_VETO:
            last = counted[-1].measurement.status
            vetoes.append(_veto(arm, f"{len(counted)} candidates, none passed: {last.value}"))
        elif len(passed) >= _ENOUGH_TRIES and arm[1] not in in_best:
            fastest_ms = min(attempt.measurement.latency_ms for attempt in passed)
            slower = fastest_ms / best.measurement.latency_ms
            if slower > _REFUTED_RATIO:
                reason = f"{len(passed)} candidates, the fastest {slower:.2f}x slower than the best"
                vetoes.append(_veto(arm, reason))
    return vetoes


def _refuted_by_claims(history: Sequence[Attempt], lessons: Sequence[Lesson]) -> list[Veto]:
    return [
        _veto(arm_of(attempt.candidate.task), f"{describe_check(check)}, and it brought no gain")
        for attempt, check, gained in _falsified(history, lessons)
        if not gained
    ]


def _beyond_repair(history: Sequence[Attempt], repairs: Mapping[str, int]) -> list[Veto]:
    """Arms whose every candidate from one base failed, repairs included.

    Such an arm is not tried from that base again.
    """
    outcomes: dict[tuple[Arm, str | None], list[Attempt]] = {}
    for attempt in history:
        task = attempt.candidate.task
        if repairs.get(task.author, 0) and attempt.measurement.status is not Status.INTERRUPTED:
            outcomes.setdefault((arm_of(origin(task, history)), base_of(task, history)), []).append(
                attempt
            )
    vetoes = []
    for (arm, base), attempts in outcomes.items():
        # From nothing there is no base to go back to: only the rule for repeated failures ends
        # first kernels.
        if base is not None and all(
            attempt.measurement.status is not Status.PASSED for attempt in attempts
        ):
            repaired = sum(attempt.candidate.task.move is Move.REPAIR for attempt in attempts)
            last = attempts[-1].measurement.status
            reason = f"failed and {repaired} repairs did not help: {last.value}"
            vetoes.append(_veto(arm, reason, base))
    return vetoes


def _falsified(
    history: Sequence[Attempt], lessons: Sequence[Lesson]
) -> list[tuple[Attempt, ClaimCheck, bool]]:
    """Each lesson's first falsified claim, its attempt, and whether that gained on its base."""
    found = []
    attempts = {attempt.candidate.kernel.hash: attempt for attempt in history}
    for lesson in lessons:
        check = next((check for check in lesson.checks if check.held is False), None)
        attempt = attempts.get(lesson.kernel)
        if check is not None and attempt is not None:
            gained = attempt.speedup is not None and attempt.speedup >= MIN_IMPROVEMENT
            found.append((attempt, check, gained))
    return found


def describe_check(check: ClaimCheck) -> str:
    """A claim beside what was measured, in a few words."""
    verdict = {True: "held", False: "was falsified", None: "could not be checked"}[check.held]
    values = f"{_number(check.before)} before, {_number(check.after)} after"
    return f"the claim {check.claim} {verdict} ({values})"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _veto(arm: Arm, reason: str, parent: str | None = None) -> Veto:
    # an arm has an instruction only if it is an idea without a skill (lineage.arm_of)
    return Veto(arm[1], reason, author=arm[0], parent=parent, instruction=arm[2])
