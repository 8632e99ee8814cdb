"""Which kernels to start from: remembered winners for a graph, its structure and its operators.

No language model is asked. Every query walks an index and stops after a bounded number of rows, so
that a memory of a million outcomes answers in milliseconds.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from kmem.memory.ledger.graphs import GraphKey, pack_sizes, size_distance
from kmem.memory.schema import REFUSALS
from kmem.memory.storage import Row, Tables, Value
from kmem.records import Outcome, Recalled
from kmem.serialize import from_json

#: Rows looked at per graph or operator before giving up: the same kernel measured again and again
#: must not cost more than this.
_MAX_ROWS = 200
#: Graphs of one structure asked for a winner, nearest first.
_MAX_GRAPHS = 64

#: Outcome `o` is not retracted, and the judge refused its kernel nowhere on its architecture.
_STANDS = f"""
    not exists (select 1 from retractions r where r.outcome_hash = o.hash)
    and not exists (
        select 1 from outcomes b indexed by outcomes_refused
        where b.graph_hash = o.graph_hash
          and b.source_hash = o.source_hash
          and b.arch = o.arch
          and b.status in {REFUSALS}
          and not exists (select 1 from retractions rb where rb.outcome_hash = b.hash)
    )
"""
_OF_GRAPH = f"""
    select o.id, o.source_hash
    from outcomes o
    where o.graph_hash = ?
      and o.arch = ?
      and o.precision = ?
      and o.purity = ?
      and o.status = 'passed'
      and {_STANDS}
    order by json_extract(o.record, '$.ratio') is null, o.latency_ms, o.hash
    limit ?
"""
_OF_OTHER_STRUCTURES = f"""
    select o.id, o.source_hash
    from json_each(?) given
    join outcomes o on o.id = given.value
    join graphs g on g.hash = o.graph_hash
    where g.structure_hash != ?
      and {_STANDS}
    order by o.hash
"""


class Winners(Tables):
    """`memory.winners`: what to start from."""

    def recall(self, key: GraphKey, limit: int = 3) -> list[Recalled]:
        """Remembered winners for a graph, best first, at most `limit` of each kind.

        1. Exact: this graph on this architecture under this contract; kernels judged in full (with
           a ratio) first, then the fastest.
        2. The same structure at other sizes: nearest first (`size_distance`), the fastest of each
           graph.
        3. Written by a recipe for one of the operators, in another structure: largest speedup over
           the best baseline first.

        Only outcomes count that passed and are not retracted, of kernels that the judge refused
        nowhere on this architecture (a kernel may pass the screening and be refused at the end).
        Each kernel comes once, with its text if that is stored here.
        """
        found: list[Recalled] = []
        seen: set[str] = set()

        def take(
            rows: Iterator[Row] | Sequence[Row], most: int, *, exact: bool, distance: float
        ) -> None:
            fresh = (row for row in rows if row["source_hash"] not in seen)
            for row in islice(fresh, most):
                seen.add(str(row["source_hash"]))
                found.append(self._recalled(row["id"], exact=exact, distance=distance))

        take(self._of_graph(key.graph_hash, key), limit, exact=True, distance=0.0)
        exact = len(found)
        for near_hash, distance in self._near_graphs(key):
            if len(found) == exact + limit:
                break
            take(self._of_graph(near_hash, key), 1, exact=False, distance=distance)
        take(self._of_operators(key), limit, exact=False, distance=math.inf)
        return found

    def withdrawn(self, kernels: Sequence[str]) -> set[tuple[str, str]]:
        """Those kernels (hash and architecture) that must not be used, whatever they passed.

        Each was refused on that architecture, or everything that it passed there was retracted.

        Args:
            kernels: hashes of their texts.
        """
        rows = self._storage.read(
            f"""
            select o.source_hash, o.arch
            from outcomes o
            left join retractions r on r.outcome_hash = o.hash
            where o.source_hash in (select value from json_each(?))
            group by o.source_hash, o.arch
            having max(o.status in {REFUSALS} and r.outcome_hash is null)
                or not max(o.status = 'passed' and r.outcome_hash is null)
            """,
            [json.dumps(list(kernels))],
        )
        return {(str(row["source_hash"]), str(row["arch"])) for row in rows}

    def _of_graph(self, graph_hash: str, key: GraphKey) -> list[Row]:
        """Winners on a graph, under the conditions of a key."""
        return self._storage.read(_OF_GRAPH, [graph_hash, *key.conditions, _MAX_ROWS])

    def _near_graphs(self, key: GraphKey) -> list[tuple[str, float]]:
        """Other graphs of the key's structure with their distances, nearest first, ties by hash."""
        packed = pack_sizes(key.sizes)
        rows = self._storage.read(
            """
            select hash, sizes from graphs
            where structure_hash = ? and hash != ? and length(sizes) = ?
            """,
            [key.structure_hash, key.graph_hash, len(packed)],
        )
        if not rows:
            return []
        import numpy as np  # recall of an unknown structure needs no arithmetic

        others = np.frombuffer(b"".join(row["sizes"] for row in rows), dtype="<i8")
        distances = size_distance(
            np.asarray(key.sizes, dtype=np.int64), others.reshape(len(rows), len(key.sizes))
        )
        ranked = sorted(
            zip((row["hash"] for row in rows), distances.tolist(), strict=True),
            key=lambda pair: (pair[1], pair[0]),
        )
        return ranked[:_MAX_GRAPHS]

    def _of_operators(self, key: GraphKey) -> Iterator[Row]:
        """Winners for any of the key's operators in other structures, by speedup, ties by hash.

        Rows are looked up as they are asked for.
        """
        best: dict[int, float] = {}
        for operator in dict.fromkeys(key.operators):
            rows = self._storage.read(
                """
                select outcome, ratio from outcome_operators
                where operator = ?
                  and by_recipe = 1
                  and arch = ?
                  and precision = ?
                  and purity = ?
                  and status = 'passed'
                order by ratio desc
                limit ?
                """,
                [operator, *key.conditions, _MAX_ROWS],
            )
            best.update((row["outcome"], row["ratio"]) for row in rows)
        ranked = sorted(best, key=best.__getitem__, reverse=True)
        for _, tied in groupby(ranked, key=best.__getitem__):
            yield from self._storage.read(
                _OF_OTHER_STRUCTURES, [json.dumps(list(tied)), key.structure_hash]
            )

    def _recalled(self, outcome_id: Value, *, exact: bool, distance: float) -> Recalled:
        (row,) = self._storage.read(
            """
            select o.record, k.source, k.record as kernel
            from outcomes o
            left join kernels k on k.hash = o.source_hash
            where o.id = ?
            """,
            [outcome_id],
        )
        kept = json.loads(row["kernel"]) if row["kernel"] else {}
        return Recalled(
            from_json(Outcome, row["record"]),
            row["source"],
            exact,
            distance,
            small_constants=kept.get("small_constants", ""),
        )
