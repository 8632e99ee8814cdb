"""A finished run as its report tells it, and what follows from its records by counting."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kmem.codegen.module.counters import is_counter
from kmem.explore.models.cost.usage import Usage
from kmem.memory.runs.runs import RoundDiagnosis, RoundPlan, Verdict
from kmem.problem.costs.bound import node_costs_ms
from kmem.records import Attempt, Lesson, Run, RunResult, SiteChoice, Status

if TYPE_CHECKING:
    from kmem.run.setup.session import Session  # torch, which `kmem runs --help` does not need


@dataclass(frozen=True, slots=True)
class Executable:
    """What recipes and rewrites could do in the run."""

    recipes: frozenset[str]  # skills that have a recipe or a rewrite
    matching: frozenset[str]  # those of them that match something in this graph
    nodes: Mapping[tuple[str, str], tuple[str, ...]]  # of the graph, by recipe and site
    rewritings: Mapping[SiteChoice, str] = field(default_factory=dict)  # what each step did
    computing: tuple[str, ...] | None = None  # the nodes that take time; None: not known

    @classmethod
    def of(cls, session: "Session") -> "Executable":
        """What a run's session knows of it."""
        forms = session.rewritten.values()
        traced = session.traced
        costs = node_costs_ms(traced.graph, traced.device, traced.contract)
        stepped = {step.recipe for form in forms for step in form.steps}
        return cls(
            frozenset({*session.recipes, *session.rewrites.loaded}),
            frozenset({*session.writable, *stepped}),
            session.site_nodes,
            {step: form.reasons[place] for form in forms for place, step in enumerate(form.steps)},
            tuple(
                node.name
                for node in traced.graph.nodes
                if costs[node.name] > 0 and not is_counter(traced.graph, node)
            ),
        )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a report tells: what the run was asked, what it tried and learnt, what came of it."""

    run: Run
    result: RunResult
    attempts: Sequence[Attempt]
    diagnoses: Sequence[RoundDiagnosis] = ()
    lessons: Sequence[Lesson] = ()
    notes: Sequence[str] = ()  # what the user should know of how the run went
    usage: Sequence[Usage] = ()  # of language models
    plans: Sequence[RoundPlan] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # final ones, by kernel hash
    executable: Executable | None = None  # None where the skills of then are not at hand


def count_judged(finished: FinishedRun) -> str:
    """What became of every candidate, in a sentence whose numbers add up."""
    statuses = Counter(attempt.measurement.status for attempt in finished.attempts)
    unbuilt = statuses.pop(Status.BUILD_FAILED, 0)
    screened = sum(statuses.values())
    passed = statuses.pop(Status.PASSED, 0)
    unreached = statuses.pop(Status.INTERRUPTED, 0)
    verdicts = finished.result.measurements - screened
    text = f"{screened} candidates screened ({passed} passed"
    if refused := sum(statuses.values()):
        text += f", {refused} refused"
    if unreached:
        text += f", {unreached} without a verdict"
    text += ")"
    if verdicts > 0:
        text += f" and {verdicts} final verdict{'s' if verdicts > 1 else ''}"
    if unbuilt:
        text += f"; {unbuilt} more did not compile"
    planned = sum(task.samples for entry in finished.plans for task in entry.plan.tasks)
    if (unjudged := planned - len(finished.attempts)) > 0:
        why = describe_unjudged(estimated=finished.result.estimated)
        text += f"; {unjudged} more planned and not judged: {why}"
    return text


def describe_unjudged(*, estimated: bool) -> str:
    """What becomes of planned candidates that are no attempts.

    Args:
        estimated: whether there was no GPU.
    """
    rest = "not written, the same as another, or the time was up"
    if not estimated:
        return rest
    return f"{rest}; without a GPU only those with the best estimates of a round are proved"


def why_not_tried(finished: FinishedRun, skill: str) -> str:
    """Why a skill that was offered made no attempt."""
    for entry in finished.plans:
        for veto in entry.plan.vetoes:
            if veto.skill == skill:
                return f"vetoed: {veto.reason}"
    if any(task.skill == skill for entry in finished.plans for task in entry.plan.tasks):
        return "planned, but no candidate of it was judged"
    known = finished.executable
    if known is not None and skill not in known.recipes:
        if "llm" in finished.run.authors:
            return "no recipe writes it, and the language model was not sent there"
        return "no recipe writes it: it needs a language model (`--author both -m MODEL`)"
    if known is not None and skill not in known.matching:
        return "its recipe matches no part of this graph"
    return "the run ended before its turn"
