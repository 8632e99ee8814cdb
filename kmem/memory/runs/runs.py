"""Runs and their short-term memory, from which a killed run resumes.

That is kernels, attempts, profiles, diagnoses, plans, lessons and final verdicts. What outlives a
run is in the ledger (ledger/outcomes.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.errors import MemoryStoreError
from kmem.memory.storage import Row, Tables
from kmem.records import (
    Attempt,
    Diagnosis,
    Kernel,
    Lesson,
    Measurement,
    Plan,
    Prescription,
    Profile,
    Run,
    RunResult,
    RunState,
    Status,
)
from kmem.serialize import from_data, from_json, to_data, to_json

#: Runs that the error for an ambiguous prefix names, the newest.
_NAMED_AT_MOST = 4


@dataclass(frozen=True, slots=True)
class RoundDiagnosis:
    """What a round of a run found about a kernel, and what was offered for it."""

    round: int
    kernel: str  # hash
    diagnosis: Diagnosis
    prescriptions: tuple[Prescription, ...]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round of a run decided to try."""

    round: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's final verdict on a kernel of a run, and when the run asked for it.

    `attempts` counts those that the run had made by then; `early` says that its search went on
    afterwards.
    """

    measurement: Measurement
    attempts: int = 0
    early: bool = False


class Runs(Tables):
    """`memory.runs`: runs and their short-term memory."""

    def start(self, run: Run) -> None:
        """Keep a run as RUNNING. Starting it again changes nothing but the state."""
        with self._storage.write() as connection:
            connection.execute(
                """
                insert into runs (id, state, record, created_at) values (?, ?, ?, ?)
                on conflict (id) do update set state = excluded.state
                """,
                [run.id, RunState.RUNNING.value, to_json(run), run.created_at],
            )

    def set_state(
        self, run_id: str, state: RunState, result: RunResult | None = None, failure: str = ""
    ) -> None:
        """Move a run to a state, with its result if there is one; else an earlier result is kept.

        Args:
            failure: why the run has not finished, for `kmem runs show`.

        Raises:
            MemoryStoreError: if there is no such run.
        """
        with self._storage.write() as connection:
            changed = connection.execute(
                """
                update runs set state = ?, result = coalesce(?, result), failure = ? where id = ?
                """,
                [state.value, to_json(result) if result else None, failure or None, run_id],
            ).rowcount
        if not changed:
            raise _no_run(run_id)

    def put_seconds_spent(self, run_id: str, seconds: float) -> None:
        """Keep how much of its minutes a run has used, over all its sittings."""
        with self._storage.write() as connection:
            connection.execute(
                "update runs set seconds_spent = max(seconds_spent, ?) where id = ?",
                [seconds, run_id],
            )

    def has(self, run_id: str) -> bool:
        """Whether there is a run with this full id."""
        return bool(self._storage.read("select 1 from runs where id = ?", [run_id]))

    def seconds_spent(self, run_id: str) -> float:
        """How much of its minutes a run has used; 0 for one that is not there."""
        rows = self._storage.read("select seconds_spent from runs where id = ?", [run_id])
        return float(rows[0]["seconds_spent"]) if rows else 0.0

    def get(self, run_id: str) -> Run:
        """The run with this id or whose id begins so.

        Raises MemoryStoreError if none or several do.
        """
        rows = self._storage.read(
            "select id, record from runs where substr(id, 1, ?) = ? order by id",
            [len(run_id), run_id],
        )
        exact = [row for row in rows if row["id"] == run_id]
        if not rows or not run_id:
            raise _no_run(run_id)
        if len(rows) > 1 and not exact:
            found = ", ".join(str(row["id"]) for row in rows[-_NAMED_AT_MOST:])
            more = f" and {len(rows) - _NAMED_AT_MOST} more" if len(rows) > _NAMED_AT_MOST else ""
            raise MemoryStoreError(
                f"{len(rows)} runs begin with '{run_id}': {found}{more}; give more of the id"
            )
        return from_json(Run, (exact or rows)[0]["record"])

    def has_prefix(self, prefix: str) -> bool:
        """Whether the id of a run begins so."""
        found = "select 1 from runs where substr(id, 1, ?) = ? limit 1"
        return bool(self._storage.read(found, [len(prefix), prefix]))

    def state(self, run_id: str) -> RunState:
        """Where a run (full id) stands. Raises MemoryStoreError if there is no such run."""
        return RunState(self._run_row(run_id)["state"])

    def result(self, run_id: str) -> RunResult | None:
        """What a run (full id) ended with; None while it has not.

        Raises MemoryStoreError if there is no such run.
        """
        return _result(self._run_row(run_id))

    def _run_row(self, run_id: str) -> Row:
        rows = self._storage.read("select state, result from runs where id = ?", [run_id])
        if not rows:
            raise _no_run(run_id)
        return rows[0]

    def put_kernel(self, kernel: Kernel) -> bool:
        """Keep a kernel under the hash of its source; False if it is there.

        What was first said about its parent and recipe stays.
        """
        data = to_data(kernel)
        del data["source"]
        with self._storage.write() as connection:
            changed = connection.execute(
                "insert or ignore into kernels (hash, source, parent, record) values (?, ?, ?, ?)",
                [kernel.hash, kernel.source, kernel.parent, json.dumps(data)],
            ).rowcount
        return changed > 0

    def kernel(self, kernel_hash: str) -> Kernel | None:
        """The kernel with this source hash; None if its text was never stored here."""
        rows = self._storage.read(
            "select source, record from kernels where hash = ?", [kernel_hash]
        )
        if not rows:
            return None
        return from_data(Kernel, json.loads(rows[0]["record"]) | {"source": rows[0]["source"]})

    def record_attempt(self, run_id: str, attempt: Attempt) -> bool:
        """Keep an attempt and its kernel; False if the run has one for the same task already.

        The same task is the same kernel, move and skill. An attempt that was interrupted says
        nothing, so a later one for the same task takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        kernel = attempt.candidate.kernel
        task = attempt.candidate.task
        status = attempt.measurement.status.value
        data = to_data(attempt)
        del data["candidate"]["kernel"]["source"]  # kept once, in kernels
        with self._storage.write() as connection:
            self.put_kernel(kernel)
            changed = connection.execute(
                """
                insert into attempts (
                    run, kernel, move, skill, status, latency_ms, estimated, record
                )
                values (?, ?, ?, ?, ?, ?, ?, ?)
                on conflict (run, kernel, move, skill) do update set
                    status = excluded.status,
                    latency_ms = excluded.latency_ms,
                    estimated = excluded.estimated,
                    record = excluded.record
                where status = ?
                """,
                [
                    run_id,
                    kernel.hash,
                    task.move.value,
                    task.skill,
                    status,
                    attempt.measurement.latency_ms,
                    attempt.measurement.estimated,
                    json.dumps(data),
                    Status.INTERRUPTED.value,
                ],
            ).rowcount
        return changed > 0

    def attempts(self, run_id: str) -> list[Attempt]:
        """The attempts of a run, oldest first."""
        rows = self._storage.read(
            """
            select a.record, k.source
            from attempts a
            join kernels k on k.hash = a.kernel
            where a.run = ?
            order by a.id
            """,
            [run_id],
        )
        attempts = []
        for row in rows:
            data = json.loads(row["record"])
            data["candidate"]["kernel"]["source"] = row["source"]
            attempts.append(from_data(Attempt, data))
        return attempts

    def put_profile(self, run_id: str, profile: Profile) -> None:
        """Keep a profile; the same profiler's next one of the kernel takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        with self._storage.write() as connection:
            connection.execute(
                """
                insert or replace into profiles (run, kernel, profiler, device, record)
                values (?, ?, ?, ?, ?)
                """,
                [run_id, profile.kernel, profile.profiler, profile.device, to_json(profile)],
            )

    def profiles(self, run_id: str) -> list[Profile]:
        """The profiles of a run, oldest first."""
        rows = self._storage.read(
            "select record from profiles where run = ? order by rowid", [run_id]
        )
        return [from_json(Profile, row["record"]) for row in rows]

    def put_diagnosis(
        self,
        run_id: str,
        round: int,
        kernel_hash: str,
        diagnosis: Diagnosis,
        prescriptions: Sequence[Prescription],
    ) -> None:
        """Keep what a round found and offered; the same round again takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        offered = [to_data(prescription) for prescription in prescriptions]
        with self._storage.write() as connection:
            connection.execute(
                """
                insert or replace into diagnoses (run, round, kernel, record, prescriptions)
                values (?, ?, ?, ?, ?)
                """,
                [run_id, round, kernel_hash, to_json(diagnosis), json.dumps(offered)],
            )

    def diagnoses(self, run_id: str) -> list[RoundDiagnosis]:
        """The diagnoses of a run, by round."""
        rows = self._storage.read(
            """
            select round, kernel, record, prescriptions
            from diagnoses
            where run = ?
            order by round, rowid
            """,
            [run_id],
        )
        return [
            RoundDiagnosis(
                row["round"],
                row["kernel"],
                from_json(Diagnosis, row["record"]),
                tuple(from_data(Prescription, data) for data in json.loads(row["prescriptions"])),
            )
            for row in rows
        ]

    def put_plan(self, run_id: str, round: int, plan: Plan) -> None:
        """Keep what a round decided to try and vetoed; the same round again takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        with self._storage.write() as connection:
            connection.execute(
                "insert or replace into plans (run, round, record) values (?, ?, ?)",
                [run_id, round, to_json(plan)],
            )

    def plans(self, run_id: str) -> list[RoundPlan]:
        """The plans of a run, by round."""
        rows = self._storage.read(
            "select round, record from plans where run = ? order by round", [run_id]
        )
        return [RoundPlan(row["round"], from_json(Plan, row["record"])) for row in rows]

    def put_lessons(self, run_id: str, round: int, lessons: Sequence[Lesson]) -> None:
        """Keep what a round taught; the same round again takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        with self._storage.write() as connection:
            connection.execute("delete from lessons where run = ? and round = ?", [run_id, round])
            connection.executemany(
                "insert into lessons (run, round, place, record) values (?, ?, ?, ?)",
                [(run_id, round, place, to_json(lesson)) for place, lesson in enumerate(lessons)],
            )

    def lessons(self, run_id: str) -> list[Lesson]:
        """What a run taught, oldest first."""
        rows = self._storage.read(
            "select record from lessons where run = ? order by round, place", [run_id]
        )
        return [from_json(Lesson, row["record"]) for row in rows]

    def put_verdict(self, run_id: str, kernel_hash: str, verdict: Verdict) -> None:
        """Keep the judge's final verdict on a kernel; a later one takes its place.

        Raises MemoryStoreError if there is no such run.
        """
        self._run_row(run_id)
        with self._storage.write() as connection:
            connection.execute(
                "insert or replace into verdicts (run, kernel, record) values (?, ?, ?)",
                [run_id, kernel_hash, to_json(verdict)],
            )

    def verdicts(self, run_id: str) -> dict[str, Verdict]:
        """The judge's final verdicts of a run, by the hash of the kernel."""
        rows = self._storage.read(
            "select kernel, record from verdicts where run = ? order by rowid", [run_id]
        )
        return {str(row["kernel"]): from_json(Verdict, row["record"]) for row in rows}


def _no_run(run_id: str) -> MemoryStoreError:
    return MemoryStoreError(
        f"No run '{run_id}' in this database; `kmem runs list` shows those there are"
    )


def _result(row: Row) -> RunResult | None:
    return from_json(RunResult, row["result"]) if row["result"] is not None else None
