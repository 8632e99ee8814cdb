"""The strategies: from which kernels a round goes on, and which direction gets how many samples.

- greedy: the best kernel, the most promising direction: all samples.
- beam: BEAM_PARENTS kernels that differ in kind, BEAM_DIRECTIONS distinct directions of each: equal
  shares.
- bandit: the best kernel, every direction, by Thompson sampling.
- best-of-n: no parent, no diagnosis, no history: all the run's samples as independent first kernels
  (plan.py), the control that search must beat.

Promise is the order in which the authors name directions, after those that were tried from this
kernel without gain or whose claims were falsified, fewest such rounds first. Everything is
deterministic given the seed.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.interfaces import Direction
from kmem.orchestrate.lineage import Arm, arm_of, arms_within, base_of, kind
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.orchestrate.vetoes import Past, by_arm
from kmem.records import Attempt, Strategy

BEAM_PARENTS = 3
BEAM_DIRECTIONS = 2
#: A falsified claim counts as so many tries: it narrows the guess about an arm, so that it is
#: chosen for its time, not for hope.
_TRIES_PER_DOUBT = 4


@dataclass(frozen=True, slots=True)
class Offer:
    """A kernel to go on from, and what the authors could do, most promising first.

    The parent is None where there is no kernel to go on from.
    """

    parent: Attempt | None
    directions: tuple[Direction, ...]

    @property
    def parent_hash(self) -> str | None:
        return self.parent.candidate.kernel.hash if self.parent else None


@dataclass(frozen=True, slots=True)
class Share:
    """How many samples a direction gets from a parent (hash)."""

    parent: str | None
    direction: Direction
    samples: int


def choose_parents(strategy: Strategy, ranking: Sequence[Attempt]) -> list[Attempt]:
    """The kernels a strategy wants to go on from, fastest first.

    Args:
        ranking: attempts that passed, fastest first.
    """
    if strategy is Strategy.BEST_OF_N:
        return []
    if strategy is not Strategy.BEAM:
        return list(ranking[:1])
    parents: list[Attempt] = []
    for attempt in ranking:
        if len(parents) < BEAM_PARENTS and kind(attempt) not in map(kind, parents):
            parents.append(attempt)
    return parents


def share_samples(
    strategy: Strategy,
    offers: Sequence[Offer],
    past: Past,
    samples: int,
    generator: random.Random,
) -> list[Share]:
    """Deal a round's samples to directions that are not vetoed; every share has at least one."""
    offers = [offer for offer in offers if offer.directions]
    if not offers:
        return []
    if strategy is Strategy.GREEDY:
        return [Share(offers[0].parent_hash, _by_promise(offers[0], past)[0], samples)]
    if strategy is Strategy.BEAM:
        chosen = [
            (offer, direction)
            for offer in offers
            for direction in _by_promise(offer, past)[:BEAM_DIRECTIONS]
        ]
        return _deal_equally(chosen, samples)
    return _thompson(offers, past, samples, generator)


def _by_promise(offer: Offer, past: Past) -> list[Direction]:
    """The directions of an offer, one for each arm, most promising first."""
    fruitless: dict[Arm, set[int]] = {}
    for attempt in past.attempts:
        gained = attempt.speedup is not None and attempt.speedup >= MIN_IMPROVEMENT
        if not gained and base_of(attempt.candidate.task, past.attempts) == offer.parent_hash:
            fruitless.setdefault(arm_of(attempt.candidate.task), set()).add(attempt.round)
    distinct = list(
        {arm_of(direction): direction for direction in reversed(offer.directions)}.values()
    )[::-1]
    return sorted(
        distinct,
        key=lambda direction: (
            len(fruitless.get(arm_of(direction), ())) + past.doubts.get(arm_of(direction), 0)
        ),
    )


def _deal_equally(chosen: Sequence[tuple[Offer, Direction]], samples: int) -> list[Share]:
    """Equal shares, and what is left over to the first; a share of nothing is left out."""
    each, over = divmod(samples, len(chosen))
    shares = [
        Share(offer.parent_hash, direction, each + (place < over))
        for place, (offer, direction) in enumerate(chosen)
    ]
    return [share for share in shares if share.samples]


def _thompson(
    offers: Sequence[Offer], past: Past, samples: int, generator: random.Random
) -> list[Share]:
    """Each sample goes to the arm with the smallest draw of log time.

    An arm's draw is normal around the log of the time it promises (see `_promised_ms`), with
    deviation 0.5 / sqrt(tries + 1) (half an e-fold for an untried arm, whose mean is that of the
    best arm). Source: Thompson sampling, Russo et al., "A Tutorial on Thompson Sampling", 2018,
    section 3.
    """
    groups = by_arm(past.attempts)
    arms = [(offer, direction) for offer in offers for direction in offer.directions]
    times = {}
    for place, (offer, direction) in enumerate(arms):
        passed = [
            attempt
            for attempt in groups.get(arm_of(direction), ())
            if attempt.measurement.timing is not None
        ]
        if passed:
            times[place] = math.log(_promised_ms(direction, offer, passed, past.attempts))
    optimistic = min(times.values(), default=0.0)
    counts = [0] * len(arms)
    for _ in range(samples):
        draws = []
        for place, (_, direction) in enumerate(arms):
            arm = arm_of(direction)
            tries = len(groups.get(arm, ())) + counts[place]
            tries += _TRIES_PER_DOUBT * past.doubts.get(arm, 0)
            draws.append(generator.gauss(times.get(place, optimistic), 0.5 / math.sqrt(tries + 1)))
        counts[draws.index(min(draws))] += 1
    return [
        Share(offer.parent_hash, direction, count)
        for (offer, direction), count in zip(arms, counts, strict=True)
        if count
    ]


def _promised_ms(
    direction: Direction, offer: Offer, passed: Sequence[Attempt], history: Sequence[Attempt]
) -> float:
    """The time that an arm promises: the best of its kernels, if the arm writes whole kernels.

    An edit told in words is worth what it gained, whatever kernel it was made to: from the kernel
    at hand it promises that kernel's time over its best gain, and nothing more once it is in that
    kernel.
    """
    gains = [attempt.speedup for attempt in passed if attempt.speedup is not None]
    if offer.parent is None or not direction.instruction or not gains:
        return min(attempt.measurement.latency_ms for attempt in passed)
    gain = 1.0 if arm_of(direction) in arms_within(offer.parent, history) else max(gains)
    return offer.parent.measurement.latency_ms / gain
