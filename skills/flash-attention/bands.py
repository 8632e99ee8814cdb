"""Which keys a query sees where the mask depends on key - query alone: a band of the scores."""

from collections.abc import Iterable
from dataclasses import dataclass

#: Stands for a side without end in the constants of a kernel.
ENDLESS = 2**30


@dataclass(frozen=True, slots=True)
class Band:
    """A query sees the keys with low <= key - query <= high, each None where it has no end.

    Causal attention has high 0. `spreads`: the module multiplies what is hidden by 0, so that a
    value that is not finite reaches every row; else it is not read. `is_added`: the mask is added
    to the scores, so that a key that is not finite reaches every row as well.
    """

    low: int | None = None
    high: int | None = None
    spreads: bool = False
    is_added: bool = False

    @property
    def first(self) -> int:
        """The lower side as a constant of a kernel."""
        return -ENDLESS if self.low is None else self.low

    @property
    def last(self) -> int:
        """The upper side as a constant of a kernel."""
        return ENDLESS if self.high is None else self.high

    @property
    def edges(self) -> int:
        """Sides at which blocks of scores are seen in part."""
        return (self.low is not None) + (self.high is not None)

    @property
    def text(self) -> str:
        """The constants of a kernel that say what is seen."""
        return f"LOW={self.first}, HIGH={self.last}, ADDS={self.is_added}"

    def pairs(self, queries: int, keys: int) -> int:
        """How many pairs of a query and a key that it sees there are."""
        below = _pairs_up_to(self.first - 1, queries, keys)
        return _pairs_up_to(self.last, queries, keys) - below

    def most_keys(self, queries: int, keys: int) -> int:
        """No query sees more keys than these."""
        return max(1, min(keys, queries + self.last, self.last - self.first + 1))

    def seen_keys(self, queries: int, keys: int) -> tuple[int, int]:
        """The first key that any query sees, and the one behind the last."""
        return max(0, self.first), min(keys, queries + self.last)


def join_intervals(seen: Iterable[tuple[float, float]], queries: int, keys: int) -> Band | None:
    """The band of ascending intervals of key - query, ends included; None if they leave a gap.

    Nor is there one of nothing.
    """
    least, most = 1 - queries, keys - 1
    found: tuple[float, float] | None = None
    for first, last in seen:
        start, end = max(first, least), min(last, most)
        if start > end:
            continue
        if found is not None and found[1] + 1 != start:
            return None
        found = (start if found is None else found[0]), end
    if found is None:
        return None
    start, end = found
    return Band(None if start == least else int(start), None if end == most else int(end))


def _pairs_up_to(most: int, queries: int, keys: int) -> int:
    """Pairs with key - query <= most."""
    return _sum_clamped(most + queries, keys) - _sum_clamped(most, keys)


def _sum_clamped(last: int, limit: int) -> int:
    """The sum of all x <= last, each between 0 and a limit."""
    rising = max(0, min(last, limit))
    return rising * (rising + 1) // 2 + max(0, last - limit) * limit
