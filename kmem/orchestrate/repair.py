"""Repair: which failed candidates go back to their author, and in which order.

A repair keeps the skill, the claims and the instruction of the task it goes back to, so that a
repaired kernel that wins is booked on the idea that won.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kmem.orchestrate.lineage import chain_length, origin
from kmem.records import Attempt, Move, Status, Task

#: Every author mends its own.
_THEMSELVES: Mapping[str, str] = MappingProxyType({})
#: What is mended first: a kernel that does not build hides every other fault, one that crashes
#: hides its numbers, and so on.
_PRIORITY: Mapping[Status, int] = {
    Status.REFUSED_SOURCE: 0,
    Status.BUILD_FAILED: 0,
    Status.CRASHED: 1,
    Status.OUT_OF_MEMORY: 1,
    Status.WRONG_CONTRACT: 1,
    Status.WRONG_VALUES: 2,
    Status.MUTATED_INPUT: 2,
    Status.NOT_REPEATABLE: 2,
    Status.IMPURE: 2,
    Status.IMPLAUSIBLE: 2,
    Status.TIMED_OUT: 3,
}


def plan_repairs(
    failed: Sequence[Attempt],
    history: Sequence[Attempt],
    repairs: Mapping[str, int],
    menders: Mapping[str, str] = _THEMSELVES,
) -> list[Task]:
    """A repair task for each failed attempt whose author has repairs left in its chain.

    Failed builds come before crashes, wrong numbers and timeouts.

    Args:
        failed: attempts just measured; those that passed or were interrupted are passed over.
        repairs: by author, how many in a chain.
        menders: by author, who mends what it wrote, if another does.
    """
    tasks = []
    for attempt in sorted(
        failed, key=lambda attempt: _PRIORITY.get(attempt.measurement.status, len(_PRIORITY))
    ):
        task, status = attempt.candidate.task, attempt.measurement.status
        done = chain_length(task, history)
        if status in _PRIORITY and done < repairs.get(attempt.candidate.author, 0):
            first = origin(task, history)
            reason = f"repair {done + 1} of {repairs[attempt.candidate.author]}: {status.value}"
            tasks.append(
                Task(
                    Move.REPAIR,
                    first.skill,
                    attempt.candidate.kernel.hash,
                    1,
                    reason,
                    author=menders.get(attempt.candidate.author, attempt.candidate.author),
                    claims=first.claims,
                    instruction=first.instruction,
                )
            )
    return tasks
