"""Runs as entries of a list: where each stands, what is known of its end, how one is removed."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.errors import MemoryStoreError
from kmem.memory.storage import Tables
from kmem.records import Run, RunResult, RunState
from kmem.serialize import from_json

#: Every table that holds something of a run, in the column `run`.
OF_A_RUN = (
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


@dataclass(frozen=True, slots=True)
class RunLine:
    """What a list shows of a run: columns alone, so that thousands are read at once.

    `latency_ms` is that of the winner, `best_ms` that of the fastest attempt that passed its
    screening; `estimated` is None while nothing has a time.
    """

    id: str
    state: RunState
    problem: str
    target: str
    precision: str
    created_at: str
    out_dir: str
    failure: str
    reason: str
    speedup: float | None
    latency_ms: float | None
    best_ms: float | None
    speed_of_light: float | None
    estimated: bool | None
    attempts: int


class Entries(Tables):
    """`memory.run_entries`: the list of runs."""

    #: The lines, and the state of the database that they show.
    _lines: tuple[tuple[int, int], list[RunLine]] | None = None

    def lines(self, problem: str | None = None) -> list[RunLine]:
        """Every run as a line, newest first.

        What was read holds until somebody writes, in this process or another.

        Args:
            problem: only the runs of problems with this name.
        """
        (others,) = self._storage.read("pragma data_version")
        state = (others["data_version"], self._storage.db.conn.total_changes)
        if self._lines is None or self._lines[0] != state:
            self._lines = (state, self._read_lines())
        lines = self._lines[1]
        return [line for line in lines if problem is None or line.problem == problem]

    def _read_lines(self) -> list[RunLine]:
        rows = self._storage.read(
            """
            select
                r.id,
                r.state,
                json_extract(r.record, '$.problem.name') as problem,
                json_extract(r.record, '$.target') as target,
                json_extract(r.record, '$.contract.precision') as precision,
                r.created_at,
                json_extract(r.record, '$.out_dir') as out_dir,
                coalesce(r.failure, '') as failure,
                coalesce(json_extract(r.result, '$.reason'), '') as reason,
                json_extract(r.result, '$.speedup') as speedup,
                json_extract(r.result, '$.best.measurement.timing.latency_ms') as latency_ms,
                a.best_ms,
                json_extract(r.result, '$.speed_of_light') as speed_of_light,
                a.estimated,
                coalesce(a.attempts, 0) as attempts
            from runs r
            left join (
                select
                    run,
                    min(case when status = 'passed' then latency_ms end) as best_ms,
                    max(estimated) as estimated,
                    count(*) as attempts
                from attempts indexed by attempts_by_time
                group by run
            ) a on a.run = r.id
            order by r.created_at desc, r.rowid desc
            """
        )
        return [
            RunLine(
                **row
                | {
                    "state": RunState(row["state"]),
                    "estimated": None if row["estimated"] is None else bool(row["estimated"]),
                }
            )
            for row in rows
        ]

    def problem_paths(self, most: int) -> list[str]:
        """Where the problems of runs lay, those run last first."""
        rows = self._storage.read(
            """
            select json_extract(record, '$.problem.path') as path
            from runs
            group by path
            order by max(created_at) desc
            limit ?
            """,
            [most],
        )
        return [str(row["path"]) for row in rows]

    def all(self) -> list[RunEntry]:
        """Every run, newest first."""
        return self._read("", [])

    def revision(self, run_id: str) -> tuple[object, ...]:
        """What changes whenever something of a run (full id) is kept; empty without such a run."""
        rows = self._storage.read(
            """
            select
                state,
                seconds_spent,
                (select count(*) from attempts where run = r.id),
                (select count(*) from plans where run = r.id),
                (select count(*) from diagnoses where run = r.id),
                (select count(*) from verdicts where run = r.id),
                (select count(*) from lessons where run = r.id)
            from runs r
            where id = ?
            """,
            [run_id],
        )
        return tuple(rows[0].values()) if rows else ()

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
            for table in OF_A_RUN:
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
