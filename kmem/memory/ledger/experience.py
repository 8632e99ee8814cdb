"""What settings of recipes took elsewhere, so that an author can order settings nobody tried here.

winners.py answers "what won on a graph like this"; this module answers "how long did every setting
take that was tried", with what the cost model had said and on which graph it was. What an author
makes of the answer is explore/recipes/calibration.py; what an estimate makes of settings that were
measured on the very same graph is explore/recipes/evidence.py.
"""

import json
from collections.abc import Mapping, Sequence

from kmem.memory.ledger.graphs import GraphKey, unpack_sizes
from kmem.memory.storage import Row, Storage, Value
from kmem.records import (
    REDACTED,
    Experience,
    MeasuredKernel,
    SiteChoice,
    is_steady,
    recipe_component,
)

#: Outcomes used per recipe, newest first, on graphs of the same structure and on others: a million
#: must not make a run wait.
_MAX_ALIKE, _MAX_OTHERS = 400, 200
#: Graphs of the structure asked, newest first, and outcomes of a recipe looked at for those on
#: other graphs.
_MAX_GRAPHS, _MAX_ROWS = 64, 2000


def recall_experience(
    storage: Storage,
    recipes: Sequence[str],
    key: GraphKey,
    recipe_versions: Mapping[str, str] | None = None,
) -> tuple[Experience, ...]:
    """Remembered settings of recipes on other graphs, with each graph's fastest time for each.

    The order is fixed. What was measured on the key's own graph is left out: a run that is resumed
    must see what it saw when it began. What was redacted is left out, too: a time is comparable
    only with others of its graph, and a redacted outcome does not say which graph that was.

    Args:
        recipe_versions: of the recipes at hand, by name: what another version measured is `aged`.
    """
    graphs = storage.read(
        """
        select hash from graphs
        where structure_hash = ? and hash != ?
        order by rowid desc
        limit ?
        """,
        [key.structure_hash, key.graph_hash, _MAX_GRAPHS],
    )
    others = [key.graph_hash, key.structure_hash, REDACTED]
    found: list[Experience] = []
    for recipe in recipes:
        asked = [recipe, *key.conditions]
        rows: list[Row] = []
        for graph in graphs:
            if len(rows) == _MAX_ALIKE:
                break
            rows += _on_graph(storage, [*asked, graph["hash"], _MAX_ALIKE - len(rows)])
        rows += _on_others(storage, [*asked, *others, _MAX_ROWS, _MAX_OTHERS])
        found += _experience(recipe, rows, (recipe_versions or {}).get(recipe))
    return tuple(sorted(found, key=lambda entry: (entry.recipe, entry.graph, entry.knobs)))


def recall_measured(storage: Storage, key: GraphKey, device: str) -> tuple[MeasuredKernel, ...]:
    """What kernels of recipes took on the key's own graph, under its contract, on one card.

    Of a kernel that was measured twice its least time. The order is fixed.

    Args:
        device: the card's full name; others of its architecture have other bandwidths.
    """
    rows = storage.read(
        """
        select o.latency_ms, o.record
        from outcomes o
        where o.graph_hash = ?
          and o.arch = ?
          and o.precision = ?
          and o.purity = ?
          and o.status = 'passed'
          and o.latency_ms > 0
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc
        limit ?
        """,
        [key.graph_hash, *key.conditions, _MAX_ROWS],
    )
    least: dict[tuple[SiteChoice, ...], float] = {}
    for row in rows:
        record = json.loads(str(row["record"]))
        if record["device"] != device:
            continue
        choices = tuple(
            SiteChoice(
                choice["site"],
                choice["operator"],
                choice["recipe"],
                tuple((name, value) for name, value in choice["knobs"]),
                tuple(choice["members"]) if "members" in choice else None,
            )
            for choice in record["choices"]
        )
        if choices:
            latency_ms = float(row["latency_ms"])
            least[choices] = min(latency_ms, least.get(choices, latency_ms))
    return tuple(
        MeasuredKernel(choices, latency_ms)
        for choices, latency_ms in sorted(least.items(), key=lambda item: (item[1], str(item[0])))
    )


def _on_graph(storage: Storage, asked: Sequence[Value]) -> list[Row]:
    """Outcomes of a recipe (1) under conditions (2 to 4) on a graph (5), at most as many as (6)."""
    return storage.read(
        """
        select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
        from outcomes o indexed by outcomes_by_recipe
        join graphs g on g.hash = o.graph_hash
        where o.skill = ?1
          and o.arch = ?2
          and o.precision = ?3
          and o.purity = ?4
          and o.graph_hash = ?5
          and o.status = 'passed'
          and o.latency_ms > 0
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc
        limit ?6
        """,
        asked,
    )


def _on_others(storage: Storage, asked: Sequence[Value]) -> list[Row]:
    """Outcomes of a recipe (1) under conditions (2 to 4) on graphs of other structures.

    Not on the graph (5), nor of the structures (6, 7). Of the newest (8) outcomes at most (9).
    """
    return storage.read(
        """
        select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
        from (select id from outcomes where skill = ?1 order by id desc limit ?8) newest
        join outcomes o on o.id = newest.id
        join graphs g on g.hash = o.graph_hash
        where o.arch = ?2
          and o.precision = ?3
          and o.purity = ?4
          and o.status = 'passed'
          and o.latency_ms > 0
          and g.hash != ?5
          and g.structure_hash not in (?6, ?7)
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc
        limit ?9
        """,
        asked,
    )


def _experience(recipe: str, rows: Sequence[Row], version: str | None) -> list[Experience]:
    """The settings of a recipe in these outcomes; of a setting measured twice, its fastest time.

    Times that a busy host spread say more of the host: they are left out.

    Args:
        version: of the recipe at hand; None if nothing is to be held against it.
    """
    fastest: dict[tuple[str, str, str], Experience] = {}
    for row in rows:
        record = json.loads(str(row["record"]))
        low_ms, high_ms = record.get("latency_ms_p20"), record.get("latency_ms_p80")
        if low_ms and high_ms and not is_steady(low_ms, high_ms):
            continue
        aged = version not in (None, record["versions"].get(recipe_component(recipe)))
        for choice in record["choices"]:
            if choice["recipe"] == recipe:
                place = str(row["graph_hash"]), choice["site"], json.dumps(record["choices"])
                entry = Experience(
                    recipe,
                    tuple((name, value) for name, value in choice["knobs"]),
                    float(row["latency_ms"]),
                    record.get("predicted_ms"),
                    place[0],
                    str(row["structure_hash"]),
                    unpack_sizes(row["sizes"]),
                    aged,
                )
                if place not in fastest or entry.latency_ms < fastest[place].latency_ms:
                    fastest[place] = entry
    return list(fastest.values())
