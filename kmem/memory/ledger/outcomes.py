"""The ledger of measured outcomes: append-only, content-addressed, failures included.

A mistake is retracted by another record. `Ledger.record_entries` is the only way in: it puts
outcomes into the ledger and adds them to the sums of sums.py in one transaction. What skills earned
is derived from those sums (track_records.py).
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kmem.errors import MemoryStoreError
from kmem.memory.ledger import sums
from kmem.memory.ledger.graphs import pack_sizes
from kmem.memory.ledger.settlements import Settlement, predictions_held
from kmem.memory.storage import Tables, Value
from kmem.records import Outcome, Status, content_hash
from kmem.serialize import from_data, from_json, to_data, to_json

#: Fields of an outcome that were measured: times in ms and ratios.
_MEASURED = (
    "latency_ms",
    "latency_ms_p20",
    "latency_ms_p80",
    "parent_ms",
    "baseline_ms",
    "ratio",
    "ratio_low",
    "ratio_high",
)
#: Fields that were computed, in ms; these may be 0.
_COMPUTED = ("bound_ms", "predicted_ms")
#: The range of what can be measured; as times in ms, 1 ps to 30 years.
_LEAST, _MOST = 1e-9, 1e12
_ALL_HASHES = "`kmem memory export` lists every hash"


@dataclass(frozen=True, slots=True)
class Retraction:
    """Says that an outcome no longer counts, and why. It may arrive before the outcome it names.

    A skill is retracted by the same record: `outcome_hash` is then what standing.py makes of the
    skill's content or name.
    """

    outcome_hash: str
    reason: str
    origin: str
    created_at: str  # ISO 8601, UTC

    @property
    def hash(self) -> str:
        """Over every field."""
        return content_hash(to_json(self))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An outcome as the ledger stores it: canonical, with its JSON and hash."""

    outcome: Outcome
    record: str
    hash: str


def ledger_entry(outcome: Outcome) -> LedgerEntry:
    """Prepare an outcome for the ledger.

    Numbers take the type of their field (1 becomes 1.0), so that the outcome's hash survives every
    round trip.
    """
    canonical = from_data(Outcome, to_data(outcome))
    record = to_json(canonical)
    return LedgerEntry(canonical, record, content_hash(record))  # what Outcome.hash is over


def refuse_impossible(outcome: Outcome) -> None:
    """Refuse numbers that no measurement gives: their logarithms and sums would end every run.

    Raises ValueError naming the first.
    """
    for names, least in ((_MEASURED, _LEAST), (_COMPUTED, 0.0)):
        for name in names:
            value = getattr(outcome, name)
            if value is not None and not least <= value <= _MOST:
                raise ValueError(f"{name} cannot be {value:g}")
    if any(not 0 <= size < 2**63 for size in outcome.sizes):
        raise ValueError("sizes must be 64-bit numbers")


