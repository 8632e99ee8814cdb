"""How far up their precision ladders the sites of a graph had to climb in earlier runs."""

import json
from collections.abc import Mapping

from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.storage import Storage
from kmem.records import Outcome, SiteChoice, recipe_component
from kmem.serialize import from_json

#: Outcomes looked at, newest first.
_MAX_ROWS = 200


def recall_rungs(
    storage: Storage, key: GraphKey, recipe_versions: Mapping[str, str]
) -> tuple[SiteChoice, ...]:
    """The choices of every kernel on this graph that climbed, in a fixed order.

    Whether the judge let such a kernel pass or not, the rungs below were not enough. What a recipe
    needed that has changed since says nothing.

    Args:
        recipe_versions: of the recipes at hand, by name.
    """
    rows = storage.read(
        """
        select o.record from outcomes o
        where o.graph_hash = ?
          and o.arch = ?
          and o.precision = ?
          and o.purity = ?
          and json_extract(o.record, '$.move') = 'climb'
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc
        limit ?
        """,
        [key.graph_hash, *key.conditions, _MAX_ROWS],
    )
    found: set[str] = set()
    for row in rows:
        outcome = from_json(Outcome, row["record"])
        found.update(
            json.dumps([choice.site, choice.operator, choice.recipe, choice.knobs])
            for choice in outcome.choices
            if outcome.versions.get(recipe_component(choice.recipe))
            == recipe_versions.get(choice.recipe)
        )
    return tuple(
        SiteChoice(site, operator, recipe, tuple((name, value) for name, value in knobs))
        for site, operator, recipe, knobs in map(json.loads, sorted(found))
    )
