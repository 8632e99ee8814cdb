"""The conversations of runs: every question to a language model, with its answer.

A run that is resumed or replayed finds its answers here. A question is noted before it is put, and
its answer takes the note's place in one transaction: what a killed run may have spent is known.

Records hold the messages, the settings and the provider's own token counts; keys and other secrets
are no part of them.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kmem.interfaces import CompletionKey, CompletionRecord, Unanswered
from kmem.memory.storage import Storage, Tables, Value
from kmem.serialize import from_json, to_json


class Conversations(Tables):
    """`memory.conversations`: questions to language models and their answers."""

    def put(self, run_id: str, record: CompletionRecord) -> None:
        """Keep a question of a run with its answer, in place of the last note on the question.

        A later answer to a question takes the place of an earlier one.
        """
        key = record.key
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._storage.write() as connection:
            connection.execute(
                """
                insert or replace into completions (
                    run, role, round, slot, turn, record, created_at
                )
                values (?, ?, ?, ?, ?, ?, ?)
                """,
                [*_key_columns(run_id, key), to_json(record), now],
            )
            _drop_note(connection, run_id, key)

    def put_unanswered(self, run_id: str, question: Unanswered) -> None:
        """Note that a question is about to be put."""
        with self._storage.write() as connection:
            connection.execute(
                """
                insert into unanswered (run, role, round, slot, turn, record)
                values (?, ?, ?, ?, ?, ?)
                """,
                [*_key_columns(run_id, question.key), to_json(question)],
            )

    def drop_unanswered(self, run_id: str, key: CompletionKey) -> None:
        """Forget the last note on a question."""
        with self._storage.write() as connection:
            _drop_note(connection, run_id, key)

    def unanswered(self, run_id: str) -> list[Unanswered]:
        """The notes of a run that stand, oldest first."""
        rows = self._storage.read(
            "select record from unanswered where run = ? order by id", [run_id]
        )
        return [from_json(Unanswered, row["record"]) for row in rows]

    def get(self, run_id: str, key: CompletionKey) -> CompletionRecord | None:
        """The answer a run has to a question."""
        rows = self._storage.read(
            """
            select record from completions
            where run = ? and role = ? and round = ? and slot = ? and turn = ?
            """,
            _key_columns(run_id, key),
        )
        return from_json(CompletionRecord, rows[0]["record"]) if rows else None

    def all(self, run_id: str) -> list[CompletionRecord]:
        """Every conversation of a run, in the order in which the answers came."""
        rows = self._storage.read(
            "select record from completions where run = ? order by rowid", [run_id]
        )
        return [from_json(CompletionRecord, row["record"]) for row in rows]


def _drop_note(connection: sqlite3.Connection, run_id: str, key: CompletionKey) -> None:
    connection.execute(
        """
        delete from unanswered
        where id = (
            select max(id) from unanswered
            where run = ? and role = ? and round = ? and slot = ? and turn = ?
        )
        """,
        _key_columns(run_id, key),
    )


def _key_columns(run_id: str, key: CompletionKey) -> list[Value]:
    """Run, role, round, slot and turn: the columns that both tables are asked by."""
    return [run_id, key.role, key.round, key.slot, key.turn]


class RunArchive:
    """The CompletionArchive of one run, in a memory; several threads may use it.

    A connection of SQLite belongs to the thread that opened it, so each call opens one of its own:
    milliseconds beside a model's seconds.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        """Name the database and the run; nothing is opened yet."""
        self._path, self._run_id = path, run_id

    def note(self, question: Unanswered) -> None:
        """Store that a question is about to be put; on return it is on disk."""
        with self._open() as conversations:
            conversations.put_unanswered(self._run_id, question)

    def withdraw(self, key: CompletionKey) -> None:
        """Take back the last note on a question."""
        with self._open() as conversations:
            conversations.drop_unanswered(self._run_id, key)

    def unanswered(self) -> list[Unanswered]:
        """Every note that stands."""
        with self._open() as conversations:
            return conversations.unanswered(self._run_id)

    def find(self, key: CompletionKey) -> CompletionRecord | None:
        """The answer this run already has to a question."""
        with self._open() as conversations:
            return conversations.get(self._run_id, key)

    def keep(self, record: CompletionRecord) -> None:
        """Store a question with its answer, in place of the last note on the question.

        On return both are on disk.
        """
        with self._open() as conversations:
            conversations.put(self._run_id, record)

    def records(self) -> list[CompletionRecord]:
        """Every answer this run already has, oldest first."""
        with self._open() as conversations:
            return conversations.all(self._run_id)

    @contextmanager
    def _open(self) -> Iterator[Conversations]:
        storage = Storage(self._path)
        try:
            yield Conversations(storage)
        finally:
            storage.close()
