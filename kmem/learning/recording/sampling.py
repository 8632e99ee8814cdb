"""Which knob settings of a problem are worth recording.

All are if they are few; else the leaders, their neighbours and an even sample. A simulated search
can only go where something was recorded, so what any search would try first must be there: settings
that lead the cost model's ranking here, those that lead it at other sizes of the same problem
(memory may recall them here), and the neighbours of the leaders (a tuner moves there). The rest is
drawn by hash, so that two sizes of a problem draw the same settings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kmem.explore.recipes.cover import SiteOption, cover_graph
from kmem.learning.landscape import Knobs, knobs_of
from kmem.problem.graph import OpGraph
from kmem.recipes import Settings
from kmem.records import Contract, Device, SiteChoice, content_hash

#: Shares of a recipe's settings: leaders here, leaders at other sizes, neighbours of the leaders.
#: An even sample takes what is left.
_LEADERS = 0.3
_LEADERS_ELSEWHERE = 0.2
_NEIGHBOURS = 0.2
#: The neighbours of so many leaders are looked at.
_WITH_NEIGHBOURS = 4


@dataclass(frozen=True, slots=True)
class Draft:
    """A kernel to be written: the sites it covers, and one setting for each.

    `estimated_ms` is the cost model's sum over them.
    """

    skill: str
    cover: tuple[SiteOption, ...]
    settings: tuple[Settings, ...]
    estimated_ms: float

    @property
    def choices(self) -> tuple[SiteChoice, ...]:
        return tuple(
            option.choice(setting)
            for option, setting in zip(self.cover, self.settings, strict=True)
        )


def leading_settings(options: Sequence[SiteOption], count: int) -> dict[str, list[Knobs]]:
    """The settings that lead the ranking of each recipe's first site, best first.

    At most `count` of each recipe are given.
    """
    leaders: dict[str, list[Knobs]] = {}
    for option in options:
        leaders.setdefault(
            option.recipe.name, [knobs_of(setting) for _, setting in option.ranked[:count]]
        )
    return leaders


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which settings are taken: about `count` at most, the even sample among them by `seed`.

    `elsewhere` holds `leading_settings` at other sizes of the same problem.
    """

    count: int
    seed: int
    elsewhere: tuple[Mapping[str, Sequence[Knobs]], ...] = ()


def sample_drafts(
    graph: OpGraph,
    options: Sequence[SiteOption],
    contract: Contract,
    device: Device,
    sampling: Sampling,
) -> list[Draft]:
    """Kernels to record, of every recipe that matches, best ranked first within a recipe.

    Sites of the recipe in question move together, as they do when the recipe author seeds; the
    others keep their best-ranked setting.
    """
    names = sorted({option.recipe.name for option in options})
    spaces = {name: len(_first(options, name).ranked) for name in names}
    drafts: dict[tuple[SiteChoice, ...], Draft] = {}
    for name, share in _shares(spaces, sampling.count).items():
        own = [option.place for option in options if option.recipe.name == name]
        cover = tuple(cover_graph(graph, options, contract, device, prefer=[own]))
        first = next(option for option in cover if option.recipe.name == name)
        there = [knobs for leaders in sampling.elsewhere for knobs in leaders.get(name, ())]
        for rank in _sample_ranks(first, share, sampling.seed, there):
            draft = _draft(name, cover, rank)
            drafts.setdefault(draft.choices, draft)
    return list(drafts.values())


def _first(options: Sequence[SiteOption], name: str) -> SiteOption:
    return next(option for option in options if option.recipe.name == name)


def _shares(spaces: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` dealt equally over the recipes; what small spaces leave over goes to larger ones."""
    shares: dict[str, int] = {}
    left = count
    for place, name in enumerate(sorted(spaces, key=lambda name: (spaces[name], name))):
        shares[name] = min(spaces[name], left // (len(spaces) - place))
        left -= shares[name]
    return dict(sorted(shares.items()))


def _sample_ranks(
    option: SiteOption, count: int, seed: int, elsewhere: Sequence[Knobs]
) -> list[int]:
    """Places in the ranking, in order."""
    if len(option.ranked) <= count:
        return list(range(len(option.ranked)))
    ranks = {knobs_of(setting): rank for rank, (_, setting) in enumerate(option.ranked)}
    chosen: dict[int, None] = {}

    def take(candidates: Iterable[int], share: float) -> None:
        wanted = min(count, len(chosen) + round(share * count))
        for rank in candidates:
            if len(chosen) >= wanted:
                return
            chosen[rank] = None

    take(range(len(option.ranked)), _LEADERS)
    take((ranks[knobs] for knobs in elsewhere if knobs in ranks), _LEADERS_ELSEWHERE)
    take(_neighbours(option, ranks), _NEIGHBOURS)
    by_hash = sorted(
        ranks, key=lambda knobs: content_hash(str(seed), option.recipe.name, repr(knobs))
    )
    take((ranks[knobs] for knobs in by_hash), 1.0)
    return sorted(chosen)


def _neighbours(option: SiteOption, ranks: Mapping[Knobs, int]) -> Iterator[int]:
    for _, setting in option.ranked[:_WITH_NEIGHBOURS]:
        for near in option.space.neighbours(setting):
            yield ranks[knobs_of(near)]


def _draft(name: str, cover: tuple[SiteOption, ...], rank: int) -> Draft:
    places = [
        min(rank, len(option.ranked) - 1) if option.recipe.name == name else 0 for option in cover
    ]
    chosen = [option.ranked[place] for option, place in zip(cover, places, strict=True)]
    return Draft(
        name, cover, tuple(setting for _, setting in chosen), sum(cost_ms for cost_ms, _ in chosen)
    )
