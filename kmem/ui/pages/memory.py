"""The health of the memory: how much it holds, and its outcomes."""

from kmem.memory.ledger.listing import DEEPEST, ORDERS, ListedOutcome, OutcomeFilter
from kmem.memory.store import Memory
from kmem.records import Status
from kmem.ui.addresses import skill_address
from kmem.ui.figures import Fact, Origin, date_cell, describe_factor, time_cell
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
_COUNTED = ("runs", "kernels", "graphs", "retractions")


def show_memory(memory: Memory, request: PageRequest) -> Page | Export:
    """What the memory holds, and its outcomes, newest first unless the address says otherwise."""
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
    facts = [Fact("Outcomes", f"{outcomes:,}", "every one measured", "measured")]
    facts += [Fact(table.capitalize(), f"{counts[table]:,}") for table in _COUNTED]
    return [*facts, Fact("Size", f"{size:,.1f} MiB")]


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
