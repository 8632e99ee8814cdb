"""What of a run the author goes on with.

Skills that the planner may choose, knob settings to try, failures worth repairing, and attempts
worth a lesson. Everything follows from the situation, so that a resumed run chooses the same.
"""

from collections.abc import Iterator, Sequence

from kmem.explore.models.knobs import differ_in_knobs_only, knob_variants
from kmem.explore.models.prompts.sections import MAX_SKILLS
from kmem.interfaces import GIVEN, UNAIDED, Situation
from kmem.records import Attempt, Kernel, Move, Status, Task


def allowed_skills(situation: Situation, author: str) -> list[str]:
    """The skills that a direction may rest on, less those vetoed for this author.

    These are the skills offered, those already in the parent, and "unaided".
    """
    parent = situation.parent
    made_with = [
        attempt.candidate.task.skill
        for attempt in situation.history
        if parent and attempt.candidate.kernel.hash == parent.hash
    ]
    parent_hash = parent.hash if parent else None
    in_parent = [choice.recipe for choice in parent.choices] if parent else []
    offered = [prescription.skill for prescription in situation.prescriptions][:MAX_SKILLS]
    vetoed = {
        veto.skill
        for veto in situation.vetoes
        if veto.author == author and veto.parent in (None, parent_hash) and veto.skill != UNAIDED
    }
    known = [
        name
        for name in dict.fromkeys([*offered, *in_parent, *made_with])
        if name in situation.skills and name not in vetoed
    ]
    return [*known, UNAIDED]


def untried_variants(situation: Situation) -> Iterator[Kernel]:
    """The parent at other settings of its knobs that this run has not measured."""
    if situation.parent is None or not situation.parent.knob_space:
        return
    tried = {attempt.candidate.kernel.hash for attempt in situation.history}
    yield from (
        kernel
        for kernel in knob_variants(situation.parent, str(situation.seed))
        if kernel.hash not in tried
    )


def is_worth_repairing(failed: Attempt, history: Sequence[Attempt]) -> bool:
    """Whether a failed attempt is put before the repairer.

    Of kernels that differ in knobs only, just the first is, and only if none of them passed. So it
    is for the user's own kernel at other numbers, which names its parent.
    """
    kernel = failed.candidate.kernel
    is_given_again = failed.candidate.author == GIVEN and kernel.parent is not None
    if failed.candidate.task.move is Move.TUNE or is_given_again:
        return False
    alike = [
        attempt
        for attempt in history
        if attempt is failed or differ_in_knobs_only(kernel, attempt.candidate.kernel)
    ]
    return alike[0] is failed and not any(
        attempt.measurement.status is Status.PASSED for attempt in alike
    )


def telling_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """For each task that did more than move knobs, its fastest attempt or its first failure."""
    chosen: dict[Task, Attempt] = {}
    for attempt in attempts:
        task, status = attempt.candidate.task, attempt.measurement.status
        if task.move is Move.TUNE or status is Status.INTERRUPTED:
            continue
        kept = chosen.setdefault(task, attempt)
        kept_ms, ms = kept.measurement.latency_ms, attempt.measurement.latency_ms
        if ms is not None and (kept_ms is None or ms < kept_ms):
            chosen[task] = attempt
    return list(chosen.values())
