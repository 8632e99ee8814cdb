"""What a skill is worth where it wrote a first kernel: the best with it over the best without it.

A fix is compared with the parent that it was applied to (sums.py). A seed has no parent: it is
compared at its own graph with the fastest kernel that does without the skill, or with the best
baseline, which does too. Both are the best that one contributor measured on one device, for one
contract, with one torch and Triton: nobody's clock is held against another's, and nothing that
somebody else imported moves what was measured here. One graph is one comparison, however many
settings of the skill were tried on it.

Table `graph_times` has the least time for each graph of every set of skills that made kernels for
it. The comparisons follow from its rows as a set, so that the order of outcomes does not matter.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kmem.memory.ledger.written import read_written
from kmem.records import REDACTED, Move, Outcome, Status, content_hash

#: Where a seed's comparison is booked: the names of its row in `skill_sums`.
Shared: TypeAlias = "tuple[str, ...]"


class GraphTime(NamedTuple):
    """The least time that a set of skills was seen to take at one graph.

    `shared` is JSON of the names that a seed is booked under; empty for what is no seed. `uses` is
    JSON of the skills that the kernel was made with; a baseline was made with none.
    """

    setting: str
    uses: str
    shared: str
    best_ms: float


#: The least time by (setting, uses, shared).
_Times: TypeAlias = "dict[tuple[str, str, str], float]"


def graph_times(outcome: Outcome, shared: Shared) -> Iterator[GraphTime]:
    """What an outcome says of its graph: its own time, and that of the best baseline."""
    if outcome.status is not Status.PASSED or not outcome.latency_ms:
        return
    setting = _setting(outcome)
    uses = json.dumps(sorted({outcome.skill, *(choice.recipe for choice in outcome.choices)}))
    booked = json.dumps(shared) if outcome.move is Move.SEED else ""
    yield GraphTime(setting, uses, booked, outcome.latency_ms)
    if outcome.ratio:
        yield GraphTime(setting, "[]", "", outcome.ratio * outcome.latency_ms)


def seed_gains(times: Iterable[GraphTime]) -> Iterator[tuple[Shared, float]]:
    """For each skill that wrote a first kernel, ln(best without it / best with it) at each graph.

    None for a graph where nothing was timed without the skill.
    """
    settings: dict[str, list[GraphTime]] = {}
    for each in times:
        settings.setdefault(each.setting, []).append(each)
    for rows in settings.values():
        using = [(frozenset(json.loads(row.uses)), row.best_ms) for row in rows]
        seeds: dict[str, list[tuple[float, str]]] = {}
        for row in rows:
            if row.shared:
                seeds.setdefault(json.loads(row.shared)[0], []).append((row.best_ms, row.shared))
        for skill, found in seeds.items():
            without_ms = min((ms for uses, ms in using if skill not in uses), default=None)
            if without_ms is not None:
                with_ms = min(ms for uses, ms in using if skill in uses)
                yield tuple(json.loads(min(found)[1])), math.log(without_ms / with_ms)


def add_times(
    connection: sqlite3.Connection, found: Sequence[GraphTime]
) -> tuple[list[GraphTime], list[GraphTime]]:
    """Keep what outcomes say of their graphs.

    Returns:
        All that was known of these graphs before, and all that is known now.
    """
    before = _known(connection, {each.setting for each in found})
    after = _least([*before, *found])
    known = _least(before)
    changed = [(*key, best_ms) for key, best_ms in after.items() if known.get(key) != best_ms]
    connection.executemany("insert or replace into graph_times values (?, ?, ?, ?)", changed)
    return before, _rows(after)


def forget_times(
    connection: sqlite3.Connection, outcome: Outcome, standing: Iterable[GraphTime]
) -> tuple[list[GraphTime], list[GraphTime]]:
    """Derive a graph's times anew after one of its outcomes was retracted.

    Args:
        standing: what the outcomes that are left say; those of other settings are passed over.

    Returns:
        All that was known of the graph before, and all that is known now.
    """
    setting = _setting(outcome)
    before = _known(connection, {setting})
    after = _rows(_least(each for each in standing if each.setting == setting))
    connection.execute("delete from graph_times where setting = ?", [setting])
    connection.executemany("insert into graph_times values (?, ?, ?, ?)", after)
    return before, after


def outcomes_beside(connection: sqlite3.Connection, outcome: Outcome) -> list[Outcome]:
    """The outcomes of a graph that stand, of one architecture and contract."""
    rows = connection.execute(
        """
        select record, writer from outcomes
        where graph_hash = ? and arch = ? and precision = ? and purity = ? and status = 'passed'
          and not exists (select 1 from retractions where outcome_hash = outcomes.hash)
        """,
        [
            *(outcome.graph_hash, outcome.arch),
            *(outcome.contract.precision.value, outcome.contract.purity.value),
        ],
    )
    return [read_written(record, writer) for record, writer in rows]


def _setting(outcome: Outcome) -> str:
    """A hash over what kernels must share to be compared.

    Of a redacted outcome the graph is not known: it is compared with its own baseline alone.
    """
    graph = outcome.graph_hash
    if graph == REDACTED:
        graph = outcome.source_hash
    contract, versions = outcome.contract, outcome.versions
    return content_hash(
        *(graph, outcome.arch, outcome.device, contract.precision.value, contract.purity.value),
        *(outcome.origin, versions.get("torch", ""), versions.get("triton", "")),
    )


def _known(connection: sqlite3.Connection, settings: Iterable[str]) -> list[GraphTime]:
    rows = connection.execute(
        """
        select t.setting, t.uses, t.shared, t.best_ms
        from json_each(?) given
        join graph_times t on t.setting = given.value
        """,
        [json.dumps(sorted(settings))],
    )
    return [GraphTime(*row) for row in rows]


def _least(times: Iterable[GraphTime]) -> _Times:
    found: _Times = {}
    for each in times:
        key = each.setting, each.uses, each.shared
        found[key] = min(each.best_ms, found.get(key, math.inf))
    return found


def _rows(times: Mapping[tuple[str, str, str], float]) -> list[GraphTime]:
    return [GraphTime(*key, best_ms) for key, best_ms in times.items()]
