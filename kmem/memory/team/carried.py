"""What a run commits in one database, carried into another while it goes on.

A run on another machine has a database of its own. What it commits there is told in pieces: rows of
the tables of runs as they are, and outcomes as lines of an export (lines.py). Taking a piece in is
idempotent, and the same pieces in the same order give the same run, which can be resumed from them.

Not carried: sums and embeddings, which follow from the rest, and ceilings, which are of a card.
"""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from kmem.memory.runs.entries import OF_A_RUN
from kmem.memory.storage import Row
from kmem.memory.store import Memory
from kmem.memory.team.exchange import merge_texts
from kmem.memory.team.lines import outcome_lines
from kmem.records import Run, RunState
from kmem.serialize import from_json, to_json

#: Tables whose rows belong to a run; what a table refers to comes before it.
_OF_RUNS = ("runs", *OF_A_RUN)
#: Their numbers are of one database.
_NUMBERED = frozenset({"attempts", "unanswered"})
_TABLES = ("kernels", *_OF_RUNS, "baselines")


class News:
    """What a database has that was not there at the beginning, each piece once."""

    def __init__(self, memory: Memory, resumed: str | None = None) -> None:
        """What is there now is no news.

        Args:
            resumed: the id of a run that will go on.
        """
        self._memory = memory
        self._outcome = int(memory.storage.read(_LAST_OUTCOME)[0]["last"] or 0)
        old = {str(row["id"]) for row in memory.storage.read("select id from runs")}
        self._old = json.dumps(sorted(old - {resumed}))
        self._told: set[str] = set()
        self._seen = -1
        self.read()

    def read(self) -> str | None:
        """The next piece as a line of JSON; None if nothing was committed since the last."""
        storage = self._memory.storage
        version = int(storage.read("pragma data_version")[0]["data_version"])
        if version == self._seen:
            return None
        self._seen = version
        rows: dict[str, list[Row]] = {}
        with storage.snapshot():
            for table in _OF_RUNS:
                self._add(rows, table, self._of_new_runs(table))
            kernels = [[row["kernel"]] for row in rows.get("attempts", ())]
            for kernel in kernels:
                found = storage.read("select * from kernels where hash = ?", kernel)
                self._add(rows, "kernels", found)
            self._add(rows, "baselines", storage.read("select * from baselines"))
            new = storage.read(_NEW_OUTCOMES, [self._outcome])
            lines = list(outcome_lines(self._memory, new, sources=True, redact=False))
            self._outcome = int(storage.read(_LAST_OUTCOME)[0]["last"] or 0)
        if not rows and not lines:
            return None
        return json.dumps({"rows": rows, "outcomes": lines})

    def _of_new_runs(self, table: str) -> list[Row]:
        column, order = ("id" if table == "runs" else "run"), "order by rowid"
        return self._memory.storage.read(
            f"select * from {table} where {column} not in (select value from json_each(?)) {order}",
            [self._old],
        )

    def _add(self, rows: dict[str, list[Row]], table: str, found: list[Row]) -> None:
        for row in found:
            text = f"{table} {json.dumps(row, sort_keys=True)}"
            if text not in self._told:
                self._told.add(text)
                rows.setdefault(table, []).append(row)


_LAST_OUTCOME = "select max(id) as last from outcomes"
_NEW_OUTCOMES = """
    select o.hash, o.source_hash, o.record, null as redacts
    from outcomes o
    where o.id > ?
    order by o.id
"""


def take_news(memory: Memory, news: str, out_dir: Path, problem: Path) -> str | None:
    """Take a piece in; a second time it changes nothing.

    Args:
        out_dir: the run's directory as it is called here.
        problem: the problem's file, likewise.

    Returns:
        The id of the run if the piece says anything of one.
    """
    data = json.loads(news)
    rows: Mapping[str, list[Row]] = data["rows"]
    run_id = None
    with memory.storage.write():
        for table in _TABLES:
            for row in rows.get(table, ()):
                if table == "runs":
                    run_id = str(row["id"])
                    _take_run(memory, row, out_dir, problem)
                else:
                    _take_row(memory, table, row)
        merge_texts(memory, data["outcomes"], f"outcomes of run {run_id or 'elsewhere'}")
    return run_id


def _take_run(memory: Memory, row: Row, out_dir: Path, problem: Path) -> None:
    run = move_run(from_json(Run, str(row["record"])), out_dir, problem)
    with memory.storage.write() as connection:
        connection.execute(
            """
            insert into runs (id, state, record, result, failure, seconds_spent, created_at)
            values (?, ?, ?, ?, ?, ?, ?)
            on conflict (id) do update set
                state = excluded.state,
                result = excluded.result,
                failure = excluded.failure,
                seconds_spent = excluded.seconds_spent
            """,
            [
                row["id"],
                row["state"],
                to_json(run),
                row["result"],
                row["failure"],
                row["seconds_spent"],
                row["created_at"],
            ],
        )


def _take_row(memory: Memory, table: str, row: Row) -> None:
    named = {name: value for name, value in row.items() if name != "id" or table not in _NUMBERED}
    columns, marks = ", ".join(named), ", ".join("?" * len(named))
    values = list(named.values())
    with memory.storage.write() as connection:
        if table == "unanswered":  # only the number tells two of these apart
            same = " and ".join(f"{name} is ?" for name in named)
            connection.execute(
                f"insert into {table} ({columns}) select {marks} "
                f"where not exists (select 1 from {table} where {same})",
                [*values, *values],
            )
            return
        verb = "insert or ignore" if table in ("attempts", "kernels") else "insert or replace"
        connection.execute(f"{verb} into {table} ({columns}) values ({marks})", values)


def move_run(run: Run, out_dir: Path, problem: Path) -> Run:
    """The run with its directory and its problem's file as they are called elsewhere."""
    return replace(run, out_dir=str(out_dir), problem=replace(run.problem, path=str(problem)))


def settle_elsewhere(memory: Memory, run_id: str, out_dir: Path, problem: Path) -> None:
    """Let a run that is to be resumed have its directory and its problem's file here."""
    run = move_run(memory.runs.get(run_id), out_dir, problem)
    with memory.storage.write() as connection:
        connection.execute(
            "update runs set record = ?, state = ? where id = ?",
            [to_json(run), RunState.INTERRUPTED.value, run_id],
        )


def copy_memory(memory: Memory, place: Path) -> None:
    """Copy the whole database into a file, which is replaced when the copy is whole."""
    partial = place.with_name(place.name + ".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        memory.storage.db.conn.backup(target)
    partial.replace(place)
