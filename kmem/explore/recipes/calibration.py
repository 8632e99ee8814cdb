"""Correct a cost model's ranking of knob settings by what was measured.

Settings that did better or worse than predicted, elsewhere or in this run, move in rank, and the
settings near them move along.

The correction is the posterior mean of a Gaussian process over the logarithm of measured over
predicted time. Two measurements tell of each other the more, the nearer their knobs and the more
alike their graphs are; each graph also has an offset of its own, for only the order of settings
matters here. Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
equation 2.25.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from kmem.explore.recipes.cover import SiteOption
from kmem.explore.recipes.ranking import Ranked
from kmem.memory.ledger.graphs import size_distance
from kmem.problem.graph import OpGraph, graph_sizes
from kmem.recipes import Settings
from kmem.records import Attempt, Experience, Knob

if TYPE_CHECKING:
    import numpy as np

#: Knobs apart at which two settings tell 1/e of each other; in doublings of a number.
_REACH = 3.0
#: What another word, or a number that is no size, is worth in doublings.
_WORD_DISTANCE = 2.0
#: How much graphs of different structure tell of each other; those of one structure as much less as
#: their sizes differ, 1/e a doubling.
_ANY_GRAPH = 0.1
#: Variances in units of what knobs explain: what no knob tells of a time (its noise and the cost
#: model's faults), and a graph's own offset.
_NOISE, _OFFSET = 0.5, 100.0
#: The same noise where the recipe has changed since: such a measurement tells a quarter as much.
_AGED_NOISE = 4 * _NOISE
#: Measurements of one recipe that are weighed against each other: their matrix is solved for each
#: site that is unlike the others, which of 256 takes 0.7 ms (two cores). Of level 3's a recipe has
#: thousands, which took minutes.
_MOST_KNOWN = 256


@dataclass(frozen=True, slots=True)
class _Known:
    """A measured setting: the log of its measured over its predicted time, and on which graph."""

    knobs: dict[str, Knob]
    residual: float
    graph: str
    structure: str
    sizes: tuple[int, ...]
    noise: float = _NOISE


def own_experience(history: Sequence[Attempt], graph: OpGraph) -> list[Experience]:
    """What this run has measured so far, in the form in which memory tells of other runs."""
    sizes = graph_sizes(graph)
    return [
        Experience(
            choice.recipe,
            choice.knobs,
            latency_ms,
            attempt.candidate.estimated_ms,
            graph.hash,
            graph.structure_hash,
            sizes,
        )
        for attempt in history
        if (latency_ms := attempt.measurement.latency_ms) is not None
        for choice in attempt.candidate.kernel.choices
    ]


class Calibrator:
    """Corrects the options of one graph by what was measured, those that are ranked alike once."""

    def __init__(self, experience: Sequence[Experience], graph: OpGraph) -> None:
        self._graph = graph
        self._of: dict[str, list[Experience]] = {}
        for entry in experience:
            self._of.setdefault(entry.recipe, []).append(entry)
        self._corrected: dict[int, tuple[Ranked, Ranked]] = {}  # with what it was asked for

    def calibrate(self, option: SiteOption) -> SiteOption:
        """As `calibrate_option` does."""
        known = self._of.get(option.recipe.name)
        if not known:
            return option
        kept = self._corrected.get(id(option.ranked))
        if kept is None:
            kept = option.ranked, calibrate_option(option, known, self._graph).ranked
            self._corrected[id(option.ranked)] = kept
        return option if kept[1] is option.ranked else replace(option, ranked=kept[1])


def calibrate_option(
    option: SiteOption, experience: Sequence[Experience], graph: OpGraph
) -> SiteOption:
    """The option with its settings ranked anew, each at its corrected time.

    An option of whose recipe nothing is known is returned as it is.
    """
    known = _telling(_usable(option, experience), graph)
    if not known:
        return option
    import numpy as np  # as late as possible: a run without memory does not need it

    here = [settings for _, settings in option.ranked]
    there = [entry.knobs for entry in known]
    graphs = np.array([entry.graph for entry in known])
    alike = _likeness(
        [(entry.structure, entry.sizes) for entry in known],
        [(entry.structure, entry.sizes) for entry in known],
    )
    alike[graphs[:, None] == graphs[None, :]] = 1.0
    covariance = alike * np.exp(-setting_distances(there, there) / _REACH)
    covariance += _OFFSET * (graphs[:, None] == graphs[None, :])
    covariance += np.diag([entry.noise for entry in known])
    weights = np.linalg.solve(covariance, np.array([entry.residual for entry in known]))
    towards = _likeness(
        [(graph.structure_hash, graph_sizes(graph))],
        [(entry.structure, entry.sizes) for entry in known],
    )
    corrections = (towards * np.exp(-setting_distances(here, there) / _REACH)) @ weights
    corrected = [
        (cost_ms * math.exp(by), settings)
        for (cost_ms, settings), by in zip(option.ranked, corrections.tolist(), strict=True)
    ]
    return replace(option, ranked=tuple(sorted(corrected, key=lambda pair: pair[0])))


def _usable(option: SiteOption, experience: Sequence[Experience]) -> list[_Known]:
    """What was measured of the option's recipe and can be compared with a prediction.

    Where no prediction was kept, the one for the same knobs here stands in: a graph's offset
    absorbs what the difference in sizes makes of it.
    """
    predicted = {tuple(sorted(settings.items())): cost_ms for cost_ms, settings in option.ranked}
    names = set(option.ranked[0][1])
    known = []
    for entry in experience:
        if entry.recipe != option.recipe.name:
            continue
        knobs = option.space.completed(dict(entry.knobs))
        predicted_ms = entry.predicted_ms or predicted.get(tuple(sorted(knobs.items())))
        if knobs.keys() == names and _is_time(entry.latency_ms) and _is_time(predicted_ms):
            residual = math.log(entry.latency_ms) - math.log(predicted_ms)
            noise = _AGED_NOISE if entry.aged else _NOISE
            known.append(_Known(knobs, residual, entry.graph, entry.structure, entry.sizes, noise))
    return known


def _telling(known: Sequence[_Known], graph: OpGraph) -> list[_Known]:
    """At most `_MOST_KNOWN` of what was measured: what tells most of the order of settings here.

    A kernel of a network has a recipe at fifty sites, with few different settings: what is equal
    counts once, by its mean. Of a graph with one setting the offset takes all. Graphs like this one
    go before others, and of each the first settings before the rest.
    """
    alike: dict[tuple[str, tuple[tuple[str, Knob], ...]], list[_Known]] = {}
    for entry in known:
        alike.setdefault((entry.graph, tuple(sorted(entry.knobs.items()))), []).append(entry)
    merged = [
        replace(
            entries[0],
            residual=sum(entry.residual for entry in entries) / len(entries),
            noise=min(entry.noise for entry in entries),
        )
        for entries in alike.values()
    ]
    if len(merged) <= _MOST_KNOWN:
        return merged
    of_graph = Counter(entry.graph for entry in merged)
    merged = [entry for entry in merged if of_graph[entry.graph] > 1]
    here = [(graph.structure_hash, graph_sizes(graph))]
    (near,) = _likeness(here, [(entry.structure, entry.sizes) for entry in merged])
    place: Counter[str] = Counter()
    ranked = []
    for entry, likeness in zip(merged, near.tolist(), strict=True):
        ranked.append((-likeness, place[entry.graph], entry))
        place[entry.graph] += 1
    ranked.sort(key=lambda item: item[:2])
    return [entry for *_, entry in ranked[:_MOST_KNOWN]]


def _is_time(value_ms: float | None) -> TypeGuard[float]:
    return value_ms is not None and 0.0 < value_ms < math.inf


def setting_distances(here: Sequence[Settings], there: Sequence[Settings]) -> "np.ndarray":
    """How far settings are apart, in doublings of a number, summed over knobs: (here, there)."""
    import numpy as np

    total = np.zeros((len(here), len(there)))
    for name in there[0]:
        ours, theirs = [settings[name] for settings in here], [settings[name] for settings in there]
        if all(isinstance(value, int) and value > 0 for value in (*ours, *theirs)):
            total += np.abs(
                np.log2(np.array(ours, dtype=float))[:, None]
                - np.log2(np.array(theirs, dtype=float))[None, :]
            )
        else:
            places = {value: place for place, value in enumerate(dict.fromkeys([*ours, *theirs]))}
            codes = [np.array([places[value] for value in values]) for values in (ours, theirs)]
            total += _WORD_DISTANCE * (codes[0][:, None] != codes[1][None, :])
    return total


def _likeness(
    these: Sequence[tuple[str, tuple[int, ...]]], those: Sequence[tuple[str, tuple[int, ...]]]
) -> "np.ndarray":
    """How much graphs tell of each other, from structure and sizes: (these, those), 0 to 1."""
    import numpy as np

    found = np.full((len(these), len(those)), _ANY_GRAPH)
    # Outcomes of before sizes were kept have none: such a graph is no nearer than any other.
    for kind in {(structure, len(sizes)) for structure, sizes in these} & {
        (structure, len(sizes)) for structure, sizes in those
    }:
        rows, columns = (
            [place for place, (name, sizes) in enumerate(side) if (name, len(sizes)) == kind]
            for side in (these, those)
        )
        theirs = np.array([those[place][1] for place in columns], dtype=np.int64).reshape(
            len(columns), -1
        )
        apart = np.stack(
            [size_distance(np.array(these[place][1], dtype=np.int64), theirs) for place in rows]
        )
        found[np.ix_(rows, columns)] = _ANY_GRAPH + (1 - _ANY_GRAPH) * np.exp(-apart)
    return found
