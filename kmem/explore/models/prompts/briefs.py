"""What each role is told: its sections in the order in which it reads them, the task last.

One function per role. sections.py and history.py write the sections, message.py fits them. Every
brief carries the run's history, lessons and vetoes.
"""

import difflib
from collections.abc import Sequence

from kmem.explore.models.answers.schema import DiagnoserAnswer, short_hash
from kmem.explore.models.prompts.background import (
    failures_section,
    launches_section,
    pitfalls_section,
    remembered_section,
    start_section,
    structure_section,
    times_section,
)
from kmem.explore.models.prompts.history import (
    attempts_section,
    failure_sections,
    history_section,
    lessons_section,
    vetoes_section,
)
from kmem.explore.models.prompts.message import Section, Worth
from kmem.explore.models.prompts.rendering import fenced
from kmem.explore.models.prompts.sections import (
    claims_section,
    device_section,
    diagnosis_section,
    graph_section,
    module_section,
    other_kernels_section,
    parent_section,
    skill_sections,
    task_section,
)
from kmem.interfaces import UNAIDED, Assignment, Situation
from kmem.records import Attempt, Candidate, Kernel


def generator_brief(assignment: Assignment, start: Candidate | None = None) -> list[Section]:
    """What the generator is told for a first kernel.

    A task that rests on no skill is shown none: of several seeds one must not follow the others.

    Args:
        start: a kernel to begin from, that nobody has measured.
    """
    skill = assignment.task.skill
    return [
        *_setting(assignment),
        *(skill_sections(assignment, skill) if skill != UNAIDED else []),
        start_section(start.kernel if start else None, start.estimated_ms if start else None),
        remembered_section(assignment),
        other_kernels_section(assignment),
        pitfalls_section(assignment),
        *_run_so_far(assignment),
        failures_section(assignment),
        task_section(assignment.task.instruction or "Write the whole forward in Triton."),
    ]


def diagnoser_brief(situation: Situation) -> list[Section]:
    """What the diagnoser is told: the reason behind the arithmetic is to be found in the code."""
    return [
        *_setting(situation),
        parent_section(situation),
        structure_section(situation.parent),
        launches_section(situation),
        diagnosis_section(situation),
        *_run_so_far(situation),
        task_section(
            "Say what limits this kernel, and what the next profile will show once that is removed."
        ),
    ]


def planner_brief(
    situation: Situation, diagnosis: DiagnoserAnswer, allowed: Sequence[str]
) -> list[Section]:
    """What the planner is told: what to try next, among the allowed skills."""
    evidence = ", ".join(diagnosis.evidence)
    finding = (
        f"{diagnosis.bottleneck.value}: {diagnosis.cause}\nSeen in: {evidence}\n"
        f"Claimed for its cure: {diagnosis.claim}"
    )
    return [
        *_setting(situation),
        parent_section(situation),
        structure_section(situation.parent),
        launches_section(situation),
        diagnosis_section(situation),
        Section("The reason found in the code", (finding,), Worth.TASK),
        *skill_sections(situation),
        remembered_section(situation),
        other_kernels_section(situation),
        *_run_so_far(situation),
        failures_section(situation),
        task_section(
            "Choose what to try next on this kernel. The skills that may be chosen: "
            f"{', '.join(allowed)}."
        ),
    ]


def optimiser_brief(assignment: Assignment) -> list[Section]:
    """What the optimiser is told for one change to the parent."""
    task = assignment.task
    return [
        *_setting(assignment),
        parent_section(assignment),
        launches_section(assignment),
        diagnosis_section(assignment),
        *skill_sections(assignment, task.skill),
        remembered_section(assignment),
        other_kernels_section(assignment),
        pitfalls_section(assignment),
        *_run_so_far(assignment),
        failures_section(assignment),
        claims_section(task.claims),
        task_section(f"Skill: {task.skill}\nChange: {task.instruction or task.reason}"),
    ]


def repairer_brief(assignment: Assignment, failed: Attempt) -> list[Section]:
    """What the repairer is told of a failed candidate, whose task stays what the repair is for."""
    task = assignment.task
    return [
        *_setting(assignment),
        *(skill_sections(assignment, task.skill)[:1] if task.skill != UNAIDED else []),
        pitfalls_section(assignment),
        *_run_so_far(assignment),
        *failure_sections(failed),
        task_section(
            "Repair the failed file. What it is for: "
            f"{task.instruction or failed.candidate.task.instruction or task.reason}"
        ),
    ]


def reflector_brief(situation: Situation, attempts: Sequence[Attempt]) -> list[Section]:
    """What the reflector is told: the attempts of a round, and what each changed."""
    return [
        *_setting(situation),
        *([parent_section(situation), diagnosis_section(situation)] if situation.parent else []),
        *_run_so_far(situation),
        _differences_section(situation.parent, attempts),
        attempts_section(attempts, situation.lessons),
        task_section(f"Draw the lessons of round {situation.round}."),
    ]


def _setting(situation: Situation) -> list[Section]:
    return [
        module_section(situation),
        graph_section(situation),
        device_section(situation),
        times_section(situation),
    ]


def _run_so_far(situation: Situation) -> list[Section]:
    return [history_section(situation), lessons_section(situation), vetoes_section(situation)]


def _differences_section(parent: Kernel | None, attempts: Sequence[Attempt]) -> Section:
    """What each attempt changed in the parent, as unified differences; whole ones or none."""
    shown = []
    for attempt in attempts:
        kernel = attempt.candidate.kernel
        if parent is not None and kernel.parent == parent.hash:
            lines = difflib.unified_diff(
                parent.source.splitlines(), kernel.source.splitlines(), n=1, lineterm=""
            )
            change = "\n".join(list(lines)[2:])
            shown.append(f"{short_hash(kernel.hash)}\n{fenced(change, 'diff')}")
    texts = tuple("\n".join(shown[:count]) for count in range(len(shown), -1, -1))
    return Section("What the attempts changed", texts, Worth.DIFFERENCES)
