"""How far up their precision ladders the sites of a graph had to climb in earlier runs."""

import json
from collections.abc import Mapping

from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.storage import Storage
from kmem.recipes import rung_of
from kmem.records import Outcome, SiteChoice, recipe_component
from kmem.serialize import from_json

#: Outcomes looked at, newest first.
_MAX_ROWS = 200
_CLIMBED = "json_extract(o.record, '$.move') = 'climb'"
#: Only final verdicts are timed against a baseline.
_VERIFIED = "o.status = 'passed' and json_extract(o.record, '$.ratio') is not null"


def recall_rungs(
    storage: Storage, key: GraphKey, recipe_versions: Mapping[str, str]
) -> tuple[SiteChoice, ...]:
    """The choices of every kernel on this graph that climbed, in a fixed order.

    Whether the judge let such a kernel pass or not, the rungs below were not enough. But where a
    kernel was verified in the end whose site stands lower, another site was to blame: of a network
    that misses the contract all may have climbed. What a recipe needed that has changed since says
    nothing.

    Args:
        recipe_versions: of the recipes at hand, by name.
    """
    climbed = _choices(storage, key, recipe_versions, _CLIMBED)
    verified = _choices(storage, key, recipe_versions, _VERIFIED)
    enough: dict[tuple[str, str], int] = {}
    for choice in verified:
        place = choice.recipe, choice.site
        rung = rung_of(choice) or 0
        enough[place] = min(rung, enough.get(place, rung))
    found = {
        json.dumps([choice.site, choice.operator, choice.recipe, choice.knobs])
        for choice in climbed
        if (rung := rung_of(choice) or 0) <= enough.get((choice.recipe, choice.site), rung)
    }
    return tuple(
        SiteChoice(site, operator, recipe, tuple((name, value) for name, value in knobs))
        for site, operator, recipe, knobs in map(json.loads, sorted(found))
    )


def _choices(
    storage: Storage, key: GraphKey, recipe_versions: Mapping[str, str], condition: str
) -> list[SiteChoice]:
    """What was chosen on this graph, by recipes as they are at hand, in outcomes of a condition."""
    rows = storage.read(
        f"""
        select o.record from outcomes o
        where o.graph_hash = ?
          and o.arch = ?
          and o.precision = ?
          and o.purity = ?
          and {condition}
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc
        limit ?
        """,
        [key.graph_hash, *key.conditions, _MAX_ROWS],
    )
    outcomes = [from_json(Outcome, row["record"]) for row in rows]
    return [
        choice
        for outcome in outcomes
        for choice in outcome.choices
        if outcome.versions.get(recipe_component(choice.recipe))
        == recipe_versions.get(choice.recipe)
    ]
