"""What recipes' settings took elsewhere, so that an author can order settings nobody has tried here yet.

recall.py answers "what won on a graph like this"; this module answers "how long did every setting take that was tried", with what the cost
model had said and where it was. What that teaches is for the author to say (explore/calibration.py).
"""

import json
from collections.abc import Sequence

from kmem.memory.ledger import unpack_sizes
from kmem.memory.storage import Row, Storage
from kmem.records import Contract, Experience

#: Outcomes looked at per recipe, newest first, on graphs of the same structure and on others: a million must not make a run wait.
_MAX_ALIKE, _MAX_OTHERS = 400, 200


def recall_experience(
    storage: Storage,
    recipes: Sequence[str],
    *,
    graph_hash: str,
    structure_hash: str,
    arch: str,
    contract: Contract,
) -> tuple[Experience, ...]:
    """Remembered settings of these recipes on other graphs, each graph's fastest time for each, in a fixed order.

    What was measured on this very graph is left out: a run that is resumed must see what it saw when it began.
    """
    found: list[Experience] = []
    for recipe in recipes:
        asked = [recipe, arch, contract.precision.value, contract.purity.value, graph_hash, structure_hash]
        alike = storage.read(
            """
            select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
            from graphs g join outcomes o on o.graph_hash = g.hash
            where o.skill = ?1 and o.arch = ?2 and o.precision = ?3 and o.purity = ?4 and o.status = 'passed'
              and g.hash != ?5 and g.structure_hash = ?6
              and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
            order by o.id desc limit ?7
            """,
            [*asked, _MAX_ALIKE],
        )
        others = storage.read(
            """
            select o.graph_hash, o.latency_ms, o.record, g.structure_hash, g.sizes
            from outcomes o join graphs g on g.hash = o.graph_hash
            where o.skill = ?1 and o.arch = ?2 and o.precision = ?3 and o.purity = ?4 and o.status = 'passed'
              and g.hash != ?5 and g.structure_hash != ?6
              and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
            order by o.id desc limit ?7
            """,
            [*asked, _MAX_OTHERS],
        )
        found += _experience(recipe, [*alike, *others])
    return tuple(sorted(found, key=lambda entry: (entry.recipe, entry.graph, entry.knobs)))


def _experience(recipe: str, rows: Sequence[Row]) -> list[Experience]:
    fastest: dict[tuple[str, str, str], Experience] = {}
    for row in rows:
        record = json.loads(str(row["record"]))
        for choice in record["choices"]:
            if choice["recipe"] == recipe:
                knobs = tuple((name, value) for name, value in choice["knobs"])
                place = str(row["graph_hash"]), choice["site"], json.dumps(record["choices"])
                entry = Experience(
                    recipe, knobs, float(row["latency_ms"]), record.get("predicted_ms"), place[0], str(row["structure_hash"]),
                    unpack_sizes(row["sizes"]),
                )  # fmt: skip
                if place not in fastest or entry.latency_ms < fastest[place].latency_ms:
                    fastest[place] = entry
    return list(fastest.values())
