"""What became of the predictions that fixes were made with: claims held against a profile.

An outcome is recorded as soon as its kernel is judged, with what was claimed of it; the profile
that settles the claims comes later. So a settlement is a record of its own that names the outcome.
It is shared and merged as outcomes are, may arrive before the outcome that it names, and counts
only if it is of the outcome's own origin: nobody settles what another measured.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.records import ClaimCheck, Outcome, content_hash
from kmem.serialize import from_json, to_json


@dataclass(frozen=True, slots=True)
class Settlement:
    """The claims of an outcome beside what the next profile showed."""

    outcome_hash: str
    checks: tuple[ClaimCheck, ...]
    origin: str
    created_at: str  # ISO 8601, UTC

    @property
    def hash(self) -> str:
        """Over every field."""
        return content_hash(to_json(self))

    @property
    def held(self) -> bool | None:
        """Whether the prediction held: not if a claim failed, None if no claim could be told."""
        known = {check.held for check in self.checks} - {None}
        return False not in known if known else None


def predictions_held(
    connection: sqlite3.Connection, outcomes: Sequence[tuple[str, Outcome]]
) -> dict[str, bool]:
    """Of outcomes (hash, outcome) with a settled prediction, whether it held.

    Where an outcome was settled twice, one failure is a failure.
    """
    origins = {outcome_hash: outcome.origin for outcome_hash, outcome in outcomes}
    rows = connection.execute(
        """
        select s.outcome_hash, s.record
        from json_each(?) given
        join settlements s on s.outcome_hash = given.value
        """,
        [json.dumps(list(origins))],
    )
    found: dict[str, bool] = {}
    for outcome_hash, record in rows:
        settlement = from_json(Settlement, record)
        if settlement.held is not None and settlement.origin == origins[outcome_hash]:
            found[outcome_hash] = settlement.held and found.get(outcome_hash, True)
    return found
