"""Plan a round: recalled winners and seeds first, later the strategy's shares of the offers."""

import random
from collections import Counter
from collections.abc import Sequence

from kmem.interfaces import GIVEN, Direction
from kmem.orchestrate.stop import has_won
from kmem.orchestrate.strategies import Offer, share_samples
from kmem.orchestrate.vetoes import Past, is_vetoed
from kmem.records import (
    Budget,
    Experience,
    Move,
    Plan,
    Recalled,
    SiteChoice,
    Strategy,
    Task,
)

#: Measured settings of one recipe for one graph from which a ranking learns more than from the
#: winner alone.
_ENOUGH_TO_RANK = 4


def plan_first_round(
    recalled: Sequence[Recalled],
    directions: Sequence[Direction],
    budget: Budget,
    strategy: Strategy,
    *,
    experience: Sequence[Experience] = (),
    rewrites: bool = True,
) -> Plan:
    """Round 0: what memory recalls, and a seed in every direction.

    Best-of-n spends the samples of all rounds here. An exact hit is verified alone, before anything
    else is spent, unless a recipe that wrote it has changed since, or the user's own kernel
    competes with it: then it goes in front of the seeds. A near hit goes in front of the seeds if
    its graph is known for little else; where memory tells how many settings fared there, the
    ranking of the seeds has learnt from all of them (explore/recipes/calibration.py).

    Args:
        experience: what memory knows of other graphs' settings.
        rewrites: whether an author works in this run that writes a kernel again from remembered
            choices.
    """
    exact = [
        hit
        for hit in recalled
        if hit.exact and has_won(hit.outcome) and (hit.source or (hit.outcome.choices and rewrites))
    ]
    has_start = any(direction.author == GIVEN for direction in directions)
    if exact and not exact[0].aged and not has_start:
        outcome = exact[0].outcome
        reason = (
            f"memory holds a winner for this very graph ({outcome.latency_ms:.4g} ms on "
            f"{outcome.device})"
        )
        return Plan(
            (Task(Move.RECALL, outcome.skill, None, 1, reason, outcome.choices),), (), reason
        )
    tasks = []
    settings_of = Counter(
        (graph, recipe)
        for graph, recipe, _ in {(entry.graph, entry.recipe, entry.knobs) for entry in experience}
    )
    seen: set[tuple[SiteChoice, ...]] = set()
    for hit in recalled:
        if hit not in exact[:1] and all(
            settings_of[hit.outcome.graph_hash, choice.recipe] >= _ENOUGH_TO_RANK
            for choice in hit.outcome.choices
        ):
            continue
        if has_start and hit in exact[:1] and not hit.outcome.choices:  # a model's own text
            reason = "memory holds a winner for this very graph"
            tasks.append(Task(Move.RECALL, hit.outcome.skill, None, 1, reason))
        if rewrites and hit.outcome.choices and hit.outcome.choices not in seen and len(seen) < 2:
            seen.add(hit.outcome.choices)
            reason = f"memory holds a winner for a like graph (size distance {hit.distance:.2f})"
            if hit in exact[:1]:
                changed = ", by a recipe that has changed" if hit.aged else ""
                reason = f"memory holds a winner for this very graph{changed}"
            tasks.append(Task(Move.RECALL, hit.outcome.skill, None, 1, reason, hit.outcome.choices))
    samples = budget.candidates_per_round * (
        budget.rounds + 1 if strategy is Strategy.BEST_OF_N else 1
    )
    tasks += plan_seeds(directions, samples)
    if not tasks:
        return Plan((), (), "no executable skill matches any part of the module")
    return Plan(
        tuple(tasks),
        (),
        f"directions to begin in: {len(directions)}; like winners recalled: {len(seen)}",
    )


def is_recall_alone(plan: Plan) -> bool:
    """Whether a first round only tries what memory holds for this very graph."""
    return bool(plan.tasks) and all(task.move is Move.RECALL for task in plan.tasks)


def plan_after_recall(recalled: Plan, otherwise: Plan) -> Plan:
    """A first round whose remembered winner did not hold, followed by what it would have been."""
    reason = f"{recalled.reason}, which does not hold here; {otherwise.reason}"
    return Plan((*recalled.tasks, *otherwise.tasks), otherwise.vetoes, reason)


def plan_seeds(directions: Sequence[Direction], samples: int) -> list[Task]:
    """One task per direction, in the order in which they are named, with equal samples.

    Each has at least two samples; where there are fewer samples than directions, the first
    directions have one each.
    """
    if samples < len(directions):
        return [make_task(direction, None, 1) for direction in directions[:samples]]
    share = max(2, samples // max(1, len(directions)))
    return [make_task(direction, None, share) for direction in directions]


def plan_round(
    number: int,
    offers: Sequence[Offer],
    past: Past,
    strategy: Strategy,
    budget: Budget,
    seed: int,
) -> Plan:
    """Rounds after the first: the strategy's shares of what is offered and not vetoed.

    If nothing has passed yet, the round seeds again.
    """
    open_offers = [
        Offer(
            offer.parent,
            tuple(
                direction
                for direction in offer.directions
                if not is_vetoed(direction, offer.parent_hash, past.vetoes)
            ),
        )
        for offer in offers
    ]
    if not any(offer.parent for offer in open_offers):
        seeds = plan_seeds(
            [direction for offer in open_offers for direction in offer.directions],
            budget.candidates_per_round,
        )
        return Plan(
            tuple(seeds),
            tuple(past.vetoes),
            "nothing has passed yet: begin again, further down the ranking",
        )
    shares = share_samples(
        strategy,
        open_offers,
        past,
        budget.candidates_per_round,
        random.Random(f"{seed}:{number}"),
    )
    if not shares:
        reason = "the authors have nothing to propose"
        if any(offer.directions for offer in offers):
            reason = "everything proposed is refuted in this run"
        return Plan((), tuple(past.vetoes), reason)
    tasks = tuple(make_task(share.direction, share.parent, share.samples) for share in shares)
    parents = len({share.parent for share in shares})
    samples = sum(share.samples for share in shares)
    kernels = "one kernel" if parents == 1 else f"{parents} kernels"
    return Plan(
        tasks,
        tuple(past.vetoes),
        f"{strategy.value}: {samples} samples, {len(tasks)} tasks, from {kernels}",
    )


def make_task(direction: Direction, parent: str | None, samples: int) -> Task:
    """The task of taking a direction from a parent (hash)."""
    return Task(
        direction.move,
        direction.skill,
        parent,
        samples,
        direction.reason,
        author=direction.author,
        claims=direction.claims,
        instruction=direction.instruction,
    )
