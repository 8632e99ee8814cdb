"""The lines of an export: how a record is written as one line of JSON, read again and checked.

Each line is one content-addressed record:

    {"hash": ..., "outcome": {...}}      and "kernel": {...} if its text goes along,
                                         and "redacts": the hash of its original if redacted
    {"hash": ..., "settlement": {...}}   what became of an outcome's prediction
    {"hash": ..., "retraction": {...}}
    {"licences": {origin: licence}, "names": {origin: name}}      at most once, first

exchange.py puts lines into files and merges them, sync.py into segments of a git repository.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kmem.errors import MemoryStoreError
from kmem.memory.ledger.outcomes import LedgerEntry, Retraction, ledger_entry, refuse_impossible
from kmem.memory.ledger.redaction import redact_outcome, redact_settlement
from kmem.memory.ledger.settlements import Settlement
from kmem.memory.storage import Row
from kmem.memory.store import Memory
from kmem.memory.team.names import checked_name
from kmem.records import Kernel, Outcome, content_hash
from kmem.serialize import canonical_json, from_data, from_json, to_data

_AGAIN = "take the file from its source again"


class Line(NamedTuple):
    """One line before its record is built.

    Most lines of a merge are known already, and their hash says so.
    """

    place: str  # file:number
    hash: str = ""  # of the outcome, settlement or retraction
    record: str = ""  # canonical JSON of the outcome
    kernel: Kernel | None = None
    redacts: str | None = None
    retraction: Retraction | None = None
    settlement: Settlement | None = None
    licences: Mapping[str, str] | None = None
    names: Mapping[str, str] | None = None


def header_lines(licences: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """The line that states licences and names, by origin; no line if there are none."""
    if not licences and not names:
        return []
    stated = {"licences": dict(licences)} | ({"names": dict(names)} if names else {})
    return [json.dumps(stated, sort_keys=True)]


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
        if sources and not redact:
            kernel = memory.runs.kernel(row["source_hash"])
            if kernel is not None:
                line["kernel"] = to_data(kernel)
        yield json.dumps(line, sort_keys=True)


def retraction_lines(retractions: Iterable[Retraction]) -> Iterator[str]:
    """The lines of retractions, one each."""
    for retraction in retractions:
        yield json.dumps(
            {"hash": retraction.hash, "retraction": to_data(retraction)}, sort_keys=True
        )


def outgoing_settlements(
    memory: Memory, *, redact: bool, writer: str | None = None
) -> Iterator[Settlement]:
    """The settlements, or those of one writer, as they leave.

    Where outcomes are redacted, they name the redacted ones.
    """
    for settlement in memory.ledger.settlements(writer):
        if not redact:
            yield settlement
        elif (outcome := memory.ledger.find(settlement.outcome_hash)) is not None:
            entry = ledger_entry(redact_outcome(outcome))
            yield redact_settlement(settlement, entry.hash)


def settlement_lines(settlements: Iterable[Settlement]) -> Iterator[str]:
    """The lines of settlements, one each."""
    for settlement in settlements:
        yield json.dumps(
            {"hash": settlement.hash, "settlement": to_data(settlement)}, sort_keys=True
        )


def is_export(path: Path) -> bool:
    """Whether a file's first line is one of an export; an empty file holds nothing, and is one."""
    with path.open("rb") as file:
        first = file.readline()
    if not first:
        return True
    try:
        data = json.loads(first)
        return "hash" in data or "licences" in data
    except (ValueError, TypeError):
        return False


def record_hashes(path: Path) -> set[str]:
    """The hashes of a file's records, and of redacted ones the hashes of their originals."""
    found = set[str]()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                data = json.loads(line)
                found.update(data[key] for key in ("hash", "redacts") if key in data)
            except (ValueError, TypeError):
                continue  # a line of nobody's: nothing that an import would take
    return found


def read_lines(file: Path) -> Iterator[Line]:
    """The lines of an exported file, in order.

    Raises:
        MemoryStoreError: if the file cannot be read, or a line is damaged (its hash does not fit);
            it names the file and line.
    """
    try:
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, start=1):
                if text.strip():
                    yield _read_line(text.rstrip("\n"), f"{file}:{number}")
    except OSError as ex:
        raise MemoryStoreError(
            f"File {file} cannot be read ({ex.strerror}); "
            "name a file or directory that `kmem memory export` wrote"
        ) from ex
    except UnicodeDecodeError as ex:
        raise MemoryStoreError(
            f"File {file} is not text in UTF-8; name a file that `kmem memory export` wrote"
        ) from ex


