"""Export the ledger to files, and merge such files or whole databases into it.

This is how outcomes ship (db/evidence) and how teams share them. lines.py says what stands in a
file. Merging is a union: in any order, any number of times, it gives the same ledger. sync.py
carries the same lines through a git repository.
"""

import gc
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from sqlite_utils import Database

from kmem.errors import MemoryStoreError
from kmem.memory.ledger.redaction import supersede
from kmem.memory.storage import Row, connect_to_read, refuse_unreadable, storage_errors
from kmem.memory.store import Memory
from kmem.memory.team.lines import (
    Line,
    build_entry,
    header_lines,
    is_export,
    outcome_lines,
    outgoing_settlements,
    read_lines,
    read_texts,
    read_what_is_whole,
    record_hashes,
    retraction_lines,
    settlement_lines,
)
from kmem.memory.team.replacing import replace_export
from kmem.records import Outcome
from kmem.serialize import from_json

#: How every SQLite file begins. Source: sqlite.org/fileformat.html, section 1.3.1.
_SQLITE_HEADER = b"SQLite format 3\0"
#: Lines merged per transaction: other processes never wait longer than this takes (about half a
#: second).
_LINES_PER_TRANSACTION = 5000


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How many records an export wrote, or a merge added (those already there are not counted)."""

    outcomes: int
    retractions: int
    kernels: int
    settlements: int = 0

    def __add__(self, other: "Exchanged") -> "Exchanged":
        return Exchanged(
            self.outcomes + other.outcomes,
            self.retractions + other.retractions,
            self.kernels + other.kernels,
            self.settlements + other.settlements,
        )


def export_outcomes(
    memory: Memory,
    path: Path,
    *,
    sources: bool = True,
    redact: bool = False,
    force: bool = False,
    without: Path | None = None,
) -> Exchanged:
    """Write every outcome, settlement and retraction to a file.

    The same ledger gives the same bytes. The file is replaced when all is written, and only by one
    that holds as much (replacing.py).

    Args:
        sources: whether the texts of kernels go along; without them a merge learns recipe, knobs
            and timings only.
        redact: leave out all that redaction.py names; implies no sources.
        force: replace whatever is there.
        without: an exported file or a directory of them, whose records are left out.

    Raises:
        OutputError: if the file cannot be written, or what is there would be lost.
        MemoryStoreError: if there is no export at `without`.
    """
    written = Exchanged(0, 0, 0)
    known = set[str]() if without is None else _known_hashes(without)
    rows = (row for row in _stored_outcomes(memory) if row["hash"] not in known)
    lines = outcome_lines(memory, rows, sources=sources, redact=redact)
    kernels = set[str]()  # several outcomes may be of one
    with replace_export(path, force=force) as file:
        names = {} if redact else memory.contributors.names()
        for line in header_lines(memory.contributors.licences(), names):
            file.write(line + "\n")
        for line in lines:
            file.write(line + "\n")
            written += Exchanged(1, 0, 0)
            if '"kernel": {' in line:
                kernels.add(json.loads(line)["outcome"]["source_hash"])
        settlements = outgoing_settlements(memory, redact=redact)
        for line in settlement_lines(each for each in settlements if each.hash not in known):
            file.write(line + "\n")
            written += Exchanged(0, 0, 0, 1)
        retractions = memory.ledger.retractions()
        for line in retraction_lines(each for each in retractions if each.hash not in known):
            file.write(line + "\n")
            written += Exchanged(0, 1, 0)
    return written + Exchanged(0, 0, len(kernels))


def _known_hashes(path: Path) -> set[str]:
    known = set[str]()
    for file in _exports(path):
        if not is_export(file):
            raise MemoryStoreError(
                f"File {file} is no export of kmem; "
                "name a file or directory that `kmem memory export` wrote"
            )
        known |= record_hashes(file)
    return known


def _stored_outcomes(memory: Memory) -> Iterator[Row]:
    """Every outcome as `outcome_lines` takes it, by hash."""
    last = ""
    # page by page: a million outcomes do not fit in memory, and a reader never blocks writers
    while True:
        rows = memory.storage.read(
            """
            select o.hash, o.source_hash, o.record, r.original_hash as redacts
            from outcomes o
            left join redactions r on r.redacted_hash = o.hash
            where o.hash > ?
            order by o.hash
            limit 1000
            """,
            [last],
        )
        if not rows:
            return
        yield from rows
        last = str(rows[-1]["hash"])


def import_outcomes(memory: Memory, path: Path) -> Exchanged:
    """Merge a file, or every *.jsonl of a directory (in order of name), into the ledger.

    What is there already changes nothing.

    Raises:
        MemoryStoreError: if a file cannot be read or a line is damaged (its hash does not fit); it
            names the file and line. Lines of earlier transactions stay merged, and merging the
            mended file again is safe.
    """
    total = Exchanged(0, 0, 0)
    with _no_collection():
        for file in _exports(path):
            total += _merge_lines(memory, read_lines(file))
    return total


def _exports(path: Path) -> list[Path]:
    """The file, or every *.jsonl of the directory, in order of name."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise MemoryStoreError(
            f"Directory {path} holds no *.jsonl file; "
            "name a file or directory that `kmem memory export` wrote"
        )
    return files


