"""Export the ledger as JSON lines and merge such files, or whole memories: how outcomes ship
(db/evidence) and how teams share them.

Each line is one content-addressed record: {"hash": ..., "outcome": {...}, "kernel": {...} if stored
and wanted, "redacts": hash of the original if redacted}, {"hash": ..., "retraction": {...}}, or
once {"licences": {origin: licence}}. Merging is a union: in any order, any number of times, it
gives the same ledger. sync.py carries such lines through a git repository.
"""

import gc
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kmem.errors import MemoryStoreError, OutputError
from kmem.memory.ledger.outcomes import LedgerEntry, Retraction, ledger_entry, refuse_impossible
from kmem.memory.ledger.redaction import redact_outcome, supersede
from kmem.memory.storage import Row, storage_errors
from kmem.memory.store import Memory
from kmem.records import Kernel, Outcome, content_hash
from kmem.serialize import canonical_json, from_data, from_json, to_data

#: How every SQLite file begins. Source: sqlite.org/fileformat.html, section 1.3.1.
_SQLITE_HEADER = b"SQLite format 3\0"
_EXPORT = "a file or directory that `kmem memory export` wrote"
_AGAIN = "take the file from its source again"
#: Lines merged per transaction: other processes never wait longer than this takes (about half a
#: second).
_LINES_PER_TRANSACTION = 5000


@dataclass(frozen=True, slots=True)
class Exchanged:
    """How many records an export wrote, or a merge added (those already there are not counted)."""

    outcomes: int
    retractions: int
    kernels: int

    def __add__(self, other: "Exchanged") -> "Exchanged":
        return Exchanged(
            self.outcomes + other.outcomes,
            self.retractions + other.retractions,
            self.kernels + other.kernels,
        )


class _Line(NamedTuple):
    """One line before its record is built: most lines of a merge are known already, and their hash
    says so.
    """

    place: str
    hash: str
    record: str = ""  # canonical JSON of the outcome
    kernel: Kernel | None = None
    redacts: str | None = None
    retraction: Retraction | None = None


def export_outcomes(
    memory: Memory, path: Path, *, sources: bool = True, redact: bool = False
) -> Exchanged:
    """Write every outcome and retraction to a file, sorted by hash: the same ledger gives the same
    bytes.

    Args: sources: whether the texts of kernels go along; without them a merge learns recipe, knobs
        and timings only. redact: leave out all that redaction.py names; implies no sources.
    Raises:
        OutputError: if the file cannot be written.
    """
    outcomes = kernels = retractions = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            if licences := memory.contributors.licences():
                file.write(json.dumps({"licences": licences}, sort_keys=True) + "\n")
            for line in outcome_lines(
                memory, _stored_outcomes(memory), sources=sources, redact=redact
            ):
                file.write(line + "\n")
                outcomes += 1
                kernels += '"kernel": {' in line
            for line in retraction_lines(memory.ledger.retractions()):
                file.write(line + "\n")
                retractions += 1
    except OSError as ex:
        raise OutputError(
            f"File {path} cannot be written ({ex.strerror}); export to another path"
        ) from ex
    return Exchanged(outcomes, retractions, kernels)


def outcome_lines(
    memory: Memory, rows: Iterable[Row], *, sources: bool, redact: bool
) -> Iterator[str]:
    """The lines of stored outcomes (`hash`, `source_hash`, `record`, `redacts`), one each."""
    for row in rows:
        line: dict[str, object] = {"hash": row["hash"], "outcome": json.loads(row["record"])}
        if row["redacts"] is not None:
            line["redacts"] = row["redacts"]
        elif redact:
            entry = ledger_entry(redact_outcome(from_json(Outcome, row["record"])))
            line = {"hash": entry.hash, "outcome": json.loads(entry.record), "redacts": row["hash"]}
        if (
            sources
            and not redact
            and (kernel := memory.runs.kernel(row["source_hash"])) is not None
        ):
            line["kernel"] = to_data(kernel)
        yield json.dumps(line, sort_keys=True)


