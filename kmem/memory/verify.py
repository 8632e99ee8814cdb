"""Find damage in the database: SQLite's own checks, and every content hash derived again."""

from collections.abc import Iterator

from kmem.memory.ledger.outcomes import Retraction, refuse_impossible
from kmem.memory.ledger.settlements import Settlement
from kmem.memory.store import Memory
from kmem.records import Outcome, content_hash
from kmem.serialize import from_json


def verify_memory(memory: Memory) -> list[str]:
    """Every fault found, one line each; empty if all is well. Reads the whole database once."""
    return [
        *_sqlite_faults(memory),
        *_kernel_faults(memory),
        *_outcomes_faults(memory),
        *_record_faults(memory, "settlement", Settlement),
        *_record_faults(memory, "retraction", Retraction),
    ]


def _sqlite_faults(memory: Memory) -> Iterator[str]:
    for row in memory.storage.read("pragma integrity_check"):
        if row["integrity_check"] != "ok":
            yield f"SQLite: {row['integrity_check']}"
    for row in memory.storage.read("pragma foreign_key_check"):
        yield (
            f"table {row['table']}, row {row['rowid']}: "
            f"points to a row of {row['parent']} that is not there"
        )


def _kernel_faults(memory: Memory) -> Iterator[str]:
    # one text at a time: all of them may not fit in memory
    for row in memory.storage.read("select hash from kernels order by hash"):
        (kernel,) = memory.storage.read("select source from kernels where hash = ?", [row["hash"]])
        if content_hash(kernel["source"]) != row["hash"]:
            yield f"kernel {row['hash'][:12]}: its source has another hash"


def _outcomes_faults(memory: Memory) -> Iterator[str]:
    last = ""
    while rows := memory.storage.read(
        "select hash, record from outcomes where hash > ? order by hash limit 1000", [last]
    ):
        for row in rows:
            yield from _outcome_faults(row["hash"], row["record"])
        last = rows[-1]["hash"]


def _outcome_faults(expected: str, record: str) -> Iterator[str]:
    if content_hash(record) != expected:
        yield f"outcome {expected[:12]}: its record has another hash"
        return
    try:
        refuse_impossible(from_json(Outcome, record))
    except ValueError as ex:
        yield f"outcome {expected[:12]}: its record is no outcome ({_first_line(ex)})"


def _record_faults(
    memory: Memory, noun: str, record: type[Settlement] | type[Retraction]
) -> Iterator[str]:
    """The faults of a table of records; it is called by their noun."""
    for row in memory.storage.read(f"select hash, record from {noun}s order by hash"):
        try:
            if from_json(record, row["record"]).hash != row["hash"]:
                yield f"{noun} {row['hash'][:12]}: its record has another hash"
        except ValueError as ex:
            yield f"{noun} {row['hash'][:12]}: its record cannot be read ({_first_line(ex)})"


def _first_line(ex: ValueError) -> str:
    return str(ex).splitlines()[0]
