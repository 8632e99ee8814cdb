"""The sums that posteriors are made of, kept up to date in the transaction that adds an outcome.

Table `skill_sums` has one row for the outcomes of one skill that agree in everything a question can
ask for: bottleneck, operator, architecture, versions (of torch, Triton and its recipe), origin.
`skill_signature_sums` adds up how the problems looked on which a skill helped. outcomes.py calls
`add_outcomes` and `withdraw_outcome`; track_records.py reads what they keep.

Every sum is an integer (log-speedup in units of 1e-9), so it does not depend on the order in which
outcomes and retractions arrived: two memories with the same ledger have the same sums, bit for bit,
and `rebuild` derives them again from the ledger alone.

Like is compared with like. A fix is compared with the parent that it was applied to; a seed, at its
graph, with the best that does without its skill (worth.py). Tuning compares a skill with itself and
says nothing of its worth, and the final verdict on a kernel repeats a step that was counted when
the kernel was screened.

Not summed: interrupted measurements, which say nothing. Booked apart: outcomes of a recalled
kernel. That a remembered kernel is still fast is no new success of the skill that once wrote it, or
every run on the same problem would raise the skill again.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.memory.ledger.settlements import predictions_held
from kmem.memory.ledger.worth import (
    GraphTime,
    add_times,
    forget_times,
    graph_times,
    outcomes_beside,
    seed_gains,
)
from kmem.memory.ledger.written import read_written
from kmem.records import Move, Outcome, Status, recipe_component

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
    timed: int = 0  # comparisons with what does without the skill
    improved: int = 0  # of these
    log_speedup_e9: int = 0  # over the timed ones
    log_speedup_squared_e9: int = 0
    recalled: int = 0  # passed, of recalled kernels; none of these is among those above
    recalled_log_speedup_e9: int = 0
    held: int = 0  # predictions that a profile confirmed
    refuted: int = 0  # and that it refuted

    def compare(self, log_speedup: float, sign: int) -> None:
        """Count a comparison, or take it away (sign -1)."""
        self.timed += sign
        self.improved += sign * (log_speedup > 0)
        self.log_speedup_e9 += sign * _units(log_speedup, LOG_UNIT)
        self.log_speedup_squared_e9 += sign * _units(log_speedup * log_speedup, LOG_UNIT)

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
            self.held,
            self.refuted,
        )


#: (skill, bottleneck, operator, arch, torch, triton, recipe, origin): what a row's outcomes share.
_Shared: TypeAlias = "tuple[str, ...]"
#: Metric -> [outcomes, total in units of 1e-6].
_SignatureSums: TypeAlias = "dict[str, list[int]]"
#: (skill, origin) -> its signature sums.
_Signatures: TypeAlias = "dict[tuple[str, str], _SignatureSums]"


#: What is done to a parent that did without the skill.
_APPLIED = frozenset({Move.FIX, Move.REPAIR, Move.CLIMB})


def step_log_speedup(outcome: Outcome) -> float | None:
    """ln(time of the parent / time after) of a skill that was applied to a parent.

    None unless the outcome passed and the parent was timed, and for any other move.
    """
    if outcome.move not in _APPLIED or outcome.status is not Status.PASSED:
        return None
    if not outcome.parent_ms or not outcome.latency_ms:
        return None
    return math.log(outcome.parent_ms / outcome.latency_ms)


def _gained_again(outcome: Outcome) -> float:
    """ln of what a recalled kernel gained over its parent, or the best baseline; 0 if unknown."""
    if outcome.status is not Status.PASSED or not outcome.latency_ms:
        return 0.0
    ratio = outcome.parent_ms / outcome.latency_ms if outcome.parent_ms else outcome.ratio
    return math.log(ratio) if ratio else 0.0


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
    _add(connection, [each for each in outcomes if each[0] not in retracted])
    _mark_current(connection)


def withdraw_outcome(connection: sqlite3.Connection, outcome_hash: str, outcome: Outcome) -> None:
    """Take away an outcome that was summed and is now retracted for the first time."""
    rows, signatures = _sum(connection, [(outcome_hash, outcome)], -1)
    standing = (
        each
        for beside in outcomes_beside(connection, outcome)
        for each in graph_times(beside, _shared(beside))
    )
    _move_seeds(rows, *forget_times(connection, outcome, standing))
    _apply(connection, rows, signatures)


def settle_outcome(
    connection: sqlite3.Connection, outcome: Outcome, before: bool | None, after: bool | None
) -> None:
    """Count what became of the prediction of an outcome that stands.

    Args:
        before: whether it held, by the settlements that were known; None without any.
    """
    if before is not after:
        row = _Sums()
        for held, sign in ((before, -1), (after, 1)):
            row.held += sign * (held is True)
            row.refuted += sign * (held is False)
        _apply(connection, {_shared(outcome): row}, {})


def rebuild(connection: sqlite3.Connection) -> None:
    """Derive every sum again from the whole ledger. Readers notice by the generation."""
    connection.execute("delete from skill_sums")
    connection.execute("delete from skill_signature_sums")
    connection.execute("delete from graph_times")
    connection.execute("update skill_sums_state set generation = generation + 1, outcome = 0")
    for page in _standing_outcomes(connection):
        _add(connection, page)
    _mark_current(connection)


def _mark_current(connection: sqlite3.Connection) -> None:
    """Note that the sums hold every outcome of the ledger."""
    connection.execute(
        "update skill_sums_state set outcome = (select coalesce(max(id), 0) from outcomes)"
    )


def _standing_outcomes(connection: sqlite3.Connection) -> Iterator[list[tuple[str, Outcome]]]:
    """Every outcome (hash, outcome) that is not retracted, page by page."""
    last = 0
    while True:
        rows = connection.execute(
            """
            select
                id,
                hash,
                record,
                writer,
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
        yield [
            (outcome_hash, read_written(record, writer))
            for _, outcome_hash, record, writer, retracted in rows
            if not retracted
        ]
        last = rows[-1][0]


