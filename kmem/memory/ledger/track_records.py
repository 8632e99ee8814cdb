"""What skills earned, for the questions a run asks: posteriors, winning signatures, track records.

sums.py keeps the sums of outcomes up to date in the tables and sum_columns.py holds them in memory;
posteriors.py computes posteriors from them.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from kmem.memory.ledger import sums
from kmem.memory.ledger.ageing import AGING_COMPONENTS
from kmem.memory.ledger.contributors import Contributors
from kmem.memory.ledger.posteriors import (
    AverageSkill,
    Posterior,
    Question,
    average_skill,
    skill_posteriors,
)
from kmem.memory.ledger.sum_columns import OriginSums, SkillSums, SumColumns, SumRow
from kmem.memory.storage import Row, Storage, Tables
from kmem.records import Bottleneck

_ROWS_AT_ONCE = 10_000

#: The columns of `skill_sums`, added up.
_SUMS = """
sum(tried) as tried, sum(passed) as passed, sum(improved) as improved, sum(timed) as timed,
sum(log_speedup_e9) as total_e9, sum(recalled) as recalled, sum(held) as held,
sum(refuted) as refuted
"""


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """What the ledger says about a skill on one architecture.

    `compared` counts comparisons with what does without the skill: of a fix with the parent that it
    was applied to, and at each graph where it wrote a first kernel, of the best with it with the
    best without it. `improved` and `speedup`, their geometric mean (None without any), are over
    these. `held` and `refuted` count predictions that a profile settled.

    `recalled` counts kernels of the skill that were remembered and passed again; they are not among
    those tried.
    """

    arch: str
    tried: int
    passed: int
    compared: int
    improved: int
    speedup: float | None
    recalled: int
    held: int
    refuted: int

    @property
    def told(self) -> str:
        """What was earned, in a sentence without the architecture."""
        gain = f" ({self.speedup:.2f}x in the geometric mean)" if self.speedup is not None else ""
        text = (
            f"{self.tried} tried, {self.passed} passed; faster in {self.improved} of "
            f"{self.compared} comparisons with what does without it{gain}"
        )
        if self.held + self.refuted:
            text += f"; {self.held} of {self.held + self.refuted} predictions held"
        if self.recalled:
            text += f"; remembered kernels of it passed {self.recalled} times again"
        return text


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How many sums there are after a rebuild, and how many differed from what was kept."""

    sums: int
    differing: int


def installed_versions() -> dict[str, str]:
    """The installed versions of what outcomes age by; nothing is imported for it."""
    return {name: metadata.version(name) for name in AGING_COMPONENTS}


