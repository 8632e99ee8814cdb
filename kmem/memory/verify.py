"""Find damage: SQLite's own checks, and every content hash derived again. And count what is there."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kmem.memory.ledger.outcomes import Retraction, refuse_impossible
from kmem.memory.ledger.tally import LOG_UNIT
from kmem.memory.store import Memory
from kmem.records import Outcome, content_hash
from kmem.serialize import from_json


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """How much a memory holds.

    `recalled` counts remembered kernels that passed again: no new successes, so no part of any
    posterior.
    """

    path: str
    runs: int
    attempts: int
    kernels: int
    outcomes: int
    passed: int
    recalled: int
    retractions: int
    graphs: int
    skills: int
    embeddings: int
    bytes: int


def memory_stats(memory: Memory) -> MemoryStats:
    """Count records; `skills` are those that names mean now, `bytes` is the size of the database
    file.
    """
    memory.track_records.refresh()
    (row,) = memory.storage.read(
        """
        select
            (select count(*) from runs) as runs,
            (select count(*) from attempts) as attempts,
            (select count(*) from kernels) as kernels,
            (select count(*) from outcomes) as outcomes,
            (select count(*) from outcomes where status = 'passed') as passed,
            (select coalesce(sum(recalled), 0) from evidence) as recalled,
            (select count(*) from retractions) as retractions,
            (select count(*) from graphs) as graphs,
            (select count(*) from library) as skills,
            (select count(*) from embeddings) as embeddings
        """
    )
    return MemoryStats(path=str(memory.path), bytes=memory.path.stat().st_size, **row)


@dataclass(frozen=True, slots=True)
class SkillStats:
    """What a skill has been through, and what to expect of it whatever the case: its posterior for
    no bottleneck or operator in particular.

    `speedup` is the expected factor of a kernel that passes, `gained_again` the geometric mean
    factor of recalled ones, None without any.
    """

    skill: str
    tried: int
    passed: int
    recalled: int
    gained_again: float | None
    correct: float
    speedup: float
    improves: float


def skill_stats(memory: Memory, versions: Mapping[str, str]) -> list[SkillStats]:
    """Every skill with outcomes, the most tried first, then by name.

    `versions` of torch and triton age evidence.
    """
    memory.track_records.refresh()
    rows = memory.storage.read(
        """
        select skill, sum(tried) as tried, sum(passed) as passed, sum(recalled) as recalled, sum(recalled_log_speedup_e9) as again_e9
        from evidence group by skill having sum(tried) > 0 or sum(recalled) > 0 order by tried desc, skill
        """
    )
    found = memory.track_records.posteriors(
        [row["skill"] for row in rows], bottleneck=None, operators=(), arch="", versions=versions
    )
    return [
        SkillStats(
            row["skill"],
            row["tried"],
            row["passed"],
            row["recalled"],
            math.exp(row["again_e9"] * LOG_UNIT / row["recalled"]) if row["recalled"] else None,
            found[row["skill"]].correct,
            math.exp(found[row["skill"]].log_speedup),
            found[row["skill"]].improves,
        )
        for row in rows
    ]


def verify_memory(memory: Memory) -> list[str]:
    """Every fault found, one line each; empty if all is well. Reads the whole database once."""
    return [*_sqlite_faults(memory), *_hash_faults(memory)]


def _sqlite_faults(memory: Memory) -> Iterator[str]:
    for row in memory.storage.read("pragma integrity_check"):
        if row["integrity_check"] != "ok":
            yield f"SQLite: {row['integrity_check']}"
    for row in memory.storage.read("pragma foreign_key_check"):
        yield (
            f"table {row['table']}, row {row['rowid']}: points to a row of {row['parent']} that is "
            f"not there"
        )


def _hash_faults(memory: Memory) -> Iterator[str]:
    # one text at a time: all of them may not fit in memory
    for row in memory.storage.read("select hash from kernels order by hash"):
        (kernel,) = memory.storage.read("select source from kernels where hash = ?", [row["hash"]])
        if content_hash(kernel["source"]) != row["hash"]:
            yield f"kernel {row['hash'][:12]}: its source has another hash"
    last = ""
    while rows := memory.storage.read(
        "select hash, record from outcomes where hash > ? order by hash limit 1000", [last]
    ):
        for row in rows:
            yield from _outcome_faults(row["hash"], row["record"])
        last = rows[-1]["hash"]
    for row in memory.storage.read("select hash, record from retractions order by hash"):
        try:
            if from_json(Retraction, row["record"]).hash != row["hash"]:
                yield f"retraction {row['hash'][:12]}: its record has another hash"
        except ValueError as ex:
            yield (
                f"retraction {row['hash'][:12]}: its record cannot be read "
                f"({str(ex).splitlines()[0]})"
            )


def _outcome_faults(expected: str, record: str) -> Iterator[str]:
    if content_hash(record) != expected:
        yield f"outcome {expected[:12]}: its record has another hash"
        return
    try:
        refuse_impossible(from_json(Outcome, record))
    except ValueError as ex:
        yield f"outcome {expected[:12]}: its record is no outcome ({str(ex).splitlines()[0]})"
