"""Cut a graph into sites that do not overlap: which recipe writes which part.

What no site covers stays with the vendor's kernels, called through torch.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kmem.errors import RecipeError, foreign_code
from kmem.problem.bound import node_cost_ms
from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe, Settings, Site, Space
from kmem.records import Contract, Device, Purity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SiteOption:
    """A site that a recipe can write, with its knob settings ranked by the cost model."""

    recipe: Recipe
    site: Site
    space: Space
    ranked: tuple[tuple[float, dict], ...]  # (cost_ms, settings)

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
                space = recipe.space(site, device)
                ranked = rank_settings(recipe, site, space.settings(), device)
                if ranked:
                    options.append(SiteOption(recipe, site, space, ranked))
    return options


def matching_sites(
    graphs: Mapping[str, OpGraph], recipe: Recipe, contract: Contract
) -> Iterator[Site]:
    """The sites of one recipe that `find_options` ranks settings for."""
    elsewhere = [
        {site.name for site in recipe.match(graph, contract)}
        for workload, graph in graphs.items()
        if workload != "full"
    ]
    for site in recipe.match(graphs["full"], contract):
        if any(operand.spec.numel == 0 for operand in (*site.inputs, *site.outputs)):
            continue
        if all(site.name in names for names in elsewhere):
            yield site
        else:
            logger.warning(
                "recipe %s matches %s at one workload but not at another: passed over",
                recipe.name,
                site.name,
            )


def rank_settings(
    recipe: Recipe, site: Site, settings: Sequence[Settings], device: Device
) -> tuple[tuple[float, dict], ...]:
    """Settings with their predicted times, best first; ties keep the order of the space."""
    return tuple(
        sorted(
            ((recipe.cost_ms(site, setting, device), dict(setting)) for setting in settings),
            key=lambda pair: pair[0],
        )
    )


def vendor_ms(graph: OpGraph, site: Site, device: Device, contract: Contract) -> float:
    """What the vendor's kernels are predicted to take for the nodes of a site."""
    return sum(
        node_cost_ms(graph, node, device, contract)
        for node in graph.nodes
        if node.name in site.nodes
    )


def cover_graph(
    graph: OpGraph,
    options: Sequence[SiteOption],
    contract: Contract,
    device: Device,
    *,
    prefer: Sequence[tuple[str, str]] = (),
) -> list[SiteOption]:
    """Pick options that share no node.

    `prefer` names (recipe, site) pairs that go first whatever is predicted. The others are taken by
    predicted saving over the vendor's kernels, largest first, and only if they save (under
    Purity.TRITON always).
    """
    preferred = {pair: place for place, pair in enumerate(prefer)}
    saving = {
        id(option): vendor_ms(graph, option.site, device, contract) - option.best_ms
        for option in options
    }
    order = sorted(
        options,
        key=lambda option: (
            preferred.get((option.recipe.name, option.site.name), len(preferred)),
            -saving[id(option)],
            option.recipe.name,
        ),
    )
    taken: set[str] = set()
    chosen = []
    for option in order:
        wanted = (
            (option.recipe.name, option.site.name) in preferred
            or saving[id(option)] > 0
            or contract.purity is Purity.TRITON
        )
        if wanted and not taken & set(option.site.nodes):
            chosen.append(option)
            taken |= set(option.site.nodes)
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    return sorted(chosen, key=lambda option: min(places[name] for name in option.site.nodes))
