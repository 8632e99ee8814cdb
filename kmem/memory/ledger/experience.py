"""What recipes' settings took elsewhere, so that an author can order settings nobody has tried here
yet.

recall.py answers "what won on a graph like this"; this module answers "how long did every setting
take that was tried", with what the cost model had said and where it was. What that teaches is for
the author to say (explore/calibration.py).
"""

import json
from collections.abc import Sequence

from kmem.memory.ledger.outcomes import unpack_sizes
from kmem.memory.ledger.redaction import REDACTED
from kmem.memory.storage import Row, Storage, Value
from kmem.records import Contract, Experience

#: Outcomes used per recipe, newest first, on graphs of the same structure and on others: a million
#: must not make a run wait.
_MAX_ALIKE, _MAX_OTHERS = 400, 200
#: Graphs of the structure asked, newest first, and outcomes of a recipe looked at for those on
#: other graphs.
_MAX_GRAPHS, _MAX_ROWS = 64, 2000


def recall_experience(
    storage: Storage,
    recipes: Sequence[str],
    *,
    graph_hash: str,
    structure_hash: str,
    arch: str,
    contract: Contract,
) -> tuple[Experience, ...]:
    """Remembered settings of these recipes on other graphs, each graph's fastest time for each, in
    a fixed order.

    What was measured on this very graph is left out: a run that is resumed must see what it saw
    when it began. So is what was redacted: a time is comparable only with others of its graph, and
    which graph that was is not known.
    """
    graphs = storage.read(
        (
            "select hash from graphs where structure_hash = ? and hash != ? order by rowid desc "
            "limit ?"
        ),
        [structure_hash, graph_hash, _MAX_GRAPHS],
    )
    kind = [arch, contract.precision.value, contract.purity.value]
    found: list[Experience] = []
    for recipe in recipes:
        rows: list[Row] = []
        for graph in graphs:
            if len(rows) == _MAX_ALIKE:
                break
            rows += _on_graph(storage, [recipe, *kind, graph["hash"], _MAX_ALIKE - len(rows)])
        rows += _on_others(
            storage, [recipe, *kind, graph_hash, structure_hash, REDACTED, _MAX_ROWS, _MAX_OTHERS]
        )
        found += _experience(recipe, rows)
    return tuple(sorted(found, key=lambda entry: (entry.recipe, entry.graph, entry.knobs)))


def _on_graph(storage: Storage, asked: Sequence[Value]) -> list[Row]:
    return storage.read(
        """
        select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
        from outcomes o indexed by outcomes_by_recipe join graphs g on g.hash = o.graph_hash
        where o.skill = ?1 and o.arch = ?2 and o.precision = ?3 and o.purity = ?4 and o.graph_hash = ?5 and o.status = 'passed'
          and o.latency_ms > 0 and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc limit ?6
        """,
        asked,
    )


def _on_others(storage: Storage, asked: Sequence[Value]) -> list[Row]:
    return storage.read(
        """
        select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
        from (select id from outcomes where skill = ?1 order by id desc limit ?8) newest
        join outcomes o on o.id = newest.id join graphs g on g.hash = o.graph_hash
        where o.arch = ?2 and o.precision = ?3 and o.purity = ?4 and o.status = 'passed' and o.latency_ms > 0
          and g.hash != ?5 and g.structure_hash not in (?6, ?7)
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.id desc limit ?9
        """,
        asked,
    )


def _experience(recipe: str, rows: Sequence[Row]) -> list[Experience]:
    fastest: dict[tuple[str, str, str], Experience] = {}
    for row in rows:
        record = json.loads(str(row["record"]))
        for choice in record["choices"]:
            if choice["recipe"] == recipe:
                knobs = tuple((name, value) for name, value in choice["knobs"])
                place = str(row["graph_hash"]), choice["site"], json.dumps(record["choices"])
                entry = Experience(
                    recipe,
                    knobs,
                    float(row["latency_ms"]),
                    record.get("predicted_ms"),
                    place[0],
                    str(row["structure_hash"]),
                    unpack_sizes(row["sizes"]),
                )
                if place not in fastest or entry.latency_ms < fastest[place].latency_ms:
                    fastest[place] = entry
    return list(fastest.values())