class TrackRecords(Tables):
    """`memory.track_records`: what skills earned."""

    def __init__(self, storage: Storage, contributors: Contributors) -> None:
        super().__init__(storage)
        self._contributors = contributors
        self._loaded: _Loaded | None = None
        self._average: tuple[object, AverageSkill] | None = None

    def posteriors(
        self,
        skills: Iterable[str],
        *,
        bottleneck: Bottleneck | None,
        operators: Sequence[str],
        arch: str,
        versions: Mapping[str, str],
    ) -> dict[str, Posterior]:
        """The posterior of each skill for a bottleneck on an architecture.

        Outcomes are weighed by the trust in their origin and by age.

        Args:
            versions: of torch, triton and recipes in use now, these named as
                `recipe_component` does; see `ageing.age_weight` and `recipe_weight`.
        """
        loaded, trust = self._load_columns(), self._contributors.trust()
        known_for = (loaded.generation, loaded.revision, trust, tuple(sorted(versions.items())))
        if self._average is None or self._average[0] != known_for:
            self._average = (known_for, average_skill(loaded.columns, versions, trust))
        question = Question(bottleneck.value if bottleneck else "", frozenset(operators), arch)
        return skill_posteriors(skills, loaded.columns, self._average[1], question)

    def sums(self) -> list[SkillSums]:
        """Every row of sums that holds an outcome, sorted by its names."""
        self.refresh()
        rows = self._storage.read(
            """
            select
                skill, bottleneck, operator, arch, torch, triton, recipe, origin,
                tried, passed, timed, log_speedup_e9, log_speedup_squared_e9, held, refuted
            from skill_sums
            where tried > 0
            order by skill, bottleneck, operator, arch, torch, triton, recipe, origin
            """
        )
        return [SkillSums(**row) for row in rows]

    def winning_signatures(
        self, skills: Sequence[str] | None = None
    ) -> dict[str, Mapping[str, float]]:
        """The mean signature of what each skill improved, by metric.

        Each origin is weighed by trust; metrics never seen are absent.

        Args:
            skills: the only ones wanted; None asks for all.
        """
        self.refresh()
        trust = self._contributors.trust()
        if skills is None:
            rows = self._storage.read(
                "select skill, origin, sums from skill_signature_sums order by skill, origin"
            )
        else:
            rows = self._storage.read(
                """
                select skill, origin, sums
                from json_each(?) given
                join skill_signature_sums on skill = given.value
                order by skill, origin
                """,
                [json.dumps(sorted(set(skills)))],
            )
        weighed: dict[str, list[tuple[float, str]]] = {}
        for row in rows:
            weighed.setdefault(row["skill"], []).append((trust.weight(row["origin"]), row["sums"]))
        means = {skill: _mean_signature(tuple(parts)) for skill, parts in weighed.items()}
        return {skill: mean for skill, mean in means.items() if mean}

    def of_skill(self, name: str) -> list[TrackRecord]:
        """What a skill has earned, by architecture; empty if it was never tried.

        Like is compared with like: see sums.py.
        """
        self.refresh()
        rows = self._storage.read(
            f"""
            select
                arch,
                {_SUMS}
            from skill_sums
            where skill = ?
            group by arch
            having sum(tried) > 0 or sum(recalled) > 0
            order by arch
            """,
            [name],
        )
        return [_track_record(row["arch"], row) for row in rows]

    def of_skill_by(self, name: str, what: str) -> list[tuple[str, TrackRecord]]:
        """What a skill has earned by "operator", "bottleneck" or "arch", most tried first.

        Raises ValueError for any other word.
        """
        if what not in ("operator", "bottleneck", "arch"):
            raise ValueError(f"skills have no record by {what}")
        self.refresh()
        rows = self._storage.read(
            f"""
            select
                {what} as name,
                {_SUMS}
            from skill_sums
            where skill = ?
            group by {what}
            having sum(tried) > 0
            order by tried desc, name
            """,
            [name],
        )
        return [(str(row["name"]), _track_record("", row)) for row in rows]

    def of_skills(self, names: Sequence[str]) -> dict[str, TrackRecord]:
        """What skills have earned over all architectures, of those that were ever tried.

        `arch` is empty: the sums are over every one.
        """
        self.refresh()
        rows = self._storage.read(
            f"""
            select
                skill,
                {_SUMS}
            from json_each(?) given
            join skill_sums on skill = given.value
            group by skill
            having sum(tried) > 0 or sum(recalled) > 0
            """,
            [json.dumps(sorted(set(names)))],
        )
        return {str(row["skill"]): _track_record("", row) for row in rows}

    def by_origin(self) -> list[OriginSums]:
        """What each origin measured on each architecture, most first; retracted ones left out."""
        return self._load_columns().columns.by_origin()

    def refresh(self) -> None:
        """Derive the sums from the whole ledger if they lack outcomes, as after a migration.

        Otherwise they are kept up to date.
        """
        # asked without a transaction: a reader waits for nobody
        if sums.are_current(self._storage.db.conn):
            return
        with self._storage.write() as connection:
            if not sums.are_current(connection):
                sums.rebuild(connection)

    def rebuild(self) -> Rebuilt:
        """Derive every sum again from the whole ledger, and say how many were not as kept."""
        self.refresh()
        with self._storage.write() as connection:
            before = _contents(connection)
            sums.rebuild(connection)
            after = _contents(connection)
        return Rebuilt(len(after), len(before ^ after))

    def _load_columns(self) -> "_Loaded":
        """The sums in memory, with what changed since they were last asked for."""
        self.refresh()
        with self._storage.snapshot() as connection:
            generation, revision = connection.execute(
                "select generation, revision from skill_sums_state"
            ).fetchone()
            loaded = self._loaded
            if loaded is None or loaded.generation != generation:
                loaded = _Loaded(SumColumns(), generation, revision=-1)
            if loaded.revision != revision:
                loaded.columns.update(_changed_rows(connection, loaded.revision))
                loaded = _Loaded(loaded.columns, generation, revision)
            self._loaded = loaded
        return loaded


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The sums in memory, and the state of table `skill_sums` that they show."""

    columns: SumColumns
    generation: int
    revision: int


def _track_record(arch: str, row: Row) -> TrackRecord:
    timed = row["timed"]
    return TrackRecord(
        arch,
        row["tried"],
        row["passed"],
        timed,
        row["improved"],
        math.exp(row["total_e9"] * sums.LOG_UNIT / timed) if timed else None,
        row["recalled"],
        row["held"],
        row["refuted"],
    )


@lru_cache(maxsize=1 << 14)  # a run asks about the same skills every round
def _mean_signature(parts: tuple[tuple[float, str], ...]) -> Mapping[str, float]:
    """The mean by metric of signature sums of several origins, each with its weight."""
    totals: dict[str, tuple[float, float]] = {}
    for weight, text in parts:
        for metric, (outcomes, total) in json.loads(text).items():
            count, value = totals.get(metric, (0.0, 0.0))
            totals[metric] = (
                count + weight * outcomes,
                value + weight * total * sums.SIGNATURE_UNIT,
            )
    return {metric: value / count for metric, (count, value) in totals.items() if count > 0}


def _changed_rows(connection: sqlite3.Connection, seen: int) -> Iterator[SumRow]:
    """The rows of sums that changed after a revision."""
    cursor = connection.execute(
        """
        select
            id, skill, bottleneck, operator, arch, origin, torch, triton, recipe,
            tried, passed, timed, log_speedup_e9, log_speedup_squared_e9, held, refuted
        from skill_sums
        where revision > ?
        """,
        [seen],
    )
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield from rows


def _contents(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Every sum that is not zero, whatever its id."""
    rows = connection.execute(
        """
        select
            skill, bottleneck, operator, arch, torch, triton, recipe, origin,
            tried, passed, timed, improved, log_speedup_e9, log_speedup_squared_e9,
            recalled, recalled_log_speedup_e9, held, refuted
        from skill_sums
        where tried > 0 or recalled > 0
        """
    )
    signatures = connection.execute(
        "select skill, origin, sums from skill_signature_sums where sums != '{}'"
    )
    return {*rows, *signatures}
