"""The arms of an ablation: what the memory of a run on one problem holds.

It is made from what other runs left:

- off: no memory at all.
- read: the outcomes of searches without memory on the other problems; nothing is added.
- rw: the outcomes of this arm's own runs on the problems that came earlier in the order; it grows.
- placebo: as read, but every result is dealt anew over all outcomes: as many outcomes, of the same
  recipes, that share nothing with what was measured.
- shuffled: as read, but what was done is dealt anew over the results of each recipe: it knows how
  far each problem's searches came, and that they end, not by what.
- poison: as read, but by a stranger and the wrong way round: of each graph the slowest settings are
  told as the fastest, and to have been found at once.
- oracle: the best recorded setting of the nearest other size of the same problem: what perfect
  memory of one run would offer.

No arm ever holds an outcome of the problem's own graph.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from kmem.learning.landscape import Landscape
from kmem.memory.ledger.graphs import size_distance
from kmem.records import Move, Outcome, SiteChoice


class Arm(Enum):
    """What memory a run has."""

    OFF = "off"
    READ = "read"
    RW = "rw"
    PLACEBO = "placebo"
    SHUFFLED = "shuffled"
    POISON = "poison"
    ORACLE = "oracle"


#: How each arm's runs use their memory: kmem's own --memory.
MEMORY_MODES = {
    Arm.OFF: "off",
    Arm.READ: "read",
    Arm.RW: "rw",
    Arm.PLACEBO: "read",
    Arm.SHUFFLED: "read",
    Arm.POISON: "read",
    Arm.ORACLE: "read",
}
#: What of an outcome says what came of it.
_RESULTS = (
    "status",
    "latency_ms",
    "latency_ms_p20",
    "latency_ms_p80",
    "parent_ms",
    "baseline_ms",
    "ratio",
    "ratio_low",
    "ratio_high",
)
#: Outcomes of simulated runs carry no time of their own: the same ablation has the same outcomes.
CREATED_AT = "2000-01-01T00:00:00.000+00:00"


def moment(place: int) -> str:
    """When the outcome at a place of a simulated run counts as recorded: one a millisecond."""
    begin = datetime.fromisoformat(CREATED_AT)
    return (begin + timedelta(milliseconds=place)).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Source:
    """A problem whose outcomes a memory may hold."""

    name: str
    family: str
    graph_hash: str


def admissible(sources: Sequence[Source], target: Source, left_out: frozenset[str]) -> list[Source]:
    """The problems that a run on `target` may know of.

    Never its own graph, and nothing of the operator classes left out.
    """
    return [
        source
        for source in sources
        if source.graph_hash != target.graph_hash and source.family not in left_out
    ]


def deal_results(outcomes: Sequence[Outcome], seed: int) -> list[Outcome]:
    """A placebo: what came of each outcome is dealt anew over all of them, of whatever graph.

    What was done stays, and so do graphs and their numbers of outcomes; times belong to nothing.
    Skills' names are exchanged, too.
    """
    generator = random.Random(f"results:{seed}")
    givers = generator.sample(outcomes, len(outcomes))
    dealt = [
        replace(outcome, **{name: getattr(giver, name) for name in _RESULTS})
        for outcome, giver in zip(outcomes, givers, strict=True)
    ]
    return _exchange_skills(dealt, generator)


def _exchange_skills(outcomes: Sequence[Outcome], generator: random.Random) -> list[Outcome]:
    skills = sorted({outcome.skill for outcome in outcomes})
    exchanged = dict(zip(skills, generator.sample(skills, len(skills)), strict=True))
    return [replace(outcome, skill=exchanged[outcome.skill]) for outcome in outcomes]


def shuffle_outcomes(outcomes: Sequence[Outcome], seed: int) -> list[Outcome]:
    """Outcomes in which what was done, and when, is dealt anew over the results of each recipe.

    Searches in a random order gain less and less, too: that is left of what memory knows. Done is
    which knobs and which kernel. Skills' names are exchanged, too. Knobs stay with their recipe, so
    that what is recalled can be written and costs what a real recollection costs.
    """
    generator = random.Random(f"placebo:{seed}")
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, outcome in enumerate(outcomes):
        groups.setdefault(tuple(choice.recipe for choice in outcome.choices), []).append(place)
    shuffled = list(outcomes)
    for _, places in sorted(groups.items()):
        dealt = generator.sample(places, len(places))
        for place, giver in zip(places, dealt, strict=True):
            deed = outcomes[giver]
            shuffled[place] = replace(
                outcomes[place],
                choices=_at_sites_of(deed.choices, outcomes[place].choices),
                source_hash=deed.source_hash,
                move=deed.move,
                created_at=deed.created_at,
            )
    return _exchange_skills(shuffled, generator)


def poison_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What a mistaken import holds: a graph's times turned round, its best told to come first."""
    graphs: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.latency_ms:
            graphs.setdefault(outcome.graph_hash, []).append(outcome)
    turned = []
    for found in graphs.values():
        times = [outcome.latency_ms for outcome in found if outcome.latency_ms]
        scale = min(times) * max(times)
        slowest_first = sorted(
            found, key=lambda outcome: (-(outcome.latency_ms or 0.0), outcome.hash)
        )
        turned += [
            replace(
                outcome,
                latency_ms=scale / outcome.latency_ms,
                latency_ms_p20=None,
                latency_ms_p80=None,
                parent_ms=None,
                ratio=None,
                origin="poison",
                created_at=moment(place),
            )
            for place, outcome in enumerate(slowest_first)
            if outcome.latency_ms
        ]
    return turned


def _at_sites_of(
    choices: tuple[SiteChoice, ...], here: tuple[SiteChoice, ...]
) -> tuple[SiteChoice, ...]:
    return tuple(
        replace(place, knobs=choice.knobs) for choice, place in zip(choices, here, strict=True)
    )


def nearest_other_size(landscape: Landscape, others: Sequence[Landscape]) -> Landscape | None:
    """The landscape of the same structure whose sizes are nearest; None if there is none."""
    alike = [
        other
        for other in others
        if other.header.structure_hash == landscape.header.structure_hash
        and other.header.graph_hash != landscape.header.graph_hash
    ]
    if not alike:
        return None
    import numpy as np  # as late as everywhere in kmem

    sizes, theirs = (
        np.array(given, dtype=np.int64)
        for given in (landscape.header.sizes, [other.header.sizes for other in alike])
    )
    distances = size_distance(sizes, theirs)
    return min(zip(alike, distances, strict=True), key=lambda pair: (pair[1], pair[0].name))[0]


def oracle_outcome(landscape: Landscape, like: Outcome) -> Outcome:
    """The winner of a landscape as a search would have recorded it.

    Args:
        like: any outcome of that landscape, which gives what is the same for all of them.
    """
    best = landscape.best
    eager_ms = landscape.eager.latency_ms if landscape.eager else None
    return replace(
        like,
        skill=best.choices[0].recipe,
        choices=best.choices,
        move=Move.SEED,
        status=best.status,
        latency_ms=best.latency_ms,
        latency_ms_p20=best.timing.latency_ms_p20,
        latency_ms_p80=best.timing.latency_ms_p80,
        parent_ms=None,
        parent_hash=None,
        baseline="eager" if eager_ms else None,
        baseline_ms=eager_ms,
        ratio=eager_ms / best.latency_ms if eager_ms else None,
        ratio_low=None,
        ratio_high=None,
        source_hash=best.source_hash,
    )
