"""What a run may still expect of its next measurements, by how earlier searches came down.

The next measurements are worth it if they are expected to bring their share of what a round must
bring to count (stop.MIN_IMPROVEMENT). What they bring is a mean of logarithms of speedups: over the
gain that each earlier search had from as many measurements at the same point, weighed by how alike
its graph is; and over the prior, what a round brings in a search that nobody knows. None gains more
than the bound leaves: a search that had come to its bound tells nothing of one that is far from it,
and what one gained that had more room is taken in proportion. The prior alone is worth a round, so
that a run ends early only where memory outweighs it. What the run itself gained by its last
measurements is not counted among them, for it told no more than the prior where it was fitted;
rounds without a gain end a run by a rule of their own (stop.ROUNDS_WITHOUT_GAIN).

A search that ended before that point tells by its last measurements, for later ones bring no more
on average. One too short for that says nothing, so that runs which memory cut short in their first
round do not confirm themselves. A search that began with the winner of an earlier one tells only of
runs that stand on a remembered winner too, and of these only such with a recipe in common: what is
left behind a winner is a matter of what wrote it.

Mistaken memory costs little, whatever it says: searches that others recorded are together worth no
more than one of this memory's own, and count only once a whole round is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.memory.ledger.graphs import size_distance
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, Descent, Status

#: What others' searches are worth together, in searches of this memory's own.
_OTHERS_TOGETHER = 1.0
#: What the bound leaves, in the logarithm, of a kernel that has come to it (less than a tenth), and
#: of one that is far from it (more than a quarter).
_AT_BOUND, _FAR_FROM_BOUND = math.log(1.1), math.log(1.25)
#: The gain of a search in which nothing had passed before, in the logarithm: as good as any.
_FROM_NOTHING = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """What sources count for in the expected gain.

    Fitted by `tools/fit_stopping.py` on half of the operator classes of the landscapes in
    db/evidence; the other half was set aside.
    """

    other_graph: float = 0.3  # a search of a graph of another structure
    same_recipe: float = 0.3  # and of one that a recipe of this run wrote kernels for
    unknown: float = 0.2  # a search that nobody knows: the prior
    unknown_gain: float = 0.011  # and what a round behind its first brings, in the logarithm
    first_gain: float = 0.032  # what each part of its first round brings, behind the very first


WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Here:
    """Where a run stands: its graph, and the best time after each of its measurements so far.

    `from_winner`: its best kernel is as fast as the fastest that memory holds for this very graph,
    and `best_ms` does not go back to the search that found it.
    """

    structure: str
    sizes: tuple[int, ...]
    recipes: tuple[str, ...]
    best_ms: tuple[float | None, ...]
    in_first_round: bool
    bound_ms: float | None = None
    from_winner: bool = False


def best_after_each(attempts: Sequence[Attempt]) -> tuple[float | None, ...]:
    """The best time after each measurement of a run; what did not build is none."""
    falling: list[float | None] = []
    for attempt in attempts:
        if attempt.measurement.status is not Status.BUILD_FAILED:
            times = (falling[-1] if falling else None, attempt.measurement.latency_ms)
            falling.append(min((ms for ms in times if ms is not None), default=None))
    return tuple(falling)


def expected_gain(
    here: Here,
    descents: Sequence[Descent],
    more: int,
    round_size: int,
    weights: Weights = WEIGHTS,
) -> float | None:
    """The logarithm of the speedup that so many more measurements should bring.

    Fewer than a round are the rest of the first one. None where memory knows no search that tells
    of it, and while nothing has passed.
    """
    spent = len(here.best_ms)
    if not spent or here.best_ms[-1] is None:
        return None
    room = _room(here.best_ms, here.bound_ms)
    told = []
    for descent in descents:
        gained = _gain(descent.best_ms, spent, more)
        there = _room(descent.best_ms[:spent], descent.bound_ms)
        if gained is None or not _is_usable(here, descent) or _came_further(there, room):
            continue
        if room is not None and there:
            gained *= min(1.0, room / there)
        told.append((likeness(here, descent, weights) * descent.trust, gained, descent.is_own))
    if not told:
        return None
    others_weigh = sum(weight for weight, _, is_own in told if not is_own)
    scale = min(1.0, _OTHERS_TOGETHER / others_weigh) if others_weigh else 1.0
    counted = [(weight * (1.0 if is_own else scale), gained) for weight, gained, is_own in told]
    prior = weights.first_gain if more < round_size else weights.unknown_gain
    counted.append((weights.unknown, prior if room is None else min(prior, room)))
    return sum(weight * gained for weight, gained in counted) / sum(w for w, _ in counted)


def _is_usable(here: Here, descent: Descent) -> bool:
    """Whether a search is of the kind that tells of this run."""
    if not descent.is_own and here.in_first_round:
        return False
    if descent.from_winner is not here.from_winner:
        return False
    is_alike = set(descent.recipes) & set(here.recipes) or descent.structure == here.structure
    return bool(is_alike) or not here.from_winner


def _came_further(there: float | None, room: float | None) -> bool:
    """Whether a search was at its bound where a run has room left."""
    if there is None or room is None:
        return False
    return there < _AT_BOUND and room > _FAR_FROM_BOUND


def _room(best_ms: Sequence[float | None], bound_ms: float | None) -> float | None:
    """The logarithm of the speedup that the bound leaves; None where one of them is unknown."""
    best = best_ms[-1] if best_ms else None
    return max(0.0, math.log(best / bound_ms)) if best and bound_ms else None


def share_of_a_round(more: int, round_size: int) -> float:
    """The logarithm of the speedup that so many measurements must bring to be worth it."""
    return math.log(MIN_IMPROVEMENT) * more / round_size


def likeness(here: Here, descent: Descent, weights: Weights = WEIGHTS) -> float:
    """How much a search of another graph tells of this run, 0 to 1."""
    least = weights.other_graph
    if set(descent.recipes) & set(here.recipes):
        least = weights.same_recipe
    if descent.structure != here.structure or len(descent.sizes) != len(here.sizes):
        return least
    import numpy as np  # as late as everywhere in kmem

    sizes = np.array(here.sizes, dtype=np.int64)
    others = np.array(descent.sizes, dtype=np.int64).reshape(1, -1)
    apart = float(size_distance(sizes, others)[0])
    return max(least, weights.other_graph + (1 - weights.other_graph) * math.exp(-apart))


def _gain(best_ms: Sequence[float | None], spent: int, more: int) -> float | None:
    """What a search gained by its next measurements, or by its last ones if it ended before.

    It ended before if it made less than half of the next ones. None if it made too few for either.
    """
    end = len(best_ms)
    if end >= spent + max(1, more // 2):
        return fallen(best_ms, spent, min(spent + more, end))
    return fallen(best_ms, end - more, end) if end > more else None


def fallen(best_ms: Sequence[float | None], first: int, last: int) -> float:
    """The logarithm of the speedup between two counts of measurements."""
    before, after = best_ms[first - 1], best_ms[last - 1]
    if after is None:
        return 0.0
    return math.log(before / after) if before is not None else _FROM_NOTHING
