"""Table `skill_sums` as columns in memory, loaded once per process and kept up to date row by row.

As numpy columns, hundreds of thousands of rows answer a question in milliseconds; as objects they
would take seconds. sums.py says what a row is; posteriors.py does the arithmetic.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

#: A row as `SumColumns` takes it: id; its names; origin, torch, triton, recipe; its counts.
SumRow: TypeAlias = (
    "tuple[int, str, str, str, str, str, str, str, str, int, int, int, int, int, int, int]"
)


class Name(IntEnum):
    """The place of each name in `SumColumns.names`."""

    SKILL = 0
    BOTTLENECK = 1
    OPERATOR = 2
    ARCH = 3


class Count(IntEnum):
    """The place of each number in `SumColumns.counts`."""

    TRIED = 0
    PASSED = 1
    TIMED = 2  # comparisons with what does without the skill
    LOG_SPEEDUP_E9 = 3  # sum over the timed ones, in units of 1e-9
    LOG_SPEEDUP_SQUARED_E9 = 4
    HELD = 5  # predictions that a profile confirmed
    REFUTED = 6  # and that it refuted


@dataclass(frozen=True, slots=True)
class SkillSums:
    """One row, for people and tests; `bottleneck` is "" where none was diagnosed."""

    skill: str
    bottleneck: str
    operator: str
    arch: str
    torch: str
    triton: str
    recipe: str
    origin: str
    tried: int
    passed: int
    timed: int
    log_speedup_e9: int
    log_speedup_squared_e9: int
    held: int
    refuted: int


@dataclass(frozen=True, slots=True)
class OriginSums:
    """What one origin measured on one architecture, of all skills, and how it came out.

    `log_speedup_e9` is the sum over the `timed` ones, in units of 1e-9.
    """

    origin: str
    arch: str
    tried: int
    passed: int
    timed: int
    log_speedup_e9: int


class SumColumns:
    """Rows of `skill_sums` by their ids.

    Names are kept as codes: `skills`, `bottlenecks`, `operators` and `archs` map them.

    `names` (Name, rows) int32 are codes. `sources` (rows,) int32 indexes `source_names`, which maps
    (origin, torch, triton, recipe) to a place. `counts` is (Count, rows) int64. A row that nobody
    filled is zero everywhere and counts nothing.
    """

    def __init__(self) -> None:
        import numpy as np  # start-up of commands that ask for no posterior need not pay for it

        self.skills: dict[str, int] = {}
        self.bottlenecks: dict[str, int] = {}
        self.operators: dict[str, int] = {}
        self.archs: dict[str, int] = {}
        self.source_names: dict[tuple[str, str, str, str], int] = {}
        self.names = np.zeros((len(Name), 0), dtype=np.int32)
        self.sources = np.zeros(0, dtype=np.int32)
        self.counts = np.zeros((len(Count), 0), dtype=np.int64)

    def update(self, rows: Iterable[SumRow]) -> None:
        """Put rows in their places, replacing what was there."""
        import numpy as np

        places: list[int] = []
        names: list[tuple[int, ...]] = []
        sources: list[int] = []
        counts: list[tuple[int, ...]] = []
        skills, bottlenecks = self.skills, self.bottlenecks
        operators, archs = self.operators, self.archs
        for row in rows:
            places.append(row[0])
            names.append(
                (
                    skills.setdefault(row[1], len(skills)),
                    bottlenecks.setdefault(row[2], len(bottlenecks)),
                    operators.setdefault(row[3], len(operators)),
                    archs.setdefault(row[4], len(archs)),
                )
            )
            sources.append(self.source_names.setdefault(row[5:9], len(self.source_names)))
            counts.append(row[9:])
        if not places:
            return
        self._grow(max(places) + 1)
        self.names[:, places] = np.array(names, dtype=np.int32).T
        self.sources[places] = sources
        self.counts[:, places] = np.array(counts, dtype=np.int64).T

    def by_origin(self) -> list[OriginSums]:
        """The sums of all skills by origin and architecture, most tried first."""
        import numpy as np

        origins: dict[str, int] = {}
        codes = [origins.setdefault(name[0], len(origins)) for name in self.source_names]
        if not codes:
            return []
        groups = np.array(codes)[self.sources] * len(self.archs) + self.names[Name.ARCH]
        most = len(origins) * len(self.archs)
        summed = [
            np.bincount(groups, weights=self.counts[count], minlength=most).tolist()
            for count in (Count.TRIED, Count.PASSED, Count.TIMED, Count.LOG_SPEEDUP_E9)
        ]
        pairs = [(origin, arch) for origin in origins for arch in self.archs]
        found = [
            OriginSums(*pair, *map(int, totals))
            for pair, totals in zip(pairs, zip(*summed, strict=True), strict=True)
            if totals[0]  # tried
        ]
        return sorted(found, key=lambda row: (-row.tried, row.origin, row.arch))

    def _grow(self, rows: int) -> None:
        """Make room for so many rows, and for an eighth more that may come next."""
        import numpy as np

        missing = rows - len(self.sources)
        if missing > 0:
            missing += rows // 8
            self.names = np.pad(self.names, ((0, 0), (0, missing)))
            self.sources = np.pad(self.sources, (0, missing))
            self.counts = np.pad(self.counts, ((0, 0), (0, missing)))
