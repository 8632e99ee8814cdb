"""Which recipe writes which part of a graph: the sites on offer, and a cut that takes some of them.

What no site covers stays with the vendor's kernels, called through torch.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kmem.errors import RecipeError, foreign_code
from kmem.explore.recipes.cutting import Offer, cheapest_cut
from kmem.explore.recipes.pieces import find_smaller_sites
from kmem.explore.recipes.ranking import Ranked, rank_once
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe, Settings, Site, Space, find_site, match_sites
from kmem.records import Contract, Device, Purity, SiteChoice

logger = logging.getLogger(__name__)


#: Times that are this close are not told apart by the prediction. Source: of 1085 first kernels of
#: KernelBench's levels 1 and 2 on an H200 (2026-11-23 and -24) 296 were predicted within a
#: thousandth of an earlier one of their problem and recipe; 243 of these took within 2% of it. Most
#: differ in stages, hints or warps.
_TIE = 1.001
#: A recipe, a site, and its members.
Place: TypeAlias = tuple[str, str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class SiteOption:
    """A site that a recipe can write, with its knob settings ranked by the cost model.

    `members` are the site's nodes where the recipe finds it only without the nodes around it.
    """

    recipe: Recipe
    site: Site
    space: Space
    ranked: Ranked
    members: tuple[str, ...] | None = None
    # the site at other workloads, kept from when it was first asked for
    elsewhere: dict[int, tuple[OpGraph, Site]] = field(default_factory=dict, compare=False)

    @property
    def place(self) -> Place:
        """What this is an option for, whatever the knobs."""
        return self.recipe.name, self.site.name, self.members

    def told_apart(self) -> list[Settings]:
        """The best-ranked setting of each predicted time, in order: the others tell little more."""
        kept: list[Settings] = []
        last_ms = 0.0
        for cost_ms, settings in self.ranked:
            if not kept or cost_ms > _TIE * last_ms:
                kept.append(settings)
                last_ms = cost_ms
        return kept

    def choice(self, settings: Settings) -> SiteChoice:
        """This site written at a setting, as records have it."""
        knobs = tuple(sorted(settings.items()))
        return SiteChoice(self.site.name, self.site.operator, self.recipe.name, knobs, self.members)

    def site_in(self, graph: OpGraph, contract: Contract) -> Site:
        """This site in the graph of a workload at which `find_options` saw that it is there."""
        kept = self.elsewhere.get(id(graph))
        if kept is None or kept[0] is not graph:
            site = find_site(self.recipe, graph, contract, self.choice({}))
            assert site is not None, "options leave out a site that one of the workloads lacks"
            self.elsewhere[id(graph)] = kept = graph, site
        return kept[1]

    @property
    def best_ms(self) -> float:
        return self.ranked[0][0]


def find_options(
    graphs: Mapping[str, OpGraph], recipes: Mapping[str, Recipe], contract: Contract, device: Device
) -> list[SiteOption]:
    """Every site of the full workload that a recipe can write.

    Sites are in graph order within a recipe, and recipes are in order of their names.

    A site that its recipe does not find again at the small workload is left out: one module must
    serve both. So is one with an empty tensor: there is nothing to gain, and kernels are not
    written for it.

    Raises RecipeError: if the code of a recipe raises anything.
    """
    options = []
    for name in sorted(recipes):
        recipe = recipes[name]
        with foreign_code(f"the recipe of {name}", RecipeError):
            for site in matching_sites(graphs, recipe, contract):
                space, ranked = rank_once(recipe, site, device)
                if ranked:
                    options.append(SiteOption(recipe, site, space, ranked))
    return options


def matching_sites(
    graphs: Mapping[str, OpGraph], recipe: Recipe, contract: Contract
) -> Iterator[Site]:
    """The sites of one recipe that `find_options` ranks settings for."""
    elsewhere = [
        {(site.name, site.nodes) for site in match_sites(recipe, graph, contract)}
        for workload, graph in graphs.items()
        if workload != "full"
    ]
    for site in match_sites(recipe, graphs["full"], contract):
        if any(operand.spec.numel == 0 for operand in (*site.inputs, *site.outputs)):
            continue
        if all((site.name, site.nodes) in places for places in elsewhere):
            yield site
        else:
            logger.warning(
                "recipe %s matches %s at one workload but not at another: passed over",
                recipe.name,
                site.name,
            )


def smaller_options(
    graphs: Mapping[str, OpGraph],
    recipes: Mapping[str, Recipe],
    contract: Contract,
    device: Device,
    options: Sequence[SiteOption],
) -> list[SiteOption]:
    """Sites that recipes find where nodes around them belong to these options.

    Raises RecipeError: if the code of a recipe raises anything.
    """
    known = [(option.recipe.name, option.site) for option in options]
    found = []
    for name, site in find_smaller_sites(graphs, recipes, contract, known):
        recipe = recipes[name]
        with foreign_code(f"the recipe of {name}", RecipeError):
            space, ranked = rank_once(recipe, site, device)
        if ranked and all(operand.spec.numel for operand in (*site.inputs, *site.outputs)):
            found.append(SiteOption(recipe, site, space, ranked, site.nodes))
    return found


def cover_graph(
    graph: OpGraph,
    options: Sequence[SiteOption],
    contract: Contract,
    device: Device,
    *,
    prefer: Sequence[Collection[Place]] = (),
) -> list[SiteOption]:
    """Options that share no node, in graph order: the cut with the least predicted time.

    The library is one more way to write a node, at what the vendor's kernels are predicted to take;
    under Purity.TRITON it gets only what nothing else writes. `prefer` names what is taken whatever
    is predicted; an option of one collection goes before all of those that follow. One that does
    what several others of its collection do counts as they do together.
    """
    prizes = [0] * len(options)
    prize = 1
    for places in reversed(prefer):
        anchors = {anchor for _, anchor, _ in places}
        for number, option in enumerate(options):
            if option.place in places:
                prizes[number] = prize * max(1, len(anchors.intersection(option.site.nodes)))
        prize *= len(options) + 1
    offers = [
        Offer(frozenset(option.site.nodes), option.best_ms, won)
        for option, won in zip(options, prizes, strict=True)
    ]
    library_ms = node_costs_ms(graph, device, contract)
    wholly = contract.purity is Purity.TRITON
    return [options[place] for place in cheapest_cut(graph, offers, library_ms, wholly=wholly)]
