"""What a run may still expect of its next measurements, by how earlier searches came down.

The next measurements are worth it if they are expected to bring their share of what a round must
bring to count (stop.MIN_IMPROVEMENT). What they bring is a mean of logarithms of speedups: over the
gain that each earlier search had from as many measurements at the same point, weighed by how alike
its graph is; over this run's own last gain; and over a guess for a search that nobody knows. A
search that ended before that point says nothing of it, so that runs which memory cut short do not
confirm themselves.

Mistaken memory costs little, whatever it says: searches that others recorded are together worth no
more than one of this memory's own, and count only once a whole round is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.memory.ledger.graphs import size_distance
from kmem.orchestrate.stop import MIN_IMPROVEMENT
from kmem.records import Attempt, Descent, Status

#: The measurements of a first round after which a run asks whether the rest is worth it: those of
#: its best guess and of one guess in each of the next directions (run/loop.py).
FIRST_STOPS = (1, 4)
#: What others' searches are worth together, in searches of this memory's own.
_OTHERS_TOGETHER = 1.0
#: The gain of a search in which nothing had passed before, in the logarithm: as good as any.
_FROM_NOTHING = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """What sources count for in the expected gain.

    Fitted by `tools/fit_stopping.py` on half of the landscapes in db/evidence; the other half was
    set aside.
    """

    other_graph: float = 0.05  # a search of a graph of another structure
    same_recipe: float = 0.2  # and of one that a recipe of this run wrote kernels for
    own_gain: float = 0.5  # what this run gained by its last measurements
    unknown: float = 0.25  # a search that nobody knows
    unknown_gain: float = 0.01  # and what its next round brings, in the logarithm


WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Here:
    """Where a run stands: its graph, and the best time after each of its measurements so far.

    `before` is how many of these there were when it last asked, 0 for none.
    """

    structure: str
    sizes: tuple[int, ...]
    recipes: tuple[str, ...]
    best_ms: tuple[float | None, ...]
    before: int
    in_first_round: bool


def best_after_each(attempts: Sequence[Attempt]) -> tuple[float | None, ...]:
    """The best time after each measurement of a run; what did not build is none."""
    falling: list[float | None] = []
    for attempt in attempts:
        if attempt.measurement.status is not Status.BUILD_FAILED:
            times = (falling[-1] if falling else None, attempt.measurement.latency_ms)
            falling.append(min((ms for ms in times if ms is not None), default=None))
    return tuple(falling)


def expected_gain(
    here: Here, descents: Sequence[Descent], more: int, weights: Weights = WEIGHTS
) -> float | None:
    """The logarithm of the speedup that so many more measurements should bring.

    None where memory knows no search that went so far, and while nothing has passed.
    """
    spent = len(here.best_ms)
    if not spent or here.best_ms[-1] is None:
        return None
    usable = [each for each in descents if each.is_own or not here.in_first_round]
    told = [
        (likeness(here, descent, weights) * descent.trust, gained, descent.is_own)
        for descent in usable
        if (gained := _gain(descent.best_ms, spent, more)) is not None
    ]
    if not told:
        return None
    others_weigh = sum(weight for weight, _, is_own in told if not is_own)
    scale = min(1.0, _OTHERS_TOGETHER / others_weigh) if others_weigh else 1.0
    counted = [(weight * (1.0 if is_own else scale), gained) for weight, gained, is_own in told]
    counted.append((weights.unknown, weights.unknown_gain))
    if here.before:
        counted.append((weights.own_gain, fallen(here.best_ms, here.before, spent)))
    return sum(weight * gained for weight, gained in counted) / sum(w for w, _ in counted)


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
    """What a search gained by its next measurements; None unless it made at least half of them."""
    if len(best_ms) < spent + max(1, more // 2):
        return None
    return fallen(best_ms, spent, min(spent + more, len(best_ms)))


def fallen(best_ms: Sequence[float | None], first: int, last: int) -> float:
    """The logarithm of the speedup between two counts of measurements."""
    before, after = best_ms[first - 1], best_ms[last - 1]
    if after is None:
        return 0.0
    return math.log(before / after) if before is not None else _FROM_NOTHING
