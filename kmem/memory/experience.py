"""What recipes' settings earned elsewhere: how much slower each remembered setting was than the best known of its graph.

recall.py answers "what won on a graph like this"; this module answers "how good was every setting that was tried", so that an author can
order settings nobody has tried here yet. Graphs of the same structure count by how near their sizes are, others by a share.
"""

import json
from collections import Counter
from collections.abc import Sequence

from kmem.memory.ledger import pack_sizes
from kmem.memory.recall import size_distance
from kmem.memory.storage import Row, Storage
from kmem.records import Contract, Experience

#: Outcomes looked at per recipe, newest first: a million of them must not make a run wait.
_MAX_ROWS = 600
#: How much a setting counts that was measured in another structure: one with the same operator, one without.
_SAME_OPERATOR, _SAME_RECIPE = 0.3, 0.15


def recall_experience(
    storage: Storage,
    recipes: Sequence[str],
    operators: Sequence[str],
    *,
    graph_hash: str,
    structure_hash: str,
    sizes: Sequence[int],
    arch: str,
    contract: Contract,
) -> tuple[Experience, ...]:
    """Every remembered setting of these recipes on other graphs, in a fixed order.

    What was measured on this very graph is left out: a run that is resumed must see what it saw when it began.
    """
    found: list[Experience] = []
    for recipe in recipes:
        rows = storage.read(
            """
            select o.graph_hash, o.latency_ms, json_extract(o.record, '$.choices') as choices, g.structure_hash, g.sizes
            from outcomes o join graphs g on g.hash = o.graph_hash
            where o.skill = ? and o.arch = ? and o.precision = ? and o.purity = ? and o.status = 'passed' and o.graph_hash != ?
              and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
            order by o.id desc limit ?
            """,
            [recipe, arch, contract.precision.value, contract.purity.value, graph_hash, _MAX_ROWS],
        )
        found += _experience(recipe, rows, set(operators), structure_hash, sizes)
    return tuple(sorted(found, key=lambda entry: (entry.recipe, -entry.likeness, entry.knobs, entry.slowdown)))


def _experience(recipe: str, rows: Sequence[Row], operators: set[str], structure_hash: str, sizes: Sequence[int]) -> list[Experience]:
    fastest: dict[str, float] = {}
    tried: dict[tuple[str, str], tuple[float, float]] = {}  # by graph and choices: best time, likeness
    likeness: dict[str, float] = {}
    for row in rows:
        graph, latency_ms, choices = str(row["graph_hash"]), float(row["latency_ms"]), str(row["choices"])
        if graph not in likeness:
            likeness[graph] = _likeness(row, operators, structure_hash, sizes)
        fastest[graph] = min(latency_ms, fastest.get(graph, latency_ms))
        known = tried.get((graph, choices))
        tried[graph, choices] = (min(latency_ms, known[0]) if known else latency_ms, likeness[graph])
    found = []
    settings_of = Counter(graph for graph, _ in tried)
    for (graph, choices), (latency_ms, weight) in tried.items():
        if settings_of[graph] == 1:
            continue  # the best of one: nothing is known of how good it is
        for choice in json.loads(choices):
            if choice["recipe"] == recipe:
                knobs = tuple((name, value) for name, value in choice["knobs"])
                found.append(Experience(recipe, knobs, latency_ms / fastest[graph], weight))
    return found


def _likeness(row: Row, operators: set[str], structure_hash: str, sizes: Sequence[int]) -> float:
    packed = pack_sizes(sizes)
    if row["structure_hash"] == structure_hash and len(row["sizes"]) == len(packed):
        import numpy as np  # recall of another structure needs no arithmetic

        other = np.frombuffer(row["sizes"], dtype="<i8").reshape(1, len(sizes))
        return float(1.0 / (1.0 + size_distance(np.asarray(sizes, dtype=np.int64), other)[0]))
    there = {choice["operator"] for choice in json.loads(str(row["choices"]))}
    return _SAME_OPERATOR if there & operators else _SAME_RECIPE
