"""How fast earlier searches came down: the best time after each of their measurements.

experience.py tells which settings were fast; this module tells how many measurements a search of a
graph like this one went on gaining for. orchestrate/yields.py makes of it what a run may still
expect of its next measurements.

A search is the outcomes of one graph by one contributor, on one device and under one seed, in the
order of their recording. A kernel that was measured again, as a final verdict does, is no further
measurement. One whose first kernel was recalled where the graph had been searched before began from
that search's winner.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kmem.memory.ledger.ageing import age_weight
from kmem.memory.ledger.graphs import GraphKey, unpack_sizes
from kmem.memory.ledger.posteriors import Trust
from kmem.memory.storage import Row, Storage
from kmem.records import REDACTED, Descent, Move, recipe_component

#: Outcomes read, newest first: a million must not make a run wait.
_MAX_ROWS = 3000


def recall_descents(
    storage: Storage,
    key: GraphKey,
    trust: Trust,
    own_name: str,
    versions: Mapping[str, str],
) -> tuple[Descent, ...]:
    """Earlier searches under the key's conditions, of this graph and of others, in a fixed order.

    What was redacted is left out, for it does not say which graph it was, and so are searches with
    a recipe that has changed since, or is not at hand: it may find more now.

    Args:
        own_name: under which this memory records.
        versions: in use now: of torch and Triton, with others of which searches count less, and of
            recipes, named as `recipe_component` does.
    """
    rows = storage.read(
        """
        select o.id, o.graph_hash, o.source_hash, o.status, o.latency_ms, o.record, o.writer,
               g.structure_hash, g.sizes
        from (select id from outcomes order by id desc limit ?1) newest
        join outcomes o on o.id = newest.id
        join graphs g on g.hash = o.graph_hash
        where o.arch = ?2
          and o.precision = ?3
          and o.purity = ?4
          and o.graph_hash != ?5
          and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        order by o.created_at, o.id
        """,
        [_MAX_ROWS, *key.conditions, REDACTED],
    )
    searches: dict[tuple[str, ...], list[_Measured]] = {}
    searched: set[str] = set()
    from_winner: set[tuple[str, ...]] = set()
    for row in rows:
        record = json.loads(str(row["record"]))
        graph = str(row["graph_hash"])
        named = graph, record["device"], row["writer"], str(record.get("seed"))
        is_first = named not in searches
        if is_first and graph in searched and record["move"] == Move.RECALL.value:
            from_winner.add(named)
        searched.add(graph)
        searches.setdefault(named, []).append(_Measured(row, record))
    found = []
    for named in sorted(searches):
        graph, writer = named[0], named[2]
        search = searches[named]
        if any(_has_changed(measured.record, versions) for measured in search):
            continue
        weight = trust.weight(writer) * age_weight(search[0].record["versions"], versions)
        if weight > 0:
            origin = {"is_own": writer == own_name, "from_winner": named in from_winner}
            found.append(_descent(graph, search, weight, **origin))
    return tuple(found)


def _has_changed(record: Mapping[str, Any], versions: Mapping[str, str]) -> bool:
    """Whether a recipe that wrote the kernel is another than the one in use."""
    components = (recipe_component(choice["recipe"]) for choice in record["choices"])
    return any(record["versions"].get(each) != versions.get(each) for each in components)


class _Measured(NamedTuple):
    row: Row
    record: Mapping[str, Any]


def _descent(
    graph: str, search: Sequence[_Measured], trust: float, *, is_own: bool, from_winner: bool
) -> Descent:
    seen: set[str] = set()
    recipes: set[str] = set()
    falling: list[float | None] = []
    bounds = [ms for _, record in search if (ms := record.get("bound_ms"))]
    for row, record in search:
        recipes.update(choice["recipe"] for choice in record["choices"])
        if str(row["source_hash"]) in seen:
            continue
        seen.add(str(row["source_hash"]))
        before = falling[-1] if falling else None
        now = row["latency_ms"] if row["status"] == "passed" else None
        falling.append(min((float(ms) for ms in (before, now) if ms), default=None))
    return Descent(
        graph,
        str(search[0].row["structure_hash"]),
        unpack_sizes(search[0].row["sizes"]),
        tuple(sorted(recipes)),
        tuple(falling),
        is_own,
        trust,
        min(bounds, default=None),
        from_winner,
    )
