"""The connection to the database: opening, migrating, short transactions, errors a user can mend.

Covered: several processes writing at once (write-ahead log, one writer at a time, others wait),
`kill -9` at any moment (what was committed stays), files that are damaged, foreign, read-only,
locked, on a full disk, newer, or from before the first release (MemoryStoreError names the remedy).
Not covered: network file systems without working locks.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from kmem.errors import MemoryStoreError
from kmem.memory.migrations import APPLICATION_ID, FORMAT, migrations

Value: TypeAlias = "str | int | float | bytes | None"
Row: TypeAlias = "dict[str, Value]"

_ELSEWHERE = "choose another with KMEM_DB"
_IN_USE = "is locked by another program; let that end, then run again"

#: What SQLite's primary result codes mean to a user. Source: sqlite.org/rescode.html.
_REMEDIES: dict[int, str] = {
    sqlite3.SQLITE_PERM: f"may not be read; change its permissions or {_ELSEWHERE}",
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_READONLY: f"is read-only; make it and its directory writable or {_ELSEWHERE}",
    sqlite3.SQLITE_IOERR: (
        f"cannot be read or written (input/output error); check the disk or {_ELSEWHERE}"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged; `kmem db recover` saves what can be read of it into a new file"
    ),
    sqlite3.SQLITE_FULL: f"cannot grow: the disk is full; free some space or {_ELSEWHERE}",
    sqlite3.SQLITE_CANTOPEN: (
        f"cannot be opened; check that its directory exists and is writable, or {_ELSEWHERE}"
    ),
    sqlite3.SQLITE_NOTADB: (
        f"is not a database; {_ELSEWHERE}, or if it was one, try `kmem db recover`"
    ),
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors that a user can mend into MemoryStoreError.

    Any other error is a bug and passes unchanged.
    """
    try:
        yield
    except sqlite3.Error as ex:
        # errors raised by the driver itself carry no code
        remedy = _REMEDIES.get(getattr(ex, "sqlite_errorcode", 0) & 0xFF)
        if remedy is None:
            raise
        raise MemoryStoreError(f"Database {path} {remedy} ({ex})") from ex