class Ledger(Tables):
    """`memory.ledger`: outcomes and retractions."""

    def record(self, outcome: Outcome) -> bool:
        """Add an outcome to the ledger; False if it is there already."""
        return self.record_entries([ledger_entry(outcome)]) == 1

    def record_entries(self, entries: Iterable[LedgerEntry]) -> int:
        """Add prepared outcomes in one transaction; how many were new."""
        by_hash = {entry.hash: entry for entry in entries}
        with self._storage.write() as connection:
            known = self.known(by_hash)
            fresh = [entry for entry in by_hash.values() if entry.hash not in known]
            are_current = sums.are_current(connection)
            _insert(connection, fresh)
            if are_current:
                sums.add_outcomes(connection, [(entry.hash, entry.outcome) for entry in fresh])
        return len(fresh)

    def known(self, hashes: Iterable[str]) -> set[str]:
        """Which of these outcomes the ledger holds, retracted or not."""
        rows = self._storage.read(
            "select o.hash from json_each(?) given join outcomes o on o.hash = given.value",
            [json.dumps(list(hashes))],
        )
        return {str(row["hash"]) for row in rows}

    def outcomes(
        self,
        *,
        graph_hash: str | None = None,
        structure_hash: str | None = None,
        operator: str | None = None,
        skill: str | None = None,
        arch: str | None = None,
        status: Status | None = None,
    ) -> list[Outcome]:
        """Outcomes that match every filter given and are not retracted, oldest first.

        Ties come by hash: the order of insertion never shows.
        """
        filters = {
            "o.graph_hash = ?": graph_hash,
            "g.structure_hash = ?": structure_hash,
            "o.id in (select outcome from outcome_operators where operator = ?)": operator,
            "o.skill = ?": skill,
            "o.arch = ?": arch,
            "o.status = ?": status.value if status else None,
        }
        given = {condition: value for condition, value in filters.items() if value is not None}
        standing = """
            select o.record
            from outcomes o
            join graphs g on g.hash = o.graph_hash
            where not exists (select 1 from retractions r where r.outcome_hash = o.hash)
        """
        # Only the conditions asked for, so that SQLite can use their indices among a million rows.
        rows = self._storage.read(
            " and ".join([standing, *given]) + " order by o.created_at, o.hash",
            list(given.values()),
        )
        return [from_json(Outcome, row["record"]) for row in rows]

    def find(self, outcome_hash: str) -> Outcome | None:
        """The outcome with this hash, retracted or not."""
        rows = self._storage.read("select record from outcomes where hash = ?", [outcome_hash])
        return from_json(Outcome, rows[0]["record"]) if rows else None

    def passed(self, skill: str, source_hash: str) -> list[LedgerEntry]:
        """Outcomes in which a kernel of a skill passed that are not retracted, oldest first."""
        rows = self._storage.read(
            """
            select o.hash, o.record from outcomes o
            where o.skill = ?
              and o.source_hash = ?
              and o.status = 'passed'
              and not exists (select 1 from retractions r where r.outcome_hash = o.hash)
            order by o.created_at, o.hash
            """,
            [skill, source_hash],
        )
        return [
            LedgerEntry(from_json(Outcome, row["record"]), str(row["record"]), str(row["hash"]))
            for row in rows
        ]

    def retract(self, outcome_hash: str, reason: str, origin: str) -> Retraction:
        """Record that an outcome no longer counts.

        Raises MemoryStoreError if the ledger has no such outcome.
        """
        if not self._storage.read("select 1 from outcomes where hash = ?", [outcome_hash]):
            raise MemoryStoreError(
                f"No outcome '{outcome_hash}' in {self._storage.path}; {_ALL_HASHES}"
            )
        retraction = Retraction(
            outcome_hash, reason, origin, datetime.now(UTC).isoformat(timespec="microseconds")
        )
        self.record_retraction(retraction)
        return retraction

    def resolve(self, prefix: str) -> str:
        """The hash of the one outcome whose hash begins so.

        Raises MemoryStoreError if none or several do.
        """
        rows = self._storage.read(
            "select hash from outcomes where hash >= ? and hash < ? limit 2",
            [prefix, prefix + "g"],  # "g" follows every digit
        )
        if len(rows) != 1 or not prefix:
            count = "Several outcomes begin" if rows else "No outcome begins"
            raise MemoryStoreError(
                f"{count} with '{prefix}' in {self._storage.path}; {_ALL_HASHES}"
            )
        return str(rows[0]["hash"])

    def record_retraction(self, retraction: Retraction) -> bool:
        """Add a retraction; False if it is there already.

        The first one of an outcome takes it out of the sums.
        """
        with self._storage.write() as connection:
            standing = _standing(connection, retraction.outcome_hash)
            added = connection.execute(
                "insert or ignore into retractions (hash, outcome_hash, record) values (?, ?, ?)",
                [retraction.hash, retraction.outcome_hash, to_json(retraction)],
            ).rowcount
            if standing is not None and sums.are_current(connection):
                sums.withdraw_outcome(connection, retraction.outcome_hash, standing)
            return added > 0

    def record_settlement(self, settlement: Settlement) -> bool:
        """Add what became of an outcome's prediction; False if it is there already."""
        with self._storage.write() as connection:
            standing = _standing(connection, settlement.outcome_hash)
            is_summed = standing is not None and sums.are_current(connection)
            named = [(settlement.outcome_hash, standing)] if standing else []
            before = predictions_held(connection, named)
            added = connection.execute(
                "insert or ignore into settlements (hash, outcome_hash, record) values (?, ?, ?)",
                [settlement.hash, settlement.outcome_hash, to_json(settlement)],
            ).rowcount
            if is_summed:
                ((outcome_hash, outcome),) = named
                after = predictions_held(connection, named)
                sums.settle_outcome(
                    connection, outcome, before.get(outcome_hash), after.get(outcome_hash)
                )
            return added > 0

    def settlements(self) -> list[Settlement]:
        """Every settlement, by hash."""
        rows = self._storage.read("select record from settlements order by hash")
        return [from_json(Settlement, row["record"]) for row in rows]

    def retractions(self) -> list[Retraction]:
        """Every retraction, by hash."""
        rows = self._storage.read("select record from retractions order by hash")
        return [from_json(Retraction, row["record"]) for row in rows]


