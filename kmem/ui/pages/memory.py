"""The health of the memory: how much it holds, and its outcomes."""

import math

from kmem.memory.ledger.listing import DEEPEST, ORDERS, ListedOutcome, OutcomeFilter
from kmem.memory.ledger.sum_columns import OriginSums
from kmem.memory.ledger.sums import LOG_UNIT
from kmem.memory.store import Memory
from kmem.records import Status
from kmem.ui.addresses import skill_address
from kmem.ui.figures import Fact, Origin, date_cell, describe_factor, describe_share, time_cell
from kmem.ui.requests import Export, Page, PageRequest
from kmem.ui.tables import (
    ROWS_ON_A_PAGE,
    Cell,
    Column,
    Row,
    export_rows,
    present,
    read_order,
    read_page,
    view_table,
)

COLUMNS = (
    Column("problem", "Problem", sortable=False),
    Column("skill", "Skill"),
    Column("move", "Move", sortable=False),
    Column("status", "Status"),
    Column("latency_ms", "Time", numeric=True),
    Column("figures", "Figures", sortable=False),
    Column("parent_ms", "Parent took", numeric=True, sortable=False),
    Column("ratio", "Vs baseline", numeric=True, sortable=False),
    Column("device", "Device", sortable=False),
    Column("precision", "Precision", sortable=False),
    Column("origin", "Origin", sortable=False),
    Column("recorded", "Measured (UTC)"),
    Column("hash", "Hash", sortable=False, shown=False),
)
ORIGINS = (
    Column("origin", "Measured by"),
    Column("name", "Called"),
    Column("arch", "On"),
    Column("tried", "Outcomes", numeric=True),
    Column("share", "Of all", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("speedup", "Speedup of a step", numeric=True),
    Column("trust", "Trust", numeric=True),
    Column("licence", "Licence"),
)
_COUNTED = ("runs", "kernels", "graphs", "retractions")


def show_memory(memory: Memory, request: PageRequest) -> Page | Export:
    """What the memory holds, and its outcomes, newest first unless the address says otherwise."""
    origins = view_table(
        "origins", ORIGINS, _origin_rows(memory), request.part("origins"), "-tried"
    )
    if isinstance(origins, Export):
        return origins
    status = request.query.get("status", "")
    known = status if status in {each.value for each in Status} else ""
    chosen = OutcomeFilter(request.query.get("q", "").strip(), known)
    order = read_order(request, COLUMNS, "-recorded")
    if order.key not in ORDERS:
        order = read_order(PageRequest(request.path), COLUMNS, "-recorded")
    if request.ask("format"):
        found = memory.listing.page(chosen, order.key, 0, DEEPEST, descending=order.descending)
        return export_rows("outcomes", COLUMNS, list(map(_row, found)), request.ask("format"))
    total = memory.listing.count(chosen)
    first = min(read_page(request) * ROWS_ON_A_PAGE, DEEPEST - ROWS_ON_A_PAGE)
    if first >= total:
        first = 0
    found = memory.listing.page(
        chosen, order.key, first, ROWS_ON_A_PAGE, descending=order.descending
    )
    listed = min(total, DEEPEST)
    table = present("outcomes", COLUMNS, list(map(_row, found)), request, order, first, listed)
    content = {
        "table": table,
        "origins": origins,
        "facts": _facts(memory),
        "total": total,
        "deepest": DEEPEST,
        "statuses": [each.value for each in Status],
        "status": status,
    }
    return Page("memory.html", "Memory", content)


def _facts(memory: Memory) -> list[Fact]:
    counts = {
        table: memory.storage.read(f"select count(*) as n from {table}")[0]["n"]
        for table in _COUNTED
    }
    outcomes = memory.listing.count(OutcomeFilter())
    size = memory.path.stat().st_size / 2**20 if memory.path.is_file() else 0.0
    facts = [Fact("Outcomes", f"{outcomes:,}", "in the ledger", "measured")]
    facts += [Fact(table.capitalize(), f"{counts[table]:,}") for table in _COUNTED]
    return [*facts, Fact("Size", f"{size:,.1f} MiB")]


def _origin_rows(memory: Memory) -> list[Row]:
    """Who measured the outcomes that count, on what, and how far they are trusted."""
    found = memory.track_records.by_origin()
    total = sum(row.tried for row in found)
    trust, names = memory.contributors.trust(), memory.contributors.names()
    licences, own = memory.contributors.licences(), memory.contributors.own_name
    return [
        {
            "origin": Cell(row.origin, kind="code"),
            "name": Cell("this memory" if row.origin == own else names.get(row.origin, "")),
            "arch": Cell(row.arch),
            "tried": Cell(row.tried, f"{row.tried:,}"),
            "share": Cell(row.tried / total, describe_share(row.tried / total)),
            "passed": Cell(row.passed / row.tried, describe_share(row.passed / row.tried)),
            "speedup": _step(row),
            "trust": Cell(trust.weight(row.origin), describe_share(trust.weight(row.origin))),
            "licence": Cell(licences.get(row.origin, "")),
        }
        for row in found
    ]


def _step(row: OriginSums) -> Cell:
    if not row.timed:
        return Cell(None)
    speedup = math.exp(row.log_speedup_e9 * LOG_UNIT / row.timed)
    return Cell(speedup, describe_factor(speedup), hint=f"{row.timed:,} were compared")


def _row(listed: ListedOutcome) -> Row:
    outcome = listed.outcome
    origin = Origin(False, outcome.device, outcome.created_at)
    status = "retracted" if listed.retracted else outcome.status.value
    timed = outcome.latency_ms is not None
    return {
        "problem": Cell(outcome.problem),
        "skill": Cell(outcome.skill, href=skill_address(outcome.skill)),
        "move": Cell(outcome.move.value),
        "status": Cell(status, kind="status"),
        "latency_ms": time_cell(outcome.latency_ms, origin),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)) if timed else Cell(None),
        "parent_ms": time_cell(outcome.parent_ms, origin),
        "ratio": Cell(outcome.ratio, describe_factor(outcome.ratio), hint=outcome.baseline or ""),
        "device": Cell(outcome.device),
        "precision": Cell(outcome.contract.precision.value),
        "origin": Cell(outcome.origin),
        "recorded": date_cell(outcome.created_at),
        "hash": Cell(listed.hash),
    }
