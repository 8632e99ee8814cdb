"""What each outcome adds to the sums posteriors are made of: tables that are kept up to date in the
transaction that adds the outcome.

Every sum is an integer (log-speedup in units of 1e-9), so it does not depend on the order in which
outcomes and retractions arrived: two memories with the same ledger have the same sums, bit for bit,
and `rebuild` derives them again from the ledger alone. outcomes.py calls `add_outcomes` and
`withdraw_outcome`; track_records.py reads what they keep.

Not summed: interrupted measurements, which say nothing. Booked apart: outcomes of a recalled
kernel. That a remembered kernel is still fast is no new success of the skill that once wrote it, or
every run on the same problem would raise the skill again.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from kmem.memory.ledger.posteriors import effect_log_speedup
from kmem.records import Move, Outcome, Status
from kmem.serialize import from_json

#: (skill, bottleneck, operator, arch, torch, triton, origin) -> the sums of table `evidence`, in
#: the order of its columns.
_Cells: TypeAlias = "dict[tuple[str, ...], list[int]]"
#: (skill, origin) -> metric -> (outcomes, total in units of 1e-6).
SignatureSums: TypeAlias = "dict[str, list[int]]"
_Signatures: TypeAlias = "dict[tuple[str, str], SignatureSums]"

LOG_UNIT = 1e-9
SIGNATURE_UNIT = 1e-6
_PAGE = 5000


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the sums hold every outcome of the ledger; they may not after a migration or a change
    of the tables by hand.
    """
    (current,) = connection.execute(
        "select (select outcome from evidence_state) = (select coalesce(max(id), 0) from outcomes)"
    ).fetchone()
    return bool(current)


def add_outcomes(connection: sqlite3.Connection, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """Add outcomes (hash, outcome) that were just put into the ledger, but for those retracted
    before they came.
    """
    retracted = {
        row[0]
        for row in connection.execute(
            (
                "select outcome_hash from json_each(?) given join retractions on outcome_hash = "
                "given.value"
            ),
            [json.dumps([outcome_hash for outcome_hash, _ in outcomes])],
        )
    }
    _apply(
        connection,
        (outcome for outcome_hash, outcome in outcomes if outcome_hash not in retracted),
        1,
    )
    connection.execute(
        "update evidence_state set outcome = (select coalesce(max(id), 0) from outcomes)"
    )


def withdraw_outcome(connection: sqlite3.Connection, outcome: Outcome) -> None:
    """Take away an outcome that was summed and is now retracted for the first time."""
    _apply(connection, [outcome], -1)


def rebuild(connection: sqlite3.Connection) -> None:
    """Derive every sum again from the whole ledger. Readers notice by the generation."""
    connection.execute("delete from evidence")
    connection.execute("delete from evidence_signatures")
    connection.execute("update evidence_state set generation = generation + 1, outcome = 0")
    for page in _standing_outcomes(connection):
        _apply(connection, page, 1)
    connection.execute(
        "update evidence_state set outcome = (select coalesce(max(id), 0) from outcomes)"
    )


def _standing_outcomes(connection: sqlite3.Connection) -> Iterator[list[Outcome]]:
    last = 0
    while True:
        rows = connection.execute(
            """
            select id, record, exists (select 1 from retractions where outcome_hash = outcomes.hash) from outcomes
            where id > ? order by id limit ?
            """,
            [last, _PAGE],
        ).fetchall()
        if not rows:
            return
        yield [from_json(Outcome, record) for _, record, retracted in rows if not retracted]
        last = rows[-1][0]


def _apply(connection: sqlite3.Connection, outcomes: Iterable[Outcome], sign: int) -> None:
    cells, signatures = _sum(outcomes, sign)
    if not cells:
        return
    connection.execute("update evidence_state set revision = revision + 1")
    (revision,) = connection.execute("select revision from evidence_state").fetchone()
    connection.executemany(
        """
        insert into evidence (
            skill, bottleneck, operator, arch, torch, triton, origin,
            tried, passed, timed, improved, log_speedup_e9, log_speedup_squared_e9, recalled, recalled_log_speedup_e9, revision
        ) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        on conflict (skill, bottleneck, operator, arch, torch, triton, origin) do update set
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
        [(*key, *sums, revision) for key, sums in cells.items()],
    )
    _add_signatures(connection, signatures)


def _add_signatures(connection: sqlite3.Connection, signatures: _Signatures) -> None:
    known = connection.execute(
        """
        select s.skill, s.origin, s.sums
        from json_each(?) given
        join evidence_signatures s on s.skill = json_extract(given.value, '$[0]') and s.origin = json_extract(given.value, '$[1]')
        """,
        [json.dumps(list(signatures))],
    ).fetchall()
    for skill, origin, text in known:
        sums = signatures[skill, origin]
        for metric, (outcomes, total) in json.loads(text).items():
            entry = sums.setdefault(metric, [0, 0])
            entry[0] += outcomes
            entry[1] += total
    connection.executemany(
        "insert or replace into evidence_signatures (skill, origin, sums) values (?, ?, ?)",
        [
            (
                skill,
                origin,
                json.dumps(
                    {metric: entry for metric, entry in sums.items() if entry[0]}, sort_keys=True
                ),
            )
            for (skill, origin), sums in sorted(signatures.items())  # in the order of the table
        ],
    )


def _sum(outcomes: Iterable[Outcome], sign: int) -> tuple[_Cells, _Signatures]:
    cells: _Cells = {}
    signatures: _Signatures = {}
    for outcome in outcomes:
        if outcome.status is Status.INTERRUPTED:
            continue
        effect = effect_log_speedup(outcome)
        sums = cells.setdefault(_cell_key(outcome), [0] * 8)
        passed = int(outcome.status is Status.PASSED)
        if outcome.move is Move.RECALL:
            sums[6] += sign * passed
            sums[7] += sign * _units(effect or 0.0, LOG_UNIT)
            continue
        sums[0] += sign
        sums[1] += sign * passed
        if effect is None:
            continue
        sums[2] += sign
        sums[3] += sign * (effect > 0)
        sums[4] += sign * _units(effect, LOG_UNIT)
        sums[5] += sign * _units(effect * effect, LOG_UNIT)
        # where a skill helped, its problems looked like this
        if effect > 0 and outcome.signature is not None:
            totals = signatures.setdefault((outcome.skill, outcome.origin), {})
            for metric, value in outcome.signature.values.items():
                entry = totals.setdefault(metric, [0, 0])
                entry[0] += sign
                entry[1] += sign * _units(value, SIGNATURE_UNIT)
    return cells, signatures


def _units(value: float, unit: float) -> int:
    return round(value / unit)


def _cell_key(outcome: Outcome) -> tuple[str, ...]:
    """The operator an outcome speaks of is the one its skill's recipe wrote, else the first of the
    graph's.
    """
    written = (choice.operator for choice in outcome.choices if choice.recipe == outcome.skill)
    operator = next(written, outcome.operators[0] if outcome.operators else "opaque")
    bottleneck = outcome.bottleneck.value if outcome.bottleneck else ""
    versions = outcome.versions
    return (
        outcome.skill,
        bottleneck,
        operator,
        outcome.arch,
        versions.get("torch", ""),
        versions.get("triton", ""),
        outcome.origin,
    )
