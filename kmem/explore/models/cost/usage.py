"""What each role has used of each model: calls, tokens, and exact costs.

Costs are summed in whole picodollars (prices.py) and leave as dollars.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.explore.models.cost.prices import to_picodollars, to_usd


@dataclass(frozen=True, slots=True)
class Usage:
    """What one role has used of one model.

    The counts are the provider's own; `usd` is None where a price is not known.

    `uncounted` of the `calls` gave no counts (a lost answer, or a provider that reports none). They
    are in `usd`, at their worst, but not in the tokens.
    """

    role: str
    model: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0
    usd: float | None = 0.0
    cached_tokens: int = 0  # of the input: read from the provider's cache


@dataclass(slots=True)
class _Account:
    """One row of usage while it grows; picodollars None once a call without a price is in it."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0
    picodollars: int | None = 0
    cached_tokens: int = 0


class Accounts:
    """The rows of usage of one run. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Account] = {}

    def add_counted(
        self,
        role: str,
        model: str,
        counts: tuple[int, int],
        picodollars: int | None,
        cached_tokens: int = 0,
    ) -> None:
        """Add a call with its input and output tokens; picodollars None if the price is unknown."""
        row = self._add_call(role, model, picodollars)
        row.input_tokens += counts[0]
        row.output_tokens += counts[1]
        row.cached_tokens += cached_tokens

    def add_uncounted(self, role: str, model: str, picodollars: int | None) -> None:
        """Add a call whose tokens nobody counted."""
        self._add_call(role, model, picodollars).uncounted += 1

    def rows(self) -> tuple[Usage, ...]:
        """The usage so far, in order of first use."""
        return tuple(
            Usage(
                role,
                model,
                row.calls,
                row.input_tokens,
                row.output_tokens,
                row.uncounted,
                to_usd(row.picodollars),
                row.cached_tokens,
            )
            for (role, model), row in self._rows.items()
        )

    def _add_call(self, role: str, model: str, picodollars: int | None) -> _Account:
        row = self._rows.setdefault((role, model), _Account())
        row.calls += 1
        if row.picodollars is None or picodollars is None:
            row.picodollars = None
        else:
            row.picodollars += picodollars
        return row


def total_usage(rows: Sequence[Usage]) -> Usage:
    """All rows in one, with the role "total" and no model; `usd` is None if any row's is."""
    costs = [to_picodollars(row.usd) for row in rows]
    return Usage(
        role="total",
        model="",
        calls=sum(row.calls for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        uncounted=sum(row.uncounted for row in rows),
        usd=None if None in costs else to_usd(sum(costs)),
        cached_tokens=sum(row.cached_tokens for row in rows),
    )