def merge_own_texts(memory: Memory, texts: Sequence[str], place: str) -> Exchanged:
    """Merge lines that this memory's own workers wrote, under its own name where they say so.

    Raises:
        MemoryStoreError: if a line is damaged; it names the place and the line.
    """
    return _merge_lines(memory, read_texts(texts, place), lambda origin: origin)


def merge_what_is_whole(memory: Memory, file: Path) -> tuple[Exchanged, list[str]]:
    """Merge the lines of a file that can be taken; also why each other line cannot."""
    whole, refused = read_what_is_whole(file)
    return _merge_lines(memory, iter(whole)), refused


def merge_memory(memory: Memory, other: Path) -> Exchanged:
    """Merge another database into this one.

    The other is copied first and left as it is; an older one is migrated in the copy.

    Raises:
        MemoryStoreError: if it is not there, or this kmem cannot read what is in it.
    """
    if not other.is_file():
        raise MemoryStoreError(
            f"No database at {other}; name a file that `kmem db path` prints elsewhere"
        )
    with other.open("rb") as file:
        if not file.read(len(_SQLITE_HEADER)).startswith(_SQLITE_HEADER):
            raise MemoryStoreError(
                f"File {other} is no database; "
                "`kmem memory import` takes what `kmem memory export` wrote"
            )
    with tempfile.TemporaryDirectory(prefix="kmem-merge-") as scratch:
        copy, export = Path(scratch) / "other.db", Path(scratch) / "other.jsonl"
        with (
            storage_errors(other),
            closing(connect_to_read(other)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            # here, so that the error names the file and not the copy
            refuse_unreadable(Database(source, execute_plugins=False), other)
            source.backup(target)
        with Memory(copy) as theirs:
            export_outcomes(theirs, export)
        return import_outcomes(memory, export)


def _merge_lines(
    memory: Memory, lines: Iterator[Line], writer_of: Callable[[str], str] | None = None
) -> Exchanged:
    """Merge lines. `writer_of` says who wrote what names an origin; None: it was imported."""
    writer_of = writer_of or memory.contributors.writer_of_imported
    total = Exchanged(0, 0, 0)
    while batch := list(islice(lines, _LINES_PER_TRANSACTION)):
        with memory.storage.write():
            total += _merge_batch(memory, batch, writer_of)
    return total


def _merge_batch(
    memory: Memory, batch: Sequence[Line], writer_of: Callable[[str], str]
) -> Exchanged:
    for line in batch:
        if line.licences is not None:
            memory.contributors.keep_licences(line.licences)
        if line.names:
            memory.contributors.keep_names(line.names)
    known = memory.ledger.known(line.hash for line in batch if line.record)
    entries = [build_entry(line) for line in batch if line.record and line.hash not in known]
    outcomes = memory.ledger.record_entries(
        replace(entry, writer=writer_of(entry.outcome.origin)) for entry in entries
    )
    kernels = sum(memory.runs.put_kernel(line.kernel) for line in batch if line.kernel is not None)
    with memory.storage.write() as connection:
        connection.executemany(
            "insert or ignore into redactions (redacted_hash, original_hash) values (?, ?)",
            [(line.hash, line.redacts) for line in batch if line.redacts is not None],
        )
    settlements = sum(
        memory.ledger.record_settlement(line.settlement, writer_of(line.settlement.origin))
        for line in batch
        if line.settlement is not None
    )
    retractions = sum(
        memory.ledger.record_retraction(line.retraction, writer_of(line.retraction.origin))
        for line in batch
        if line.retraction is not None
    )
    _retract_superseded(memory, [line.hash for line in batch if line.hash])
    return Exchanged(outcomes, retractions, kernels, settlements)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the cycle collector.

    Records hold no cycles, and walking thousands of fresh ones again and again is a fifth of a
    merge.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _retract_superseded(memory: Memory, merged: Sequence[str]) -> None:
    """Retract redacted outcomes whose originals are here, where either was just merged."""
    hashes = json.dumps(merged)
    rows = memory.storage.read(
        """
        with touched as (
            select redacted_hash, original_hash from redactions
            where redacted_hash in (select value from json_each(?))
            union
            select redacted_hash, original_hash from redactions
            where original_hash in (select value from json_each(?))
        )
        select r.redacted_hash, o.record
        from touched r
        join outcomes o on o.hash = r.original_hash
        where not exists (select 1 from retractions x where x.outcome_hash = r.redacted_hash)
        """,
        [hashes, hashes],
    )
    for row in rows:
        memory.ledger.record_retraction(
            supersede(str(row["redacted_hash"]), from_json(Outcome, row["record"]))
        )
