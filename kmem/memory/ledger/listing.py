"""Outcomes in lists: a page of them at a time, by skill and status, and one skill's in their order.

Every question is answered from an index, so that a ledger of a million outcomes is listed in
milliseconds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.memory.storage import Storage, Tables, Value
from kmem.records import Outcome, Status
from kmem.serialize import from_json

#: What a list may be ordered by, and the column for it. Outcomes are numbered as they came.
ORDERS = {"recorded": "id", "skill": "skill", "status": "status", "latency_ms": "latency_ms"}
#: Lists go no deeper: each further page would have to be counted up to.
DEEPEST = 10_000
_COUNTS_KEPT = 100


@dataclass(frozen=True, slots=True)
class OutcomeFilter:
    """Which outcomes: of skills whose name begins so, with a status; empty texts are any."""

    skill: str = ""
    status: str = ""

    @property
    def condition(self) -> tuple[str, list[Value]]:
        """The condition as SQL with its parameters."""
        parts, parameters = ["true"], []
        if self.skill:
            parts.append("skill >= ? and skill < ?")
            parameters += [self.skill, f"{self.skill}\U0010ffff"]
        if self.status:
            parts.append("status = ?")
            parameters.append(self.status)
        return " and ".join(parts), parameters


@dataclass(frozen=True, slots=True)
class ListedOutcome:
    """An outcome in a list, and whether it was retracted."""

    hash: str
    outcome: Outcome
    retracted: bool


@dataclass(frozen=True, slots=True)
class Success:
    """How many of a skill's first `count` outcomes passed; `number` is the last one's."""

    count: int
    passed: int
    number: int


class Listing(Tables):
    """`memory.listing`: outcomes in lists."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._counts: dict[tuple[OutcomeFilter, int], int] = {}
        self._successes: dict[tuple[str, int, int, int], list[Success]] = {}

    def count(self, chosen: OutcomeFilter) -> int:
        """How many outcomes there are so, retracted ones among them.

        The ledger is append-only: a count holds until there is a newer outcome.
        """
        (newest,) = self._storage.read("select coalesce(max(id), 0) as id from outcomes")
        known = (chosen, int(newest["id"]))
        if known not in self._counts:
            if len(self._counts) >= _COUNTS_KEPT:
                self._counts.clear()
            self._counts[known] = self._count(chosen)
        return self._counts[known]

    def _count(self, chosen: OutcomeFilter) -> int:
        condition, parameters = chosen.condition
        (row,) = self._storage.read(
            f"select count(*) as found from outcomes where {condition}", parameters
        )
        return int(row["found"])

    def page(
        self, chosen: OutcomeFilter, order: str, first: int, limit: int, *, descending: bool
    ) -> list[ListedOutcome]:
        """Some of the outcomes, from the one at place `first` on.

        Args:
            order: of ORDERS; outcomes without a time come last.
        """
        first = min(first, DEEPEST)
        if ORDERS[order] == "latency_ms" and not chosen.status:
            return self._read(self._by_time(chosen, first, limit, descending=descending))
        return self._read(self._numbers(chosen, ORDERS[order], first, limit, descending=descending))

    def _by_time(
        self, chosen: OutcomeFilter, first: int, limit: int, *, descending: bool
    ) -> list[int]:
        """Those that passed by their times, then the others, which have none, newest first."""
        passed = replace(chosen, status=Status.PASSED.value)
        found = self._numbers(passed, "latency_ms", first, limit, descending=descending)
        if len(found) == limit:
            return found
        past = max(0, first - self.count(passed))
        others = [status.value for status in Status if status is not Status.PASSED]
        numbers: list[int] = []
        for status in others:
            numbers += self._numbers(
                replace(chosen, status=status), "id", 0, past + limit, descending=True
            )
        numbers.sort(reverse=True)
        return [*found, *numbers[past : past + limit - len(found)]]

    def _numbers(
        self, chosen: OutcomeFilter, column: str, first: int, limit: int, *, descending: bool
    ) -> list[int]:
        condition, parameters = chosen.condition
        # an index has all that is asked; the rows beside it are two kilobytes each
        by = ""
        if chosen.skill or column == "skill":
            by = "indexed by outcomes_by_skill_and_time"
        elif chosen.status or column == "status":
            by = "indexed by outcomes_by_status_and_time"
        way = "desc" if descending else "asc"
        rows = self._storage.read(
            f"""
            select id from outcomes {by}
            where {condition}
            order by {column} {way}, id desc
            limit ? offset ?
            """,
            [*parameters, limit, first],
        )
        return [int(row["id"]) for row in rows]

    def successes(self, skill: str, points: int) -> list[Success]:
        """What became of a skill's outcomes, as they came; retracted ones are left out.

        Args:
            points: about how many there are of a skill with many outcomes; the first and the last
                outcome are always among them.
        """
        (newest,) = self._storage.read("select coalesce(max(id), 0) as id from outcomes")
        (gone,) = self._storage.read("select coalesce(max(rowid), 0) as id from retractions")
        known = (skill, points, int(newest["id"]), int(gone["id"]))
        if known not in self._successes:
            if len(self._successes) >= _COUNTS_KEPT:
                self._successes.clear()
            self._successes[known] = self._read_successes(skill, points)
        return self._successes[known]

    def _read_successes(self, skill: str, points: int) -> list[Success]:
        # a cross join keeps this order: retractions are few
        gone = """
            select o.id from retractions r
            cross join outcomes o on o.hash = r.outcome_hash
            where o.skill = ?
        """
        (row,) = self._storage.read(
            f"""
            select count(*) as total from outcomes indexed by outcomes_by_skill_and_time
            where skill = ? and id not in ({gone})
            """,
            [skill, skill],
        )
        rows = self._storage.read(
            f"""
            select count, passed, number from (
                select
                    id as number,
                    row_number() over in_order as count,
                    sum(status = 'passed') over in_order as passed
                from outcomes indexed by outcomes_by_skill_and_time
                where skill = ? and id not in ({gone})
                window in_order as (order by id rows unbounded preceding)
            )
            where count = 1 or count = ? or count % ? = 0
            """,
            [skill, skill, row["total"], max(1, int(row["total"]) // points)],
        )
        return [Success(**row) for row in rows]

    def latest(self, skill: str, most: int) -> list[ListedOutcome]:
        """A skill's newest outcomes, newest first."""
        rows = self._storage.read(
            """
            select id from outcomes indexed by outcomes_by_skill
            where skill = ?
            order by id desc
            limit ?
            """,
            [skill, most],
        )
        return self._read([int(row["id"]) for row in rows])

    def dates(self, numbers: Sequence[int]) -> list[str]:
        """When these outcomes were measured; ISO 8601."""
        return [entry.outcome.created_at for entry in self._read(numbers)]

    def _read(self, numbers: Sequence[int]) -> list[ListedOutcome]:
        """The outcomes with these numbers, in this order."""
        rows = self._storage.read(
            """
            select
                o.hash,
                o.record,
                exists (select 1 from retractions r where r.outcome_hash = o.hash) as retracted
            from json_each(?) given
            cross join outcomes o on o.id = given.value
            order by given.key
            """,
            [json.dumps(list(numbers))],
        )
        return [
            ListedOutcome(row["hash"], from_json(Outcome, row["record"]), bool(row["retracted"]))
            for row in rows
        ]