def retraction_lines(retractions: Iterable[Retraction]) -> Iterator[str]:
    """The lines of retractions, one each."""
    for retraction in retractions:
        yield json.dumps(
            {"hash": retraction.hash, "retraction": to_data(retraction)}, sort_keys=True
        )


def _stored_outcomes(memory: Memory) -> Iterator[Row]:
    last = ""
    # page by page: a million outcomes do not fit in memory, and a reader never blocks writers
    while True:
        rows = memory.storage.read(
            """
            select o.hash, o.source_hash, o.record, r.original_hash as redacts
            from outcomes o left join redactions r on r.redacted_hash = o.hash where o.hash > ? order by o.hash limit 1000
            """,
            [last],
        )
        if not rows:
            return
        yield from rows
        last = str(rows[-1]["hash"])


def import_outcomes(memory: Memory, path: Path) -> Exchanged:
    """Merge a file, or every *.jsonl of a directory (in order of name), into the ledger; what is
    there already changes nothing.

    Raises: MemoryStoreError: if a file cannot be read or a line is damaged (its hash does not fit);
        names the file and line. Lines of earlier transactions stay merged, and merging the mended
        file again is safe.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise MemoryStoreError(f"Directory {path} holds no *.jsonl file; name {_EXPORT}")
    total = Exchanged(0, 0, 0)
    with _no_collection():
        for file in files:
            total += _merge_lines(memory, _read_lines(memory, file))
    return total


def merge_memory(memory: Memory, other: Path) -> Exchanged:
    """Merge another database into this one.

    The other is copied first and left as it is, whatever version of kmem wrote it.

    Raises:
        MemoryStoreError: if it is not there or not a kmem database.
    """
    if not other.is_file():
        raise MemoryStoreError(
            f"No database at {other}; name a file that `kmem db path` prints elsewhere"
        )
    with other.open("rb") as file:
        if not file.read(len(_SQLITE_HEADER)).startswith(_SQLITE_HEADER):
            raise MemoryStoreError(
                f"File {other} is no database; `kmem memory import` takes what `kmem memory "
                f"export` wrote"
            )
    with tempfile.TemporaryDirectory(prefix="kmem-merge-") as scratch:
        copy, export = Path(scratch) / "other.db", Path(scratch) / "other.jsonl"
        with (
            storage_errors(other),
            closing(sqlite3.connect(other)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        with Memory(copy) as theirs:
            export_outcomes(theirs, export)
        return import_outcomes(memory, export)


def _merge_lines(memory: Memory, lines: Iterator[_Line]) -> Exchanged:
    total = Exchanged(0, 0, 0)
    while batch := list(islice(lines, _LINES_PER_TRANSACTION)):
        with memory.storage.write() as connection:
            known = memory.ledger.known(line.hash for line in batch if line.record)
            entries = [
                _build_entry(line) for line in batch if line.record and line.hash not in known
            ]
            outcomes = memory.ledger.record_entries(entries)
            kernels = sum(
                memory.runs.put_kernel(line.kernel) for line in batch if line.kernel is not None
            )
            connection.executemany(
                "insert or ignore into redactions (redacted_hash, original_hash) values (?, ?)",
                [(line.hash, line.redacts) for line in batch if line.redacts is not None],
            )
            retractions = sum(
                memory.ledger.record_retraction(line.retraction)
                for line in batch
                if line.retraction is not None
            )
            _retract_superseded(memory, [line.hash for line in batch])
        total += Exchanged(outcomes, retractions, kernels)
    return total


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the cycle collector: records hold no cycles, and walking thousands of fresh ones again
    and again is a fifth of a merge.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _retract_superseded(memory: Memory, merged: Sequence[str]) -> None:
    """Retract redacted outcomes whose originals are here, as far as either came with what was just
    merged.
    """
    rows = memory.storage.read(
        """
        with touched as (
            select redacted_hash, original_hash from redactions where redacted_hash in (select value from json_each(?))
            union
            select redacted_hash, original_hash from redactions where original_hash in (select value from json_each(?))
        )
        select r.redacted_hash, o.record from touched r join outcomes o on o.hash = r.original_hash
        where not exists (select 1 from retractions x where x.outcome_hash = r.redacted_hash)
        """,
        [json.dumps(merged)] * 2,
    )
    for row in rows:
        memory.ledger.record_retraction(
            supersede(str(row["redacted_hash"]), from_json(Outcome, row["record"]))
        )


def _build_entry(line: _Line) -> LedgerEntry:
    try:
        outcome, record = canonical_json(Outcome, line.record)
        refuse_impossible(outcome)
    except ValueError as ex:  # a field missing, of another type, or a number no measurement gives
        raise _no_outcome(line.place, ex) from ex
    if record != line.record:  # another spelling of the same outcome would be a second outcome
        raise _damaged(line.place, content_hash(record), line.hash)
    return LedgerEntry(outcome, record, line.hash)


def _read_lines(memory: Memory, file: Path) -> Iterator[_Line]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, start=1):
                if (
                    text.strip()
                    and (line := _read_line(memory, text.rstrip("\n"), f"{file}:{number}"))
                    is not None
                ):
                    yield line
    except OSError as ex:
        raise MemoryStoreError(
            f"File {file} cannot be read ({ex.strerror}); name {_EXPORT}"
        ) from ex
    except UnicodeDecodeError as ex:
        raise MemoryStoreError(
            f"File {file} is not text in UTF-8; name a file that `kmem memory export` wrote"
        ) from ex


def _read_line(memory: Memory, text: str, place: str) -> _Line | None:
    """What a line says; None where it names licences, which are kept at once."""
    plain = _read_plain_outcome(text, place)
    if plain is not None:
        return plain
    try:
        data = json.loads(text)
        if "licences" in data:
            memory.contributors.keep_licences(
                {str(origin): str(licence) for origin, licence in data["licences"].items()}
            )
            return None
        if "retraction" in data:
            retraction = from_data(Retraction, data["retraction"])
            line, found = _Line(place, retraction.hash, retraction=retraction), retraction.hash
        else:
            record = json.dumps(data["outcome"], sort_keys=True)
            kernel = from_data(Kernel, data["kernel"]) if "kernel" in data else None
            if kernel is not None and kernel.hash != data["outcome"]["source_hash"]:
                raise MemoryStoreError(
                    f"Line {place} is damaged: its kernel is not the one it names; {_AGAIN}"
                )
            found = content_hash(record)
            line = _Line(place, found, record, kernel, data.get("redacts"))
        expected = data["hash"]
    # not JSON, a field missing or of another type
    except (ValueError, KeyError, TypeError, AttributeError) as ex:
        raise _no_outcome(place, ex) from ex
    if found != expected:
        raise _damaged(place, found, str(expected))
    return line


def _read_plain_outcome(text: str, place: str) -> _Line | None:
    """A line of an outcome alone, as an export writes it, whose text has the hash it says: nothing
    needs parsing to know that.
    """
    before, _, rest = text.partition('", "outcome": ')
    if not before.startswith('{"hash": "') or not rest.endswith("}"):
        return None
    record, said = rest[:-1], before.removeprefix('{"hash": "')
    return _Line(place, said, record) if content_hash(record) == said else None


def _no_outcome(place: str, ex: Exception) -> MemoryStoreError:
    return MemoryStoreError(
        f"Line {place} is no exported outcome ({str(ex).splitlines()[0]}); {_AGAIN}"
    )


def _damaged(place: str, found: str, said: str) -> MemoryStoreError:
    return MemoryStoreError(
        f"Line {place} is damaged: its hash is {found[:12]}, it says {said[:12]}; {_AGAIN}"
    )
