"""What to start from: winners remembered for this graph, for graphs of its structure, and for its
operators. No model is asked.

Every query walks an index and stops after a bounded number of rows, so that a million outcomes
answer in milliseconds.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from kmem.memory.ledger.outcomes import pack_sizes
from kmem.memory.storage import Row, Tables
from kmem.records import Contract, Outcome, Recalled
from kmem.serialize import from_json

#: Rows looked at per graph or operator before giving up: the same kernel measured again and again
#: must not cost more than this.
_MAX_ROWS = 200
#: Graphs of one structure asked for a winner, nearest first.
_MAX_GRAPHS = 64


class Winners(Tables):
    """`memory.winners`: what to start from."""

    def recall(
        self,
        graph_hash: str,
        structure_hash: str,
        operators: Sequence[str],
        sizes: Sequence[int],
        *,
        arch: str,
        contract: Contract,
        limit: int = 3,
    ) -> list[Recalled]:
        """Remembered winners for a graph, best first, at most `limit` of each kind and each kernel
        once.

        1. exact: this graph on this architecture under this contract; kernels judged in full (with
        a ratio) first, then the fastest.
        2. same structure at other sizes; nearest first (`size_distance`), the fastest of each
        graph.
        3. written by a recipe for one of `operators` in another structure; largest speedup over the
        best baseline first.

        Only outcomes that passed and are not retracted, of kernels the judge refused nowhere on
        this architecture (a kernel may pass the screening and be refused at the end); the text of
        the kernel comes along if it is stored here.
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

        take(self._winners(graph_hash, arch, contract), limit, exact=True, distance=0.0)
        exact = len(found)
        for near_hash, distance in self._near_graphs(graph_hash, structure_hash, sizes):
            if len(found) == exact + limit:
                break
            take(self._winners(near_hash, arch, contract), 1, exact=False, distance=distance)
        take(
            self._operator_winners(operators, structure_hash, arch, contract),
            limit,
            exact=False,
            distance=math.inf,
        )
        return found

    def _winners(self, graph_hash: str, arch: str, contract: Contract) -> list[Row]:
        return self._storage.read(
            """
            select o.id, o.source_hash from outcomes o
            where o.graph_hash = ? and o.arch = ? and o.precision = ? and o.purity = ? and o.status = 'passed'
              and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
              and not exists (
                select 1 from outcomes b indexed by outcomes_refused
                where b.graph_hash = o.graph_hash and b.source_hash = o.source_hash and b.arch = o.arch
                  and b.status in (
                    'wrong_values', 'wrong_contract', 'mutated_input', 'not_repeatable', 'impure', 'implausible', 'refused_source'
                  )
                  and not exists (select 1 from retractions rb where rb.outcome_hash = b.hash)
              )
            order by json_extract(o.record, '$.ratio') is null, o.latency_ms, o.hash limit ?
            """,
            [graph_hash, arch, contract.precision.value, contract.purity.value, _MAX_ROWS],
        )

    def _near_graphs(
        self, graph_hash: str, structure_hash: str, sizes: Sequence[int]
    ) -> list[tuple[str, float]]:
        packed = pack_sizes(sizes)
        rows = self._storage.read(
            (
                "select hash, sizes from graphs where structure_hash = ? and hash != ? and "
                "length(sizes) = ?"
            ),
            [structure_hash, graph_hash, len(packed)],
        )
        if not rows:
            return []
        import numpy as np  # recall of an unknown structure needs no arithmetic

        others = np.frombuffer(b"".join(row["sizes"] for row in rows), dtype="<i8").reshape(
            len(rows), len(sizes)
        )
        distances = size_distance(np.asarray(sizes, dtype=np.int64), others)
        ranked = sorted(
            zip((row["hash"] for row in rows), distances.tolist(), strict=True),
            key=lambda pair: (pair[1], pair[0]),
        )
        return ranked[:_MAX_GRAPHS]

    def _operator_winners(
        self, operators: Sequence[str], structure_hash: str, arch: str, contract: Contract
    ) -> Iterator[Row]:
        """Winners for any of the operators in other structures, by speedup, ties by hash; looked up
        as they are asked for.
        """
        best: dict[int, float] = {}
        for operator in dict.fromkeys(operators):
            rows = self._storage.read(
                """
                select outcome, ratio from outcome_operators
                where operator = ? and by_recipe = 1 and arch = ? and precision = ? and purity = ? and status = 'passed'
                order by ratio desc limit ?
                """,
                [operator, arch, contract.precision.value, contract.purity.value, _MAX_ROWS],
            )
            best.update((row["outcome"], row["ratio"]) for row in rows)
        for _, tied in groupby(
            sorted(best, key=best.__getitem__, reverse=True), key=best.__getitem__
        ):
            yield from self._storage.read(
                """
                select o.id, o.source_hash
                from json_each(?) given join outcomes o on o.id = given.value join graphs g on g.hash = o.graph_hash
                where g.structure_hash != ? and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
                  and not exists (
                    select 1 from outcomes b indexed by outcomes_refused
                    where b.graph_hash = o.graph_hash and b.source_hash = o.source_hash and b.arch = o.arch
                      and b.status in (
                        'wrong_values', 'wrong_contract', 'mutated_input', 'not_repeatable', 'impure', 'implausible', 'refused_source'
                      )
                      and not exists (select 1 from retractions rb where rb.outcome_hash = b.hash)
                  )
                order by o.hash
                """,
                [json.dumps(list(tied)), structure_hash],
            )

    def _recalled(self, outcome_id: object, *, exact: bool, distance: float) -> Recalled:
        (row,) = self._storage.read(
            (
                "select o.record, k.source from outcomes o left join kernels k on k.hash = "
                "o.source_hash where o.id = ?"
            ),
            [outcome_id],  # type: ignore[list-item]
        )
        return Recalled(from_json(Outcome, row["record"]), row["source"], exact, distance)


def size_distance(sizes, others):  # noqa: ANN001, ANN201 - numpy is imported late
    """How far graphs of one structure are apart: the mean absolute log2 ratio of their sizes, 1.0
    meaning "twice as large".

    Args:
        sizes: (n,) int64; a size of 0 counts as 1.
        others: (m, n) int64.
    Returns:
        (m,) float64; 0 where n is 0.
    """
    import numpy as np

    if sizes.shape[0] == 0:
        return np.zeros(len(others))
    return np.abs(np.log2(np.maximum(others, 1)) - np.log2(np.maximum(sizes, 1))).mean(axis=1)
