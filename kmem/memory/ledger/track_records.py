"""What skills earned, for the questions a run asks: posteriors, winning signatures, track records.

tally.py keeps the sums up to date in the tables, cells.py in memory, posteriors.py does the
arithmetic.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from kmem.memory.ledger import tally
from kmem.memory.ledger.cells import Cell, CellColumns, CellRow
from kmem.memory.ledger.contributors import Contributors
from kmem.memory.ledger.posteriors import (
    AGING_COMPONENTS,
    AverageSkill,
    Posterior,
    Question,
    average_skill,
    skill_posteriors,
)
from kmem.memory.storage import Storage, Tables
from kmem.records import Bottleneck

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """What the ledger says about a skill on one architecture.

    `speedup` is the geometric mean over measured passes; None without any.

    `recalled` counts kernels of the skill that were remembered and passed again; they are not among
    those tried.
    """

    arch: str
    tried: int
    passed: int
    improved: int
    speedup: float | None
    recalled: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What `rebuild_evidence` found: how many sums there are, and how many differed from what was
    kept.
    """

    cells: int
    differing: int


def installed_versions() -> dict[str, str]:
    """Versions, as installed here, of what ages evidence; nothing is imported for it."""
    return {name: metadata.version(name) for name in AGING_COMPONENTS}


class TrackRecords(Tables):
    """`memory.track_records`: what skills earned."""

    def __init__(self, storage: Storage, contributors: Contributors) -> None:
        super().__init__(storage)
        self._contributors = contributors

    _cells: "tuple[int, int, CellColumns] | None" = None  # generation, revision
    _average: "tuple[object, AverageSkill] | None" = None

    def posteriors(
        self,
        skills: Iterable[str],
        *,
        bottleneck: Bottleneck | None,
        operators: Sequence[str],
        arch: str,
        versions: Mapping[str, str],
    ) -> dict[str, Posterior]:
        """The posterior of each skill for a bottleneck on an architecture, its outcomes weighed by
        trust in their origin and by age.

        Args:
            versions: of torch and triton in use now; see `outcomes.age_weight`.
        """
        cells, trust = self._cell_columns(), self._contributors.trust()
        known_for = (*self._cells[:2], trust, tuple(sorted(versions.items())))
        if self._average is None or self._average[0] != known_for:
            self._average = (known_for, average_skill(cells, versions, trust))
        question = Question(bottleneck.value if bottleneck else "", frozenset(operators), arch)
        return skill_posteriors(skills, cells, self._average[1], question)

    def cells(self) -> list[Cell]:
        """Every cell that holds an outcome, sorted by its key."""
        self.refresh()
        rows = self._storage.read(
            """
            select skill, bottleneck, operator, arch, torch, triton, origin, tried, passed, timed, log_speedup_e9, log_speedup_squared_e9
            from evidence where tried > 0 order by skill, bottleneck, operator, arch, torch, triton, origin
            """
        )
        return [Cell(**row) for row in rows]

    def winning_signatures(
        self, skills: Sequence[str] | None = None
    ) -> dict[str, Mapping[str, float]]:
        """The mean signature of what each skill improved, by metric, each origin weighed by trust;
        metrics never seen are absent.

        Args:
            skills: the only ones wanted; None asks for all.
        """
        self.refresh()
        trust = self._contributors.trust()
        if skills is None:
            rows = self._storage.read(
                "select skill, origin, sums from evidence_signatures order by skill, origin"
            )
        else:
            rows = self._storage.read(
                (
                    "select skill, origin, sums from json_each(?) given join evidence_signatures "
                    "on skill = given.value order by skill, origin"
                ),
                [json.dumps(sorted(set(skills)))],
            )
        weighed: dict[str, list[tuple[float, str]]] = {}
        for row in rows:
            weighed.setdefault(row["skill"], []).append((trust.weight(row["origin"]), row["sums"]))
        means = {skill: _mean_signature(tuple(parts)) for skill, parts in weighed.items()}
        return {skill: mean for skill, mean in means.items() if mean}

    def of_skill(self, name: str) -> list[TrackRecord]:
        """What a skill has earned, by architecture; empty if it was never tried.

        Its steps are those of `effect_log_speedup`.
        """
        self.refresh()
        rows = self._storage.read(
            """
            select arch, sum(tried) as tried, sum(passed) as passed, sum(improved) as improved, sum(timed) as timed,
                sum(log_speedup_e9) as total_e9, sum(recalled) as recalled
            from evidence where skill = ? group by arch having sum(tried) > 0 or sum(recalled) > 0 order by arch
            """,
            [name],
        )
        return [
            TrackRecord(
                row["arch"],
                row["tried"],
                row["passed"],
                row["improved"],
                math.exp(row["total_e9"] * tally.LOG_UNIT / row["timed"]) if row["timed"] else None,
                row["recalled"],
            )
            for row in rows
        ]

    def refresh(self) -> None:
        """Derive the sums from the whole ledger if they lack outcomes, as after a migration;
        otherwise they are kept up to date.
        """
        if tally.is_current(
            self._storage.db.conn
        ):  # asked without a transaction: a reader waits for nobody
            return
        with self._storage.write() as connection:
            if not tally.is_current(connection):
                tally.rebuild(connection)

    def rebuild(self) -> Rebuilt:
        """Derive every sum again from the whole ledger, and say how many were not what had been
        kept.
        """
        self.refresh()
        with self._storage.write() as connection:
            before = _contents(connection)
            tally.rebuild(connection)
            after = _contents(connection)
        return Rebuilt(len(after), len(before ^ after))

    def _cell_columns(self) -> CellColumns:
        """The cells in memory, with what changed since they were last asked for."""
        self.refresh()
        with self._storage.snapshot() as connection:
            generation, revision = connection.execute(
                "select generation, revision from evidence_state"
            ).fetchone()
            if self._cells is None or self._cells[0] != generation:
                self._cells = (generation, -1, CellColumns())
            _, seen, columns = self._cells
            if seen != revision:
                columns.update(_changed_rows(connection, seen))
                self._cells = (generation, revision, columns)
        return columns


@lru_cache(maxsize=1 << 14)  # a run asks about the same skills every round
def _mean_signature(parts: tuple[tuple[float, str], ...]) -> Mapping[str, float]:
    """The mean by metric of sums of several origins, each with its weight."""
    sums: dict[str, tuple[float, float]] = {}
    for weight, text in parts:
        for metric, (outcomes, total) in json.loads(text).items():
            count, value = sums.get(metric, (0.0, 0.0))
            sums[metric] = (
                count + weight * outcomes,
                value + weight * total * tally.SIGNATURE_UNIT,
            )
    return {metric: value / count for metric, (count, value) in sums.items() if count > 0}


def _changed_rows(connection: sqlite3.Connection, seen: int) -> Iterator[CellRow]:
    cursor = connection.execute(
        """
        select id, skill, bottleneck, operator, arch, torch, triton, origin, tried, passed, timed, log_speedup_e9, log_speedup_squared_e9
        from evidence where revision > ?
        """,
        [seen],
    )
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield from rows


def _contents(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Every sum that is not zero, whatever its row number."""
    cells = connection.execute(
        """
        select skill, bottleneck, operator, arch, torch, triton, origin, tried, passed, timed, improved, log_speedup_e9,
            log_speedup_squared_e9, recalled, recalled_log_speedup_e9
        from evidence where tried > 0 or recalled > 0
        """
    )
    signatures = connection.execute(
        "select skill, origin, sums from evidence_signatures where sums != '{}'"
    )
    return {*cells, *signatures}