def _add(connection: sqlite3.Connection, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """Add outcomes (hash, outcome) to the tables."""
    rows, signatures = _sum(connection, outcomes, 1)
    times = [each for _, outcome in outcomes for each in graph_times(outcome, _shared(outcome))]
    _move_seeds(rows, *add_times(connection, times))
    _apply(connection, rows, signatures)


def _move_seeds(
    rows: dict[_Shared, _Sums], before: Iterable[GraphTime], after: Iterable[GraphTime]
) -> None:
    """Count the comparisons of seeds that graphs give now, and no longer those they gave."""
    for times, sign in ((before, -1), (after, 1)):
        for shared, log_speedup in seed_gains(times):
            rows.setdefault(shared, _Sums()).compare(log_speedup, sign)


def _apply(
    connection: sqlite3.Connection, rows: Mapping[_Shared, _Sums], signatures: _Signatures
) -> None:
    """Add to the tables what changed."""
    if not rows:
        return
    connection.execute("update skill_sums_state set revision = revision + 1")
    (revision,) = connection.execute("select revision from skill_sums_state").fetchone()
    connection.executemany(
        """
        insert into skill_sums (
            skill, bottleneck, operator, arch, torch, triton, recipe, origin,
            tried, passed, timed, improved, log_speedup_e9, log_speedup_squared_e9,
            recalled, recalled_log_speedup_e9, held, refuted, revision
        )
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
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
            held = held + excluded.held,
            refuted = refuted + excluded.refuted,
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


def _sum(
    connection: sqlite3.Connection, outcomes: Sequence[tuple[str, Outcome]], sign: int
) -> tuple[dict[_Shared, _Sums], _Signatures]:
    """What outcomes (hash, outcome) add to each row of both tables by themselves, times a sign."""
    held = predictions_held(connection, [each for each in outcomes if each[1].claims])
    rows: dict[_Shared, _Sums] = {}
    signatures: _Signatures = {}
    for outcome_hash, outcome in outcomes:
        if outcome.status is Status.INTERRUPTED:
            continue
        row = rows.setdefault(_shared(outcome), _Sums())
        passed = int(outcome.status is Status.PASSED)
        if outcome.move is Move.RECALL:
            row.recalled += sign * passed
            row.recalled_log_speedup_e9 += sign * _units(_gained_again(outcome), LOG_UNIT)
            continue
        row.tried += sign
        row.passed += sign * passed
        row.held += sign * (held.get(outcome_hash) is True)
        row.refuted += sign * (held.get(outcome_hash) is False)
        effect = step_log_speedup(outcome)
        if effect is None:
            continue
        row.compare(effect, sign)
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
