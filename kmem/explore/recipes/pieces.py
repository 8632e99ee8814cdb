"""Smaller sites than the largest: what recipes find where nodes around belong to others.

A recipe takes as much of a graph as it can, so two of them fight for what lies between, and the
loser would leave its anchor to the library. Each set of sites is therefore put out of reach, and
every recipe asked again.
"""

from collections.abc import Mapping, Sequence

from kmem.errors import RecipeError, foreign_code
from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe, Site, match_sites
from kmem.records import Contract

#: How often what was found without some nodes is put out of reach too. KernelBench's level 2 finds
#: nothing new after the second time.
_DEPTH = 3
#: Nodes in all graphs that are matched: each set costs a match by every recipe, 1.7 s where a graph
#: has 250 nodes. That of twelve transformer blocks needs 6 sets, one of level 2 up to 40.
_MOST_NODES = 8192


def find_smaller_sites(
    graphs: Mapping[str, OpGraph],
    recipes: Mapping[str, Recipe],
    contract: Contract,
    known: Sequence[tuple[str, Site]],
) -> list[tuple[str, Site]]:
    """Sites of the full workload that recipes do not find in the whole graph, by recipe.

    Each is found again at every workload, and where the recipe sees its nodes alone.

    Args:
        known: the sites in the whole graph.
    Raises RecipeError: if the code of a recipe raises anything.
    """
    graph = graphs["full"]
    seen = {(name, frozenset(site.nodes)) for name, site in known}
    found: list[tuple[str, Site]] = []
    asked: set[frozenset[str]] = {frozenset()}
    fresh: dict[frozenset[str], Sequence[tuple[str, Site]]] = {frozenset(): known}
    for _ in range(_DEPTH):
        further: dict[frozenset[str], Sequence[tuple[str, Site]]] = {}
        for hidden in _hidden_sets(fresh):
            if hidden in asked or len(asked) * len(graph.nodes) > _MOST_NODES:
                continue
            asked.add(hidden)
            made = []
            for name, site in _match_all(graph.hiding(hidden), recipes, contract):
                place = name, frozenset(site.nodes)
                if place in seen:
                    continue
                seen.add(place)
                if all(_is_there(recipes[name], each, contract, site) for each in graphs.values()):
                    made.append((name, site))
            further[hidden] = made
            found += made
        fresh = further
    return sorted(found, key=lambda entry: (entry[0], graph.place(entry[1].nodes[0])))


def _hidden_sets(
    fresh: Mapping[frozenset[str], Sequence[tuple[str, Site]]],
) -> list[frozenset[str]]:
    """For each recipe, what was out of reach and all its new sites."""
    sets = []
    for hidden, sites in fresh.items():
        by_recipe: dict[str, set[str]] = {}
        for name, site in sites:
            by_recipe.setdefault(name, set()).update(site.nodes)
        sets += [hidden | nodes for nodes in by_recipe.values()]
    return sets


def _match_all(
    graph: OpGraph, recipes: Mapping[str, Recipe], contract: Contract
) -> list[tuple[str, Site]]:
    found = []
    for name, recipe in recipes.items():
        with foreign_code(f"the recipe of {name}", RecipeError):
            found += [(name, site) for site in recipe.match(graph, contract)]
    return found


def _is_there(recipe: Recipe, graph: OpGraph, contract: Contract, site: Site) -> bool:
    """Whether a recipe finds a site where it sees nothing but its nodes."""
    with foreign_code(f"the recipe of {recipe.name}", RecipeError):
        alone = match_sites(recipe, graph, contract, site.nodes)
    return any(each.name == site.name and {*each.nodes} == {*site.nodes} for each in alone)