def read_texts(texts: Iterable[str], place: str) -> Iterator[Line]:
    """Lines that came another way than by a file. Raises MemoryStoreError as `read_lines` does."""
    for number, text in enumerate(texts, start=1):
        yield _read_line(text, f"{place}:{number}")


def read_what_is_whole(file: Path) -> tuple[list[Line], list[str]]:
    """The lines of a file that can be taken, and why each other one cannot."""
    whole, refused = [], []
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                if text.strip():
                    line = _read_line(text.rstrip("\n"), f"{file}:{number}")
                    if line.record:
                        build_entry(line)
                    whole.append(line)
            except MemoryStoreError as ex:
                refused.append(str(ex))
    return whole, refused


def build_entry(line: Line) -> LedgerEntry:
    """The outcome of a line, by the writer that it names; whoever imports it decides about that.

    Raises:
        MemoryStoreError: if the line holds no outcome, or another spelling of one.
    """
    try:
        outcome, record = canonical_json(Outcome, line.record)
        refuse_impossible(outcome)
    except ValueError as ex:  # a field missing, of another type, or a number no measurement gives
        raise _no_outcome(line.place, ex) from ex
    if record != line.record:  # another spelling of the same outcome would be a second outcome
        raise _damaged(line.place, content_hash(record), line.hash)
    return LedgerEntry(outcome, record, line.hash, outcome.origin)


def _read_line(text: str, place: str) -> Line:
    plain = _read_plain_outcome(text, place)
    if plain is not None:
        return plain
    try:
        data = json.loads(text)
        if "licences" in data:
            licences = {str(origin): str(licence) for origin, licence in data["licences"].items()}
            names = {
                str(key): checked_name(str(name)) for key, name in data.get("names", {}).items()
            }
            return Line(place, licences=licences, names=names)
        if "retraction" in data:
            retraction = from_data(Retraction, data["retraction"])
            line = Line(place, retraction.hash, retraction=retraction)
        elif "settlement" in data:
            settlement = from_data(Settlement, data["settlement"])
            line = Line(place, settlement.hash, settlement=settlement)
        else:
            line = _read_outcome(data, place)
        expected = data["hash"]
    # not JSON, a field missing or of another type
    except (ValueError, KeyError, TypeError, AttributeError) as ex:
        raise _no_outcome(place, ex) from ex
    if line.hash != expected:
        raise _damaged(place, line.hash, str(expected))
    return line


def _read_plain_outcome(text: str, place: str) -> Line | None:
    """A line of an outcome alone, as an export writes it, whose text has the hash it says.

    Nothing needs parsing to know that.
    """
    parts = text.split('", "outcome": ', maxsplit=1)
    if len(parts) < 2 or not parts[0].startswith('{"hash": "') or not parts[1].endswith("}"):
        return None
    said, record = parts[0].removeprefix('{"hash": "'), parts[1][:-1]
    return Line(place, said, record) if content_hash(record) == said else None


def _read_outcome(data: Mapping[str, object], place: str) -> Line:
    record = json.dumps(data["outcome"], sort_keys=True)
    kernel = from_data(Kernel, data["kernel"]) if "kernel" in data else None
    if kernel is not None and kernel.hash != data["outcome"]["source_hash"]:
        raise MemoryStoreError(
            f"Line {place} is damaged: its kernel is not the one it names; {_AGAIN}"
        )
    return Line(place, content_hash(record), record, kernel, data.get("redacts"))


def _no_outcome(place: str, ex: Exception) -> MemoryStoreError:
    reason = str(ex).splitlines()[0]
    return MemoryStoreError(f"Line {place} is no exported outcome ({reason}); {_AGAIN}")


def _damaged(place: str, found: str, said: str) -> MemoryStoreError:
    return MemoryStoreError(
        f"Line {place} is damaged: its hash is {found[:12]}, it says {said[:12]}; {_AGAIN}"
    )
