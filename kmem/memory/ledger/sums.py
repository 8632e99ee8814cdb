"""The sums that posteriors are made of, kept up to date in the transaction that adds an outcome.

Table `skill_sums` has one row for the outcomes of one skill that agree in everything a question can
ask for: bottleneck, operator, architecture, versions (of torch, Triton and its recipe), origin.
`skill_signature_sums` adds up how the problems looked on which a skill helped. outcomes.py calls
`add_outcomes` and `withdraw_outcome`; track_records.py reads what they keep.

Every sum is an integer (log-speedup in units of 1e-9), so it does not depend on the order in which
outcomes and retractions arrived: two memories with the same ledger have the same sums, bit for bit,
and `rebuild` derives them again from the ledger alone.

Not summed: interrupted measurements, which say nothing. Booked apart: outcomes of a recalled
kernel. That a remembered kernel is still fast is no new success of the skill that once wrote it, or
every run on the same problem would raise the skill again.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.records import Move, Outcome, Status, recipe_component
from kmem.serialize import from_json

LOG_UNIT = 1e-9
#: The version of a recipe that an outcome does not name.
UNKNOWN_RECIPE = "unknown"
SIGNATURE_UNIT = 1e-6
_PAGE = 5000


@dataclass(slots=True)
class _Sums:
    """What one row of `skill_sums` holds, in the order of its columns."""

    tried: int = 0
    passed: int = 0
    timed: int = 0  # passed, and something was timed before
    improved: int = 0
    log_speedup_e9: int = 0  # over the timed ones
    log_speedup_squared_e9: int = 0
    recalled: int = 0  # passed, of recalled kernels; none of these is among those above
    recalled_log_speedup_e9: int = 0

    @property
    def values(self) -> tuple[int, ...]:
        return (
            self.tried,
            self.passed,
            self.timed,
            self.improved,
            self.log_speedup_e9,
            self.log_speedup_squared_e9,
            self.recalled,
            self.recalled_log_speedup_e9,
        )


#: (skill, bottleneck, operator, arch, torch, triton, recipe, origin): what a row's outcomes share.
_Shared: TypeAlias = "tuple[str, ...]"
#: Metric -> [outcomes, total in units of 1e-6].
_SignatureSums: TypeAlias = "dict[str, list[int]]"
#: (skill, origin) -> its signature sums.
_Signatures: TypeAlias = "dict[tuple[str, str], _SignatureSums]"


def effect_log_speedup(outcome: Outcome) -> float | None:
    """ln(time before / time after) of the step that an outcome took.

    The time before is that of its parent, or of the best baseline if it had no parent. None unless
    the outcome passed and something was timed before it. For a recalled kernel it is what was
    gained again, which is booked apart.
    """
    if outcome.status is not Status.PASSED or not outcome.latency_ms:
        return None
    ratio = outcome.parent_ms / outcome.latency_ms if outcome.parent_ms else outcome.ratio
    return math.log(ratio) if ratio else None


def are_current(connection: sqlite3.Connection) -> bool:
    """Whether the sums hold every outcome of the ledger.

    They may not after a migration, or after somebody changed the tables by hand.
    """
    (current,) = connection.execute(
        """
        select (select outcome from skill_sums_state)
             = (select coalesce(max(id), 0) from outcomes)
        """
    ).fetchone()
    return bool(current)


def add_outcomes(connection: sqlite3.Connection, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """Add outcomes (hash, outcome) that were just put into the ledger.

    Those that were retracted before they came are left out.
    """
    rows = connection.execute(
        """
        select outcome_hash from json_each(?) given
        join retractions on outcome_hash = given.value
        """,
        [json.dumps([outcome_hash for outcome_hash, _ in outcomes])],
    )
    retracted = {outcome_hash for (outcome_hash,) in rows}
    _apply(
        connection,
        (outcome for outcome_hash, outcome in outcomes if outcome_hash not in retracted),
        1,
    )
    _mark_current(connection)


def withdraw_outcome(connection: sqlite3.Connection, outcome: Outcome) -> None:
    """Take away an outcome that was summed and is now retracted for the first time."""
    _apply(connection, [outcome], -1)


def rebuild(connection: sqlite3.Connection) -> None:
    """Derive every sum again from the whole ledger. Readers notice by the generation."""
    connection.execute("delete from skill_sums")
    connection.execute("delete from skill_signature_sums")
    connection.execute("update skill_sums_state set generation = generation + 1, outcome = 0")
    for page in _standing_outcomes(connection):
        _apply(connection, page, 1)
    _mark_current(connection)


def _mark_current(connection: sqlite3.Connection) -> None:
    """Note that the sums hold every outcome of the ledger."""
    connection.execute(
        "update skill_sums_state set outcome = (select coalesce(max(id), 0) from outcomes)"
    )


def _standing_outcomes(connection: sqlite3.Connection) -> Iterator[list[Outcome]]:
    """Every outcome that is not retracted, page by page."""
    last = 0
    while True:
        rows = connection.execute(
            """
            select
                id,
                record,
                exists (select 1 from retractions where outcome_hash = outcomes.hash)
            from outcomes
            where id > ?
            order by id
            limit ?
            """,
            [last, _PAGE],
        ).fetchall()
        if not rows:
            return
        yield [from_json(Outcome, record) for _, record, retracted in rows if not retracted]
        last = rows[-1][0]


def _apply(connection: sqlite3.Connection, outcomes: Iterable[Outcome], sign: int) -> None:
    """Add outcomes to the tables (sign 1), or take them away (sign -1)."""
    rows, signatures = _sum(outcomes, sign)
    if not rows:
        return
    connection.execute("update skill_sums_state set revision = revision + 1")
    (revision,) = connection.execute("select revision from skill_sums_state").fetchone()
    connection.executemany(
        """
        insert into skill_sums (
            skill, bottleneck, operator, arch, torch, triton, recipe, origin,
            tried, passed, timed, improved, log_speedup_e9, log_speedup_squared_e9,
            recalled, recalled_log_speedup_e9, revision
        )
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        on conflict (skill, bottleneck, operator, arch, torch, triton, recipe, origin)
        do update set
            tried = tried + excluded.tried,
            passed = passed + excluded.passed,
            timed = timed + excluded.timed,
            improved = improved + excluded.improved,
            log_speedup_e9 = log_speedup_e9 + excluded.log_speedup_e9,
            log_speedup_squared_e9 = log_speedup_squared_e9 + excluded.log_speedup_squared_e9,
            recalled = recalled + excluded.recalled,
            recalled_log_speedup_e9 = recalled_log_speedup_e9 + excluded.recalled_log_speedup_e9,
            revision = excluded.revision
        """,
        [(*shared, *row.values, revision) for shared, row in rows.items()],
    )
    _add_signatures(connection, signatures)


def _add_signatures(connection: sqlite3.Connection, signatures: _Signatures) -> None:
    known = connection.execute(
        """
        select s.skill, s.origin, s.sums
        from json_each(?) given
        join skill_signature_sums s
          on s.skill = json_extract(given.value, '$[0]')
         and s.origin = json_extract(given.value, '$[1]')
        """,
        [json.dumps(list(signatures))],
    ).fetchall()
    for skill, origin, text in known:
        totals = signatures[skill, origin]
        for metric, (outcomes, total) in json.loads(text).items():
            entry = totals.setdefault(metric, [0, 0])
            entry[0] += outcomes
            entry[1] += total
    connection.executemany(
        "insert or replace into skill_signature_sums (skill, origin, sums) values (?, ?, ?)",
        [
            (skill, origin, _signature_json(totals))
            for (skill, origin), totals in sorted(signatures.items())  # in the order of the table
        ],
    )


def _signature_json(totals: _SignatureSums) -> str:
    """Signature sums as they are stored: metrics that no outcome is left of are dropped."""
    seen = {metric: entry for metric, entry in totals.items() if entry[0]}
    return json.dumps(seen, sort_keys=True)


def _sum(outcomes: Iterable[Outcome], sign: int) -> tuple[dict[_Shared, _Sums], _Signatures]:
    """What outcomes add to each row of both tables, times a sign."""
    rows: dict[_Shared, _Sums] = {}
    signatures: _Signatures = {}
    for outcome in outcomes:
        if outcome.status is Status.INTERRUPTED:
            continue
        effect = effect_log_speedup(outcome)
        row = rows.setdefault(_shared(outcome), _Sums())
        passed = int(outcome.status is Status.PASSED)
        if outcome.move is Move.RECALL:
            row.recalled += sign * passed
            row.recalled_log_speedup_e9 += sign * _units(effect or 0.0, LOG_UNIT)
            continue
        row.tried += sign
        row.passed += sign * passed
        if effect is None:
            continue
        row.timed += sign
        row.improved += sign * (effect > 0)
        row.log_speedup_e9 += sign * _units(effect, LOG_UNIT)
        row.log_speedup_squared_e9 += sign * _units(effect * effect, LOG_UNIT)
        # where a skill helped, its problems looked like this
        if effect > 0 and outcome.signature is not None:
            totals = signatures.setdefault((outcome.skill, outcome.origin), {})
            for metric, value in outcome.signature.values.items():
                entry = totals.setdefault(metric, [0, 0])
                entry[0] += sign
                entry[1] += sign * _units(value, SIGNATURE_UNIT)
    return rows, signatures


def _units(value: float, unit: float) -> int:
    return round(value / unit)


def _shared(outcome: Outcome) -> _Shared:
    """The names of the row that an outcome belongs to.

    Its operator is the one that its skill's recipe wrote, else the first of the graph's. Its recipe
    is the version of that recipe, empty where none wrote it.
    """
    written = [choice.operator for choice in outcome.choices if choice.recipe == outcome.skill]
    first = outcome.operators[0] if outcome.operators else "opaque"
    operator = written[0] if written else first
    kept = outcome.versions.get(recipe_component(outcome.skill), UNKNOWN_RECIPE)
    bottleneck = outcome.bottleneck.value if outcome.bottleneck else ""
    versions = outcome.versions
    return (
        outcome.skill,
        bottleneck,
        operator,
        outcome.arch,
        versions.get("torch", ""),
        versions.get("triton", ""),
        kept if written else "",
        outcome.origin,
    )
