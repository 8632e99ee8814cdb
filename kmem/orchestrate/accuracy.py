"""Accuracy as a move: a kernel refused for its error is tried again one rung up the ladder.

A recipe's precision ladder is its knob `ACCURACY` (`kmem.recipes.Recipe.more_accurate`). Which site
of a module errs is not known from its outputs, so all its sites that have a ladder climb together.
The running statistics of a batch norm do tell: then its own site climbs, and what it normalises.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from kmem.orchestrate.lineage import kind, origin
from kmem.problem.traced import TracedProblem
from kmem.recipes import ACCURACY, Recipe, find_site, rung_of
from kmem.records import (
    Attempt,
    ErrorReport,
    Kernel,
    Measurement,
    Move,
    SiteChoice,
    Status,
    Task,
)
from kmem.rewrites import Rewrites

#: An error up to so many times its allowance is one that better sums can mend.
_NEAR = 10.0
#: What products of a single rounded term err (TF32, fp16), however little is allowed.
_ROUNDED = (2.0**-16, 2.0**-10)
#: What the judge calls an error in a buffer that a forward changes, before the buffer's name.
_BUFFER = "buffer "
#: Kernels of one kind that climb at once, those predicted fastest: the others of the round would
#: err alike, and later ones begin on the rung that was found necessary.
_CLIMBS_AT_ONCE = 3


def near_miss(measurement: Measurement) -> ErrorReport | None:
    """The error that a kernel was refused for, if more accurate arithmetic may mend it.

    It is within a factor 10 of the allowance, or what operands rounded to ten bits cost.
    """
    if measurement.status is not Status.WRONG_VALUES or not measurement.errors:
        return None
    last = measurement.errors[-1]  # the judge stops at the first that is too large
    is_rounded = _ROUNDED[0] <= last.relative_error <= _ROUNDED[1]
    return last if last.excess > 1.0 and (last.excess <= _NEAR or is_rounded) else None


def next_rungs(
    kernel: Kernel,
    error: ErrorReport,
    traced: TracedProblem,
    recipes: Mapping[str, Recipe],
    rewrites: Rewrites,
) -> tuple[SiteChoice, ...] | None:
    """The choices of a kernel with the ladders that may mend an error one rung further up.

    Returns: None if none goes further.
    """
    form = rewrites.apply(traced, kernel.choices)
    if form is None:
        return None
    for climbing in (_blamed(kernel.choices, error, form.traced, recipes), kernel.choices):
        above = tuple(
            _climbed(choice, form.traced, recipes) if choice in climbing else choice
            for choice in kernel.choices
        )
        if above != kernel.choices:
            return above
    return None


def _blamed(
    choices: Sequence[SiteChoice],
    error: ErrorReport,
    traced: TracedProblem,
    recipes: Mapping[str, Recipe],
) -> Sequence[SiteChoice]:
    """Those of a kernel's choices at whose sites an error may have come about.

    The judge compares buffers in the module's order, and those before were right: so of a batch
    norm's the norm and what it normalises are to blame. Of any other value all may be.
    """
    graph = traced.graph
    buffers = {f"{_BUFFER}{each.target}": each.name for each in graph.placeholders if each.target}
    if error.family not in buffers:
        return choices
    norms = graph.users(buffers[error.family])
    near = {norm.name for norm in norms} | {name for norm in norms for name in norm.refs()[:1]}
    return [
        choice
        for choice in choices
        if choice.recipe in recipes
        and (site := find_site(recipes[choice.recipe], graph, traced.contract, choice)) is not None
        and not near.isdisjoint(site.nodes)
    ] or choices


def _climbed(
    choice: SiteChoice, traced: TracedProblem, recipes: Mapping[str, Recipe]
) -> SiteChoice:
    recipe = recipes.get(choice.recipe)
    if recipe is None:
        return choice
    site = find_site(recipe, traced.graph, traced.contract, choice)
    above = recipe.more_accurate(site, dict(choice.knobs), traced.device) if site else None
    return replace(choice, knobs=tuple(sorted(above.items()))) if above else choice


def describe_climb(before: Sequence[SiteChoice], after: Sequence[SiteChoice] | None) -> str:
    """Which rung is tried next, for people."""
    if after is None:
        return "no rung of its precision ladder is above"
    steps = [
        f"{new.recipe} at {new.site} with {ACCURACY} {rung_of(old) or 0} -> {rung_of(new)}"
        for old, new in zip(before, after, strict=True)
        if old != new
    ]
    return f"next: {', '.join(steps)}"


def plan_climbs(
    failed: Sequence[Attempt],
    history: Sequence[Attempt],
    traced: TracedProblem,
    recipes: Mapping[str, Recipe],
    rewrites: Rewrites,
) -> list[Task]:
    """A task one rung up for each attempt that narrowly missed the accuracy contract.

    Of attempts of one kind, the few that are predicted to be fastest.

    Args:
        failed: attempts just measured or verified; others among them are passed over.
    """
    near = [attempt for attempt in failed if near_miss(attempt.measurement) is not None]
    tried = {attempt.candidate.kernel.choices for attempt in history}
    tasks = []
    for _, alike in groupby(sorted(near, key=kind), key=kind):
        for attempt in sorted(alike, key=_promise)[:_CLIMBS_AT_ONCE]:
            kernel = attempt.candidate.kernel
            error = attempt.measurement.errors[-1]
            above = next_rungs(kernel, error, traced, recipes, rewrites)
            if above is None or above in tried:
                continue
            tried.add(above)
            first = origin(attempt.candidate.task, history)
            reason = (
                f"{error.excess:.2g} times the allowed error on family {error.family}; "
                f"{describe_climb(kernel.choices, above)}"
            )
            tasks.append(
                Task(Move.CLIMB, first.skill, kernel.hash, 1, reason, above, claims=first.claims)
            )
    return tasks


def _promise(attempt: Attempt) -> float:
    return attempt.candidate.estimated_ms or 0.0


def needed_rungs(
    history: Sequence[Attempt],
    traced: TracedProblem,
    recipes: Mapping[str, Recipe],
    rewrites: Rewrites,
    remembered: Iterable[SiteChoice] = (),
) -> dict[tuple[str, str], int]:
    """The lowest rung that is worth trying, by recipe and site.

    Args:
        remembered: choices whose rungs earlier runs on this graph climbed to.
    """
    needed: dict[tuple[str, str], int] = {}

    def need(choice: SiteChoice, rung: int) -> None:
        place = choice.recipe, choice.site
        needed[place] = max(rung, needed.get(place, 0))

    for choice in remembered:
        need(choice, rung_of(choice) or 0)
    for attempt in history:
        error, kernel = near_miss(attempt.measurement), attempt.candidate.kernel
        above = error and next_rungs(kernel, error, traced, recipes, rewrites)
        for old, new in zip(kernel.choices, above or (), strict=False):
            if (rung := rung_of(new)) is not None and new != old:
                need(old, rung)
    return needed
