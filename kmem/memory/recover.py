"""What can be read of a damaged database, saved into a new one.

Two readers, because each finds what the other does not: SQLite's own `.recover`, where its shell is
installed, gathers every page that looks like a table's; reading a table from both ends, and row by
row between, gets past a damaged page. What is found is taken only if it is whole: outcomes and
kernels must have the hash that they are kept under, other records must be readable.

A file whose first page is gone says neither how long its pages are nor where a table begins. Every
kmem lays its tables out in the same order, so that page is taken from a new, empty database.

Not saved is what follows from the rest: sums, embeddings, and the list of skills.
"""

import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from kmem.errors import MemoryStoreError
from kmem.memory.ledger.outcomes import LedgerEntry, Retraction
from kmem.memory.ledger.settlements import Settlement
from kmem.memory.runs.runs import Verdict
from kmem.memory.storage import Row
from kmem.memory.store import Memory
from kmem.memory.team.lines import Line, build_entry
from kmem.records import Diagnosis, Lesson, Plan, Profile, Run, content_hash
from kmem.serialize import from_json

#: Every table of which rows are saved, and the class of its records where they are one by one.
#: What a table refers to comes before it.
_TABLES: Mapping[str, type | None] = {
    "contributor": None,
    "trust": None,
    "licences": None,
    "names": None,
    "sync_settings": None,
    "kernels": None,
    "runs": Run,
    "attempts": None,
    "profiles": Profile,
    "diagnoses": Diagnosis,
    "plans": Plan,
    "lessons": Lesson,
    "verdicts": Verdict,
    "completions": None,
    "unanswered": None,
    "outcomes": None,
    "settlements": Settlement,
    "retractions": Retraction,
    "redactions": None,
    "segments": None,
    "baselines": None,
    "ceilings": None,
}
#: Rows of a table that are asked for one by one between what can be read from its two ends.
_ONE_BY_ONE_AT_MOST = 200_000
_SHELL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a table: rows saved, and rows known to be lost, at most so many."""

    table: str
    rows: int
    lost: int


@dataclass(frozen=True, slots=True)
class _Found:
    """What a reader found of a table: the rows that are whole, and how many are not."""

    rows: list[Row]
    lost: int


def recover_memory(damaged: Path, target: Path) -> list[Saved]:
    """Save what can be read of a database into a new file; returns what became of each table.

    The damaged file is only read.

    Raises:
        MemoryStoreError: if there is no such file, the new one exists, or nothing can be read.
    """
    if not damaged.is_file():
        raise MemoryStoreError(f"No database at {damaged}; `kmem db path` says where yours lies")
    if target.exists():
        raise MemoryStoreError(f"File {target} exists already; choose another with --out")
    with tempfile.TemporaryDirectory(prefix="kmem-recover-") as scratch:
        copy = Path(scratch) / "damaged.db"
        for suffix in ("", "-wal"):  # what nobody has moved from the log into the file counts too
            part = damaged.with_name(damaged.name + suffix)
            if part.is_file():
                shutil.copyfile(part, copy.with_name(copy.name + suffix))
        if not _has_tables(copy):
            _replace_first_page(copy, Path(scratch) / "empty.db")
        sources = [copy, *_recovered_by_shell(copy, Path(scratch) / "recovered.db")]
        with Memory(target) as memory:
            saved = _save(memory, sources)
    if not any(entry.rows for entry in saved):
        for suffix in ("", "-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        shell = "restore a copy of it"
        if shutil.which("sqlite3") is None:
            shell = "install SQLite's shell sqlite3, which finds more, and run again"
        raise MemoryStoreError(f"Nothing can be read of {damaged}; {shell}")
    return saved


def _has_tables(file: Path) -> bool:
    """Whether SQLite finds the tables of a kmem in a file."""
    try:
        with closing(sqlite3.connect(file)) as connection:
            names = {name for (name,) in connection.execute("select name from sqlite_master")}
    except sqlite3.Error:
        return False
    return names.issuperset(_TABLES)


def _replace_first_page(file: Path, empty: Path) -> None:
    """Put the first page of a new database, made at `empty`, in the place of a file's own.

    Source: sqlite.org/fileformat.html, section 1.3: the page size at byte 16, the number of pages
    at 28, the list of free pages at 32 to 40, which may be empty.
    """
    with Memory(empty) as memory:
        memory.storage.db.execute("pragma wal_checkpoint(truncate)")
    content = empty.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    page = bytearray(content[:size])
    page[28:32] = (file.stat().st_size // size).to_bytes(4, "big")
    page[32:40] = bytes(8)
    with file.open("r+b") as opened:
        opened.write(page)


def _recovered_by_shell(damaged: Path, target: Path) -> Iterator[Path]:
    """The database that SQLite's own `.recover` makes; nothing where there is no shell for it."""
    shell = shutil.which("sqlite3")
    if shell is None:
        return
    statements = target.with_suffix(".sql")
    try:
        with statements.open("wb") as out:
            subprocess.run(
                [shell, str(damaged), ".recover"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=_SHELL_TIMEOUT_S,
                check=False,
            )
        # statements that fail (a search index, for one) are passed over
        with statements.open("rb") as text:
            subprocess.run(
                [shell, str(target)],
                stdin=text,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SHELL_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        return  # the other reader does without
    if target.is_file():
        yield target


def _save(memory: Memory, sources: Iterable[Path]) -> list[Saved]:
    connection = memory.storage.db.conn
    connection.execute("pragma foreign_keys = off")
    rows, lost = dict.fromkeys(_TABLES, 0), dict.fromkeys(_TABLES, 0)
    for number, source in enumerate(sources):
        with closing(sqlite3.connect(source, isolation_level=None)) as damaged:
            damaged.text_factory = _decode
            for table in _TABLES:
                names = _columns(connection, table)
                found = _read_table(damaged, table, names)
                with memory.storage.write():
                    _insert(memory, table, names, found.rows)
                before, rows[table] = rows[table], _count(connection, table)
                if number == 0:
                    lost[table] = found.lost
                else:  # what the first reader lost and another has is not lost
                    lost[table] = max(0, lost[table] - (rows[table] - before))
    for table, orphans in _remove_orphans(memory).items():
        rows[table] -= orphans
        lost[table] += orphans
    return [Saved(table, rows[table], lost[table]) for table in _TABLES]


def _decode(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"pragma table_info({table})")]


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"select count(*) from {table}").fetchone()[0])


