"""Fit what a run expects of its next measurements: `python tools/fit_stopping.py LANDSCAPES`.

Searches without memory on every landscape show how the best time falls. On half of the operator
classes two things are taken from them for `kmem.orchestrate.yields`. The prior's gains are what the
round behind the first brought, and the parts of the first, over all of these classes: what is known
of a search that is like none. Then the weights are chosen that end runs soonest, with a memory that
grows and with one that grows of other classes alone, lose at most 0.8% of the final speed, and keep
a placebo's runs whole: a memory of as many searches whose times were dealt anew over all of them
must change nothing. The other classes are set aside; of them the figures of the chosen weights
alone are told.

Covered: when the runs of an ablation end. Not covered: that a memory which grows changes the order
of their measurements, too; `kmem memory ablate` has the last word.
"""

import argparse
import itertools
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.learning.ablation import Setup, _Bench
from kmem.learning.arms import Arm
from kmem.learning.landscape import LandscapeDirectory, is_set_aside
from kmem.orchestrate.yields import (
    WEIGHTS,
    Here,
    Weights,
    best_after_each,
    expected_gain,
    fallen,
    share_of_a_round,
)
from kmem.records import Budget, Descent, Status

#: The least final speed of the runs that are cut short, over that of whole ones: of the 1% that may
#: be lost, what is left is for classes that were not fitted.
_LEAST_SPEED = 0.992
#: The least share of its measurements that a run with a placebo keeps.
_PLACEBO = 0.995
#: Weights whose costs differ by less do the same; of these those that trust memory least are used.
_ALIKE = 0.02
#: So many placebos, and so many orders in which a memory grows: one is luck.
_DEALS, _ORDERS = 3, 6
#: The measurements of a first round after which a run asks whether the rest is worth it: those of
#: its best guess and of one guess in each of the next directions (kmem/run/loop.py).
FIRST_STOPS = (1, 4)
_ROUND = Budget().candidates_per_round


@dataclass(frozen=True)
class Search:
    """A whole search without memory: its descent, and after how many measurements it asked."""

    name: str
    family: str
    seed: int
    descent: Descent
    times_ms: tuple[float | None, ...]
    asks: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """Measurements of runs that are cut short over those of whole runs, and their final speed."""

    measurements: float
    speed: float

    def __str__(self) -> str:
        return f"{self.measurements:.0%} of the measurements at {self.speed:.4f} of the speed"


def collect(root: Path, seeds: int) -> list[Search]:
    """Every landscape searched without memory, once for each seed."""
    landscapes = [each for each in LandscapeDirectory(root).read() if each.is_searchable]
    found = []
    with TemporaryDirectory() as home:
        bench = _Bench(landscapes, Setup((Arm.OFF,), seeds), Path(home))
        for seed, (place, landscape) in itertools.product(range(seeds), enumerate(landscapes)):
            attempts, _ = bench.search(place, Arm.OFF, seed, ())
            measured = [
                each for each in attempts if each.measurement.status is not Status.BUILD_FAILED
            ]
            rounds = [each.round for each in measured]
            first = rounds.count(0)
            ends = [count for count in range(1, len(rounds)) if rounds[count] != rounds[count - 1]]
            header = landscape.header
            bound = bench.sessions[place].traced.bound
            recipes = sorted({c.recipe for each in measured for c in each.candidate.kernel.choices})
            descent = Descent(
                header.graph_hash,
                header.structure_hash,
                header.sizes,
                tuple(recipes),
                best_after_each(attempts),
                is_own=True,
                bound_ms=bound.time_ms if bound else None,
            )
            asks = (*(count for count in FIRST_STOPS if count < first), *ends)
            times = tuple(each.measurement.latency_ms for each in measured)
            found.append(Search(landscape.name, header.family, seed, descent, times, asks))
    return found


def end_of(search: Search, known: Sequence[Descent], weights: Weights) -> int:
    """After how many measurements a run would end that came down as this search did."""
    falling = search.descent.best_ms
    for place, spent in enumerate(search.asks):
        following = (*search.asks, len(falling))[place + 1]
        in_first_round = spent < search.asks[-1] and spent in FIRST_STOPS
        more = following - spent if in_first_round else _ROUND
        here = Here(
            search.descent.structure,
            search.descent.sizes,
            search.descent.recipes,
            falling[:spent],
            in_first_round,
            search.descent.bound_ms,
        )
        gain = expected_gain(here, known, more, _ROUND, weights)
        if gain is not None and gain < share_of_a_round(more, _ROUND):
            return spent
    return len(falling)


def figure(
    searches: Sequence[Search],
    families: Collection[str],
    known: Callable[[Search], Sequence[Descent]],
    weights: Weights,
) -> Figure:
    """What the weights do to the searches of some classes."""
    chosen = [each for each in searches if each.family in families]
    return _figure([(each, end_of(each, known(each), weights)) for each in chosen])


def grown_figure(
    searches: Sequence[Search],
    families: Collection[str],
    weights: Weights,
    *,
    left_out: bool = False,
) -> Figure:
    """The same of a memory that grows from problem to problem, by what these runs left alone.

    Args:
        left_out: whether a run knows nothing of its own class.
    """
    found = []
    for seed, order in itertools.product(sorted({each.seed for each in searches}), range(_ORDERS)):
        own = [each for each in searches if each.seed == seed]
        left: list[tuple[str, Descent]] = []
        for search in random.Random(f"order:{seed}:{order}").sample(own, len(own)):
            known = [each for family, each in left if not left_out or family != search.family]
            end = end_of(search, known, weights)
            cut = replace(search.descent, best_ms=search.descent.best_ms[:end])
            left.append((search.family, cut))
            if search.family in families:
                found.append((search, end))
    return _figure(found)


