"""What became of the predictions that fixes were made with: claims held against a profile.

An outcome is recorded as soon as its kernel is judged, with what was claimed of it; the profile
that settles the claims comes later. So a settlement is a record of its own that names the outcome.
It is shared and merged as outcomes are, may arrive before the outcome that it names, and counts
only if it has the outcome's own writer: nobody settles what another measured.
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
    """Of outcomes (hash, outcome by its writer) with a settled prediction, whether it held.

    Where an outcome was settled twice, one failure is a failure.
    """
    writers = {outcome_hash: outcome.origin for outcome_hash, outcome in outcomes}
    rows = connection.execute(
        """
        select s.outcome_hash, s.record, s.writer
        from json_each(?) given
        join settlements s on s.outcome_hash = given.value
        """,
        [json.dumps(list(writers))],
    )
    found: dict[str, bool] = {}
    for outcome_hash, record, writer in rows:
        held = from_json(Settlement, record).held
        if held is not None and writer == writers[outcome_hash]:
            found[outcome_hash] = held and found.get(outcome_hash, True)
    return found