def _insert(memory: Memory, table: str, names: list[str], rows: list[Row]) -> None:
    if table == "outcomes":  # with all that the ledger keeps of them elsewhere
        memory.ledger.record_entries(entry for row in rows if (entry := _entry_of(row)) is not None)
        return
    places = ", ".join("?" for _ in names)
    memory.storage.db.conn.executemany(
        f"insert or ignore into {table} ({', '.join(names)}) values ({places})",
        [list(row.values()) for row in rows],
    )


def _read_table(damaged: sqlite3.Connection, table: str, names: list[str]) -> _Found:
    """Every row that is whole: from the first on, from the last back, and one by one between."""
    columns = ", ".join(names)
    found = dict[int, Row]()
    ended_well = _read_on(damaged, f"select rowid, {columns} from {table} order by rowid", found)
    unreadable = 0
    if not ended_well:
        first = max(found, default=0)
        _read_on(damaged, f"select rowid, {columns} from {table} order by rowid desc", found)
        last = min((rowid for rowid in found if rowid > first), default=first)
        for rowid in range(first + 1, min(last, first + _ONE_BY_ONE_AT_MOST)):
            one = f"select rowid, {columns} from {table} where rowid = {rowid:d}"
            unreadable += not _read_on(damaged, one, found)
        unreadable = max(unreadable, 1)
    rows = [dict(zip(names, values, strict=True)) for values in found.values()]
    whole = [row for row in rows if _is_whole(table, row)]
    return _Found(whole, unreadable + len(rows) - len(whole))


def _read_on(damaged: sqlite3.Connection, query: str, found: dict) -> bool:
    """Add the rows of a query by rowid until one cannot be read; whether all could."""
    try:
        for rowid, *values in damaged.execute(query):
            found[rowid] = values
    except sqlite3.Error:
        return False
    return True


def _is_whole(table: str, row: Row) -> bool:
    if table == "outcomes":
        return _entry_of(row) is not None
    try:
        if table == "kernels" and content_hash(str(row["source"])) != row["hash"]:
            return False
        record = _TABLES[table]
        if record is not None:
            read = from_json(record, str(row["record"]))
            is_addressed = isinstance(read, (Retraction, Settlement))
            return not is_addressed or read.hash == row["hash"]
        json.loads(str(row.get("record") or "{}"))
    except ValueError:
        return False
    return True


def _entry_of(row: Row) -> LedgerEntry | None:
    """The outcome of a row; None if it is damaged."""
    record = str(row["record"])
    if content_hash(record) != row["hash"]:
        return None
    try:
        entry = build_entry(Line("recovered", str(row["hash"]), record))
    except MemoryStoreError:
        return None
    return replace(entry, writer=str(row["writer"]))


def _remove_orphans(memory: Memory) -> dict[str, int]:
    """Remove rows that refer to one that was not saved; how many of each table."""
    removed = dict[str, int]()
    with memory.storage.write() as connection:
        while orphans := connection.execute("pragma foreign_key_check").fetchall():
            for table, rowid in {(row[0], row[1]) for row in orphans}:
                connection.execute(f"delete from {table} where rowid = ?", [rowid])
                removed[table] = removed.get(table, 0) + 1
    return removed
