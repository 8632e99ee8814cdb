"""Fit what a run expects of its next measurements: `python tools/fit_stopping.py LANDSCAPES`.

Searches without memory on every landscape show how the best time falls. On half of the operator
classes the weights of `kmem.orchestrate.yields` are chosen that end runs soonest and lose at most
half a percent of the final speed: once with the other classes' searches known and once with all.
The placebo, the same times in a random order, is held against both: what it saves, memory does not
explain. The other classes are set aside; of them the figures of the chosen weights alone are told.
"""

import argparse
import itertools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.learning.ablation import Setup, _Bench
from kmem.learning.arms import Arm
from kmem.learning.landscape import LandscapeDirectory, is_set_aside
from kmem.orchestrate.yields import (
    FIRST_STOPS,
    WEIGHTS,
    Here,
    Weights,
    best_after_each,
    expected_gain,
    share_of_a_round,
)
from kmem.records import Budget, Descent, Status

#: The least final speed of the runs that are cut short, over that of whole ones.
_LEAST_SPEED = 0.995
#: The share of its measurements that a run with a placebo must keep, and what less is charged.
_PLACEBO, _PENALTY = 0.97, 4.0
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
            recipes = sorted({c.recipe for each in measured for c in each.candidate.kernel.choices})
            descent = Descent(
                header.graph_hash,
                header.structure_hash,
                header.sizes,
                tuple(recipes),
                best_after_each(attempts),
                is_own=True,
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
        here = Here(
            search.descent.structure,
            search.descent.sizes,
            search.descent.recipes,
            falling[:spent],
            search.asks[place - 1] if place else 0,
            in_first_round=spent < search.asks[-1] and spent in FIRST_STOPS,
        )
        gain = expected_gain(here, known, following - spent, weights)
        if gain is not None and gain < share_of_a_round(following - spent, _ROUND):
            return spent
    return len(falling)


def figure(
    searches: Sequence[Search],
    families: Collection[str],
    known: Callable[[Search], Sequence[Descent]],
    weights: Weights,
) -> Figure:
    """What the weights do to the searches of some classes."""
    ends = {id(each): end_of(each, known(each), weights) for each in searches}
    return _figure([(each, ends[id(each)]) for each in searches if each.family in families])


def grown_figure(searches: Sequence[Search], families: Collection[str], weights: Weights) -> Figure:
    """The same of a memory that grows from problem to problem, by what these runs left alone."""
    found = []
    for seed in sorted({each.seed for each in searches}):
        own = [each for each in searches if each.seed == seed]
        left: list[Descent] = []
        for search in random.Random(f"order:{seed}").sample(own, len(own)):
            end = end_of(search, left, weights)
            left.append(replace(search.descent, best_ms=search.descent.best_ms[:end]))
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


def memories(searches: Sequence[Search]) -> Mapping[str, Callable[[Search], Sequence[Descent]]]:
    """What a run may know of the other searches of its seed: in each of the arms."""
    placebo = [replace(each, descent=_shuffled(each)) for each in searches]

    def others(search: Search, among: Sequence[Search]) -> list[Search]:
        return [each for each in among if each.seed == search.seed and each.name != search.name]

    return {
        "read": lambda search: [each.descent for each in others(search, searches)],
        "class left out": lambda search: [
            each.descent for each in others(search, searches) if each.family != search.family
        ],
        "placebo": lambda search: [each.descent for each in others(search, placebo)],
    }


def _shuffled(search: Search) -> Descent:
    """The search with its times in a random order."""
    times = list(search.times_ms)
    random.Random(f"{search.seed}:{search.name}").shuffle(times)
    falling: list[float | None] = []
    for latency_ms in times:
        best = (falling[-1] if falling else None, latency_ms)
        falling.append(min((ms for ms in best if ms), default=None))
    return replace(search.descent, best_ms=tuple(falling))


def candidates() -> list[Weights]:
    """The weights that are tried."""
    return [
        Weights(*chosen)
        for chosen in itertools.product(
            (0.05, 0.1, 0.2),
            (0.2, 0.3, 0.6),
            (0.0, 0.25, 0.5),
            (0.1, 0.25, 0.5, 1.0),
            (0.006, 0.01, 0.02, 0.03),
        )
    ]


def choose(searches: Sequence[Search], families: Collection[str]) -> Weights:
    """The weights that save most on some classes while the placebo saves next to nothing."""
    arms = memories(searches)

    def cost(weights: Weights) -> float:
        grown = grown_figure(searches, families, weights)
        left_out = figure(searches, families, arms["class left out"], weights)
        if min(grown.speed, left_out.speed) < _LEAST_SPEED:
            return math.inf
        beside = figure(searches, families, arms["placebo"], weights)
        explained = max(0.0, _PLACEBO - beside.measurements)
        return grown.measurements + left_out.measurements + _PENALTY * explained

    return min(candidates(), key=cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("landscapes", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    searches = collect(options.landscapes, options.seeds)
    families = sorted({each.family for each in searches})
    fitted = [family for family in families if not is_set_aside(family)]
    aside = [family for family in families if is_set_aside(family)]
    chosen = choose(searches, fitted)
    print(f"fitted on {', '.join(fitted)}: {chosen}")
    print(f"in use: {WEIGHTS}")
    for title, among in (("fitted on", fitted), ("set aside", aside)):
        for weights in (chosen, WEIGHTS) if chosen != WEIGHTS else (WEIGHTS,):
            print(f"{title}, grown: {grown_figure(searches, among, weights)}")
            for name, known in memories(searches).items():
                print(f"{title}, {name}: {figure(searches, among, known, weights)}")


if __name__ == "__main__":
    main()
