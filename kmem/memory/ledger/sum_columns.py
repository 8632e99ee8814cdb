"""The sums of table `evidence` as columns in memory, loaded once per process and then kept up to
date row by row.

A cell is one row: the outcomes of one skill that agree in everything a question can ask for. As
numpy columns, hundreds of thousands of them answer a question in milliseconds; as objects they
would take seconds. posteriors.py does the arithmetic.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    pass

#: id, the seven names of `Cell`, then tried, passed, timed and the two sums in units of 1e-9.
CellRow: TypeAlias = "tuple[int, str, str, str, str, str, str, str, int, int, int, int, int]"

COUNTS = 5  # tried, passed, timed, log_speedup_e9, log_speedup_squared_e9


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell, for people and tests.

    `bottleneck` is "" where none was diagnosed; the last two are in units of 1e-9.
    """

    skill: str
    bottleneck: str
    operator: str
    arch: str
    torch: str
    triton: str
    origin: str
    tried: int
    passed: int
    timed: int  # passed, and timed against something
    log_speedup_e9: int  # sum over the timed ones
    log_speedup_squared_e9: int


class CellColumns:
    """Cells by row number.

    Names are kept as codes: `skills`, `bottlenecks`, `operators`, `archs` map a name to its code.

    `names` is (4, rows) int32: the code of skill, bottleneck, operator and architecture; `sources`
    (rows,) int32 indexes `source_names`, a list of (origin, torch, triton); `counts` is (COUNTS,
    rows) int64. Rows nobody filled are zero everywhere and count nothing.
    """

    def __init__(self) -> None:
        import numpy as np  # start-up of commands that ask for no posterior need not pay for it

        self.codes: tuple[dict[str, int], ...] = ({}, {}, {}, {})
        self.source_names: dict[tuple[str, str, str], int] = {}
        self.names = np.zeros((4, 0), dtype=np.int32)
        self.sources = np.zeros(0, dtype=np.int32)
        self.counts = np.zeros((COUNTS, 0), dtype=np.int64)

    @property
    def skills(self) -> dict[str, int]:
        """Skill name -> its code."""
        return self.codes[0]

    def update(self, rows: Iterable[CellRow]) -> None:
        """Put rows in their places, replacing what was there."""
        import numpy as np

        places: list[int] = []
        names: list[tuple[int, ...]] = []
        sources: list[int] = []
        counts: list[tuple[int, ...]] = []
        skills, bottlenecks, operators, archs = self.codes
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
            sources.append(
                self.source_names.setdefault((row[7], row[5], row[6]), len(self.source_names))
            )
            counts.append(row[8:])
        if not places:
            return
        self._grow(max(places) + 1)
        self.names[:, places] = np.array(names, dtype=np.int32).T
        self.sources[places] = sources
        self.counts[:, places] = np.array(counts, dtype=np.int64).T

    def _grow(self, rows: int) -> None:
        import numpy as np

        missing = rows - len(self.sources)
        if missing > 0:
            missing += rows // 8  # room for what comes next
            self.names = np.pad(self.names, ((0, 0), (0, missing)))
            self.sources = np.pad(self.sources, (0, missing))
            self.counts = np.pad(self.counts, ((0, 0), (0, missing)))