def _figure(found: Sequence[tuple[Search, int]]) -> Figure:
    logs = []
    for search, end in found:
        falling = search.descent.best_ms
        logs.append(math.log((falling[-1] or 1.0) / (falling[end - 1] or 1.0)))
    spent = sum(end for _, end in found)
    whole = sum(len(search.descent.best_ms) for search, _ in found)
    return Figure(spent / whole, math.exp(sum(logs) / len(logs)))


def others(search: Search, among: Sequence[Search]) -> list[Descent]:
    """The searches of other problems at the same seed."""
    return [each.descent for each in among if each.seed == search.seed and each.name != search.name]


def deal(searches: Sequence[Search], number: int) -> list[Search]:
    """The searches with their times dealt anew over all of the same seed: a placebo."""
    dealt = []
    for seed in sorted({each.seed for each in searches}):
        own = [each for each in searches if each.seed == seed]
        times = [latency_ms for each in own for latency_ms in each.times_ms]
        random.Random(f"{number}:{seed}").shuffle(times)
        for search in own:
            falling: list[float | None] = []
            for _ in search.times_ms:
                best = (falling[-1] if falling else None, times.pop())
                falling.append(min((ms for ms in best if ms), default=None))
            dealt.append(replace(search, descent=replace(search.descent, best_ms=tuple(falling))))
    return dealt


def prior_gains(searches: Sequence[Search], families: Collection[str]) -> tuple[float, float]:
    """What the round behind the first brought, for a whole round's measurements, and its parts.

    Both are logarithms, over all searches of some classes: that is what is known of one that is
    like none of them. The parts are those of the first round, behind the very first kernel; one in
    which something passed for the first time says nothing.
    """
    gained, measured, parts = 0.0, 0, []
    for search in searches:
        if search.family not in families:
            continue
        falling = search.descent.best_ms
        ends = [*(count for count in search.asks if count not in FIRST_STOPS), len(falling)]
        if len(ends) > 1:
            gained += fallen(falling, ends[0], ends[1])
            measured += ends[1] - ends[0]
        begins = [count for count in search.asks if count in FIRST_STOPS]
        for begin, end in pairwise([*begins, ends[0]]):
            if falling[begin - 1] is not None:
                parts.append(fallen(falling, begin, end))
    return _ROUND * gained / measured, sum(parts) / len(parts)


def candidates(priors: tuple[float, float]) -> list[Weights]:
    """The weights that are tried."""
    tried = itertools.product(
        (0.05, 0.1, 0.15, 0.2, 0.3), (0.2, 0.3, 0.5, 0.8), (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
    )
    unknown_gain, first_gain = (round(gain, 3) for gain in priors)
    return [
        Weights(other, same, unknown, unknown_gain, first_gain)
        for other, same, unknown in tried
        if other <= same
    ]


def choose(searches: Sequence[Search], families: Collection[str]) -> Weights:
    """The weights that save most on some classes while a placebo saves nothing."""
    placebos = [deal(searches, number) for number in range(_DEALS)]

    def cost(weights: Weights) -> float:
        grown = grown_figure(searches, families, weights)
        left_out = grown_figure(searches, families, weights, left_out=True)
        if min(grown.speed, left_out.speed) < _LEAST_SPEED:
            return math.inf
        if any(
            _placebo_figure(searches, families, weights, dealt).measurements < _PLACEBO
            for dealt in placebos
        ):
            return math.inf
        return grown.measurements + left_out.measurements

    costs = [(cost(each), each) for each in candidates(prior_gains(searches, families))]
    least = min(each for each, _ in costs)
    alike = [(each, weights) for each, weights in costs if each < least + _ALIKE]
    return min(alike, key=lambda each: (_trust(each[1]), each[0]))[1]


def _trust(weights: Weights) -> float:
    """How much a search of another graph counts beside the prior."""
    return (weights.other_graph + weights.same_recipe) / weights.unknown


def _placebo_figure(
    searches: Sequence[Search],
    families: Collection[str],
    weights: Weights,
    dealt: Sequence[Search],
) -> Figure:
    return figure(searches, families, lambda search: others(search, dealt), weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("landscapes", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    searches = collect(options.landscapes, options.seeds)
    families = sorted({each.family for each in searches})
    fitted = [family for family in families if not is_set_aside(family)]
    aside = [family for family in families if is_set_aside(family)]
    chosen = choose(searches, fitted)
    print(f"fitted on {', '.join(fitted)}: {chosen}")
    print(f"in use: {WEIGHTS}")
    dealt = deal(searches, _DEALS)
    for title, among in (("fitted on", fitted), ("set aside", aside)):
        for weights in (chosen, WEIGHTS) if chosen != WEIGHTS else (WEIGHTS,):
            print(f"{title}, grown: {grown_figure(searches, among, weights)}")
            left_out = grown_figure(searches, among, weights, left_out=True)
            print(f"{title}, class left out: {left_out}")
            read = figure(searches, among, lambda search: others(search, searches), weights)
            print(f"{title}, read: {read}")
            print(f"{title}, placebo: {_placebo_figure(searches, among, weights, dealt)}")


if __name__ == "__main__":
    main()