def refuse_unreadable(db: Database, path: Path) -> None:
    """Refuse a file whose tables this kmem cannot read; an empty file passes. Nothing is written.

    Raises:
        MemoryStoreError: if another program, a newer kmem, or a kmem from before the first release
            wrote the file.
    """
    if db.execute("select 1 from sqlite_master limit 1").fetchone() is None:
        return
    if db.execute("pragma application_id").fetchone()[0] != APPLICATION_ID:
        raise MemoryStoreError(f"Database {path} belongs to another program; {_ELSEWHERE}")
    if db.execute("pragma user_version").fetchone()[0] != FORMAT:
        raise MemoryStoreError(
            f"Database {path} has the format of before the first release; "
            "export its outcomes with the kmem that wrote it (`kmem memory export`), "
            f"then move it away, or {_ELSEWHERE}"
        )
    newer = {row.name for row in migrations.applied(db)} - _names(migrations)
    if newer:
        raise MemoryStoreError(
            f"Database {path} was written by a newer kmem ({', '.join(sorted(newer))}); "
            f"upgrade kmem or {_ELSEWHERE}"
        )


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that never writes, also where not even SQLite's own files can be made.

    On read-only media a file with a write-ahead log opens only if it is taken to be immutable. What
    the log holds and nobody has moved into the file yet is not seen then. Source:
    sqlite.org/wal.html, section "Read-Only Databases".
    """
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True)
    try:
        connection.execute("select 1 from sqlite_master limit 1").fetchone()
    except sqlite3.OperationalError as ex:
        connection.close()
        if ex.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        return sqlite3.connect(f"{uri}?immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_writable_database(path: Path) -> bool:
    """Whether there is a file that can be opened as usual."""
    return (
        path.is_file()
        and path.stat().st_size > 0
        and os.access(path, os.W_OK)
        and os.access(path.parent, os.W_OK)
    )


class Storage:
    """An open database: rows out by `read`, changes in by `write`."""

    def __init__(self, path: Path, *, lock_timeout_s: float = 30.0, to_read: bool = False) -> None:
        """Open, creating or migrating as needed.

        Args:
            to_read: no file is made or migrated that does not want it: where there is no file, or
                none that can be written, its content is held in main memory, where what is derived
                of it (sums, embeddings) may be written and is lost at the end.

        Raises:
            MemoryStoreError: if the file or its directory cannot be used, or this kmem cannot read
                what is in the file (`refuse_unreadable`).
        """
        self.path = path
        #: Whether what is written stays: not in main memory.
        self.keeps = not to_read or _is_writable_database(path)
        if not self.keeps:
            self._open_copy()
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as ex:
            raise MemoryStoreError(
                f"Directory {path.parent} for the database cannot be made "
                f"({ex.strerror}); {_ELSEWHERE}"
            ) from ex
        with storage_errors(path):
            # No implicit transactions: `write` begins each one itself, as a writer from the start.
            connection = sqlite3.connect(path, timeout=lock_timeout_s, isolation_level=None)
        self.db = Database(connection, execute_plugins=False)
        try:
            with storage_errors(path):
                self._prepare(lock_timeout_s)
        except BaseException:
            self.db.close()
            raise

    def _open_copy(self) -> None:
        """Hold what is in the file in main memory; nothing if there is no file."""
        self.db = Database(memory=True, execute_plugins=False)
        try:
            self.db.conn.isolation_level = None
            if self.path.is_file() and self.path.stat().st_size:
                with storage_errors(self.path), closing(connect_to_read(self.path)) as source:
                    refuse_unreadable(Database(source, execute_plugins=False), self.path)
                    source.backup(self.db.conn)
            self.db.execute("pragma foreign_keys = on")
            with self.write():
                migrations.apply(self.db)
        except BaseException:
            self.db.close()
            raise

    def _prepare(self, lock_timeout_s: float) -> None:
        self.db.execute("pragma foreign_keys = on")
        # KiB at most: SQLite's 2 MB would spill a merge to disk and read it back
        self.db.execute("pragma cache_size = -65536")
        refuse_unreadable(self.db, self.path)
        if not migrations.pending(self.db):
            return
        _enable_write_ahead_log(self.db, lock_timeout_s)
        # two processes may open a new file at once: the second finds nothing pending
        with self.write():
            migrations.apply(self.db)

    def read(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        """All rows of a query. Raises MemoryStoreError if the file cannot be read."""
        with storage_errors(self.path):
            cursor = self.db.conn.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads of one state of the database, whatever others write meanwhile.

        Inside `write` the reads see its changes.
        """
        with storage_errors(self.path):
            if self.db.conn.in_transaction:
                yield self.db.conn
                return
            # deferred: with a write-ahead log, the first read fixes the state
            self.db.conn.execute("begin")
            try:
                yield self.db.conn
            finally:
                self.db.conn.execute("rollback")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end, undone if anything raises.

        Nested uses join the outer one.
        """
        with storage_errors(self.path):
            if self.db.conn.in_transaction:
                yield self.db.conn
                return
            # Immediate: a transaction that reads first and writes later would fail at once, not
            # wait, if another wrote in between. Source: sqlite.org/lang_transaction.html, section
            # 2.2.
            self.db.conn.execute("begin immediate")
            try:
                yield self.db.conn
                self.db.conn.execute("commit")
            except BaseException:
                if self.db.conn.in_transaction:
                    self.db.conn.execute("rollback")
                raise

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self.db.close()


class Tables:
    """What every attribute of `Memory` is: methods about some of the tables of an open storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage


@cache  # one command opens the file many times (runs/conversations.py)
def _names(registered: Migrations) -> frozenset[str]:
    """Every migration that is registered, by name."""
    empty = Database(memory=True)
    try:
        return frozenset(migration.name for migration in registered.pending(empty))
    finally:
        empty.close()


def _enable_write_ahead_log(db: Database, timeout_s: float) -> None:
    """Switch the journal mode, waiting for other processes, which SQLite does not do by itself."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            db.enable_wal()
            return
        except sqlite3.OperationalError as ex:
            if ex.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
