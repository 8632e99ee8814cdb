"""Row reductions as Triton text: what a kind keeps, and how tiles, lanes and parts combine.

A kind has one to three fp32 (index: int32) states per row. Four texts make them:

- `direct`: from one tile that holds all of the row's (or the program's) elements;
- `start`, `update`, `finish`: lane by lane over the tiles of a loop, then across lanes once;
- `combine`: from the states that several programs left for one row.

Names in the surrounding kernel: BK, BR tile sizes, EVEN_R (no tail), valid (1, BR) mask, r (1, BR)
index in the row, count (elements that this program reduces, as fp32), lane_count (1, BR) elements
per lane, part_count (1, SPLIT) elements per partial, part_valid its mask, step the 1-based loop
step, COMPENSATED whether loops keep what their sums lose to rounding, RUN elements that a thread
holds side by side. All reduce along axis 1 and keep it; `combine` of one row's parts makes scalars.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from kmem.problem.operators.expressions import Helper

#: Arguments of a reduction that takes each row of a tile by itself, and of one whose tile is a
#: single row and becomes a scalar.
BY_ROW, TO_SCALAR = ", axis=1, keep_dims=True", ""
#: Text of a reduction of a tile over BY_ROW or TO_SCALAR.
Across: TypeAlias = Callable[[str, str], str]


class Reduction(ABC):
    """One kind of row reduction over fp32 values.

    `states` are suffixes of its variables, in the order in which results are named.
    """

    states: tuple[str, ...]
    index_states: tuple[str, ...] = ()  # those that are int32
    #: Jitted functions that the texts call.
    helpers: tuple[Helper, ...] = ()
    #: Whether no compiler may fuse the last operation of what is reduced with the first of the
    #: reduction.
    wants_rounded_values = False
    #: Whether `update` adds in fp32, so that a long loop loses digits unless it is COMPENSATED.
    adds: bool = False
    #: How often `finish` reduces across lanes.
    across_lanes: int = 1
    #: Whether a lane is RUN elements of a tile.
    reduces_runs: bool = False

    @abstractmethod
    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        """States from one tile.

        Args:
            name: of each state; behind them that of a second value, if the kind reads one.
        """

    @abstractmethod
    def start(self, name: tuple[str, ...]) -> list[str]:
        """Lanes before the first tile."""

    @abstractmethod
    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        """Lanes after one more tile."""

    @abstractmethod
    def finish(self, name: tuple[str, ...]) -> list[str]:
        """States from lanes."""

    @abstractmethod
    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        """States from `<state>_parts` (BK, SPLIT) tiles, reduced over BY_ROW or TO_SCALAR."""

    def keep(self, name: tuple[str, ...]) -> list[str]:
        """Lines between `direct` and `combine` that save what `reuse` reads."""
        return []

    def reuse(self, name: tuple[str, ...]) -> str | None:
        """An element's share of the first state (see region.Map), written more cheaply.

        The text reads what `direct` and `keep` left in registers.
        """
        return None
