"""How much a memory holds, and what each of its skills is expected to do: `kmem memory stats`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kmem.memory.ledger.sums import LOG_UNIT
from kmem.memory.store import Memory


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


@dataclass(frozen=True, slots=True)
class SkillStats:
    """What a skill has been through, and its posterior for no bottleneck or operator in particular.

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


def memory_stats(memory: Memory) -> MemoryStats:
    """Count records.

    `skills` are those that names mean now, `bytes` is the size of the database file.
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
            (select coalesce(sum(recalled), 0) from skill_sums) as recalled,
            (select count(*) from retractions) as retractions,
            (select count(*) from graphs) as graphs,
            (select count(*) from library) as skills,
            (select count(*) from embeddings) as embeddings
        """
    )
    size = memory.path.stat().st_size if memory.path.is_file() else 0
    return MemoryStats(path=str(memory.path), bytes=size, **row)


def skill_stats(memory: Memory, versions: Mapping[str, str]) -> list[SkillStats]:
    """Every skill with outcomes, the most tried first, then by name.

    `versions` are those in use, of torch and triton: outcomes of others count less.
    """
    memory.track_records.refresh()
    rows = memory.storage.read(
        """
        select
            skill,
            sum(tried) as tried,
            sum(passed) as passed,
            sum(recalled) as recalled,
            sum(recalled_log_speedup_e9) as again_e9
        from skill_sums
        group by skill
        having sum(tried) > 0 or sum(recalled) > 0
        order by tried desc, skill
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
