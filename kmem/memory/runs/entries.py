"""Runs as entries of a list: where each stands, what is known of its end, how one is removed."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.errors import MemoryStoreError
from kmem.memory.storage import Tables
from kmem.records import Run, RunResult, RunState
from kmem.serialize import from_json

#: Every table that holds something of a run, in the column `run`.
_OF_A_RUN = (
    "attempts",
    "profiles",
    "diagnoses",
    "plans",
    "lessons",
    "verdicts",
    "completions",
    "unanswered",
)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run as memory holds it: what was asked, where it stands, and what is known of its end."""

    run: Run
    state: RunState
    result: RunResult | None = None  # None while it has not finished
    failure: str = ""  # why it failed or was interrupted
    best_ms: float | None = None  # of the fastest attempt that passed its screening
    estimated: bool = False  # whether that time is an estimate


class Entries(Tables):
    """`memory.run_entries`: the list of runs."""

    def all(self) -> list[RunEntry]:
        """Every run, newest first."""
        return self._read("", [])

    def one(self, run_id: str) -> RunEntry:
        """A run (full id) as it stands. Raises MemoryStoreError if there is no such run."""
        found = self._read("where r.id = ?", [run_id])
        if not found:
            raise MemoryStoreError(
                f"No run '{run_id}' in this database; `kmem runs list` shows those there are"
            )
        return found[0]

    def remove(self, run_id: str) -> None:
        """Forget a run (full id) with its attempts, rounds and conversations.

        What it measured stays in the ledger, and the texts of its kernels too.
        """
        with self._storage.write() as connection:
            for table in _OF_A_RUN:
                connection.execute(f"delete from {table} where run = ?", [run_id])
            connection.execute("delete from runs where id = ?", [run_id])

    def _read(self, condition: str, parameters: Sequence[str]) -> list[RunEntry]:
        rows = self._storage.read(
            f"""
            select
                r.record,
                r.state,
                r.result,
                r.failure,
                min(a.latency_ms) as best_ms,
                max(a.estimated) as estimated
            from runs r
            left join attempts a on a.run = r.id and a.status = 'passed'
            {condition}
            group by r.id
            order by r.created_at desc, r.rowid desc
            """,
            parameters,
        )
        return [
            RunEntry(
                from_json(Run, row["record"]),
                RunState(row["state"]),
                from_json(RunResult, row["result"]) if row["result"] is not None else None,
                row["failure"] or "",
                row["best_ms"],
                bool(row["estimated"]),
            )
            for row in rows
        ]