def _standing(connection: sqlite3.Connection, outcome_hash: str) -> Outcome | None:
    """The outcome with this hash, unless the ledger lacks it or it was retracted."""
    row = connection.execute(
        """
        select record from outcomes
        where hash = ?
          and not exists (select 1 from retractions where outcome_hash = outcomes.hash)
        """,
        [outcome_hash],
    ).fetchone()
    return None if row is None else from_json(Outcome, row[0])


def _insert(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Add outcomes that the ledger does not hold.

    Each statement takes many rows: a merge brings ten thousand outcomes at once.
    """
    (last,) = connection.execute("select coalesce(max(id), 0) from outcomes").fetchone()
    numbered = list(enumerate(entries, start=last + 1))
    connection.executemany(
        "insert or ignore into graphs (hash, structure_hash, sizes) values (?, ?, ?)",
        {entry.outcome.graph_hash: _graph_row(entry.outcome) for entry in entries}.values(),
    )
    connection.executemany(
        """
        insert into outcomes (
            id, hash, graph_hash, arch, precision, purity, skill, status, source_hash, latency_ms,
            created_at, record
        )
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        [_outcome_row(number, entry) for number, entry in numbered],
    )
    connection.executemany(
        """
        insert into outcome_operators (
            operator, by_recipe, arch, precision, purity, status, ratio, outcome
        )
        values (?, ?, ?, ?, ?, ?, ?, ?)
        """,
        # in the order of the table
        sorted(row for number, entry in numbered for row in _operator_rows(number, entry.outcome)),
    )


def _graph_row(outcome: Outcome) -> tuple[Value, ...]:
    return outcome.graph_hash, outcome.structure_hash, pack_sizes(outcome.sizes)


def _outcome_row(number: int, entry: LedgerEntry) -> tuple[Value, ...]:
    outcome = entry.outcome
    precision = outcome.contract.precision.value
    purity = outcome.contract.purity.value
    status = outcome.status.value
    return (
        number,
        entry.hash,
        outcome.graph_hash,
        outcome.arch,
        precision,
        purity,
        outcome.skill,
        status,
        outcome.source_hash,
        outcome.latency_ms,
        outcome.created_at,
        entry.record,
    )


def _operator_rows(number: int, outcome: Outcome) -> list[tuple[Value, ...]]:
    by_recipe = {choice.operator for choice in outcome.choices}
    contract = outcome.contract
    status = outcome.status.value
    ratio = outcome.ratio or 0.0
    return [
        (
            operator,
            operator in by_recipe,
            outcome.arch,
            contract.precision.value,
            contract.purity.value,
            status,
            ratio,
            number,
        )
        for operator in by_recipe.union(outcome.operators)
    ]
