"""The list of runs."""

from pathlib import Path

from kmem.memory.runs.entries import RunLine
from kmem.memory.store import Memory
from kmem.run.directory import seen_state
from kmem.ui.addresses import problem_address, run_address
from kmem.ui.figures import Origin, date_cell, describe_factor, describe_share, time_cell
from kmem.ui.live import listen_to_all
from kmem.ui.requests import Export, Page, PageRequest
from kmem.ui.tables import Cell, Column, Row, view_table

COLUMNS = (
    Column("run", "Run", names_row=True),
    Column("problem", "Problem"),
    Column("state", "State"),
    Column("target", "Device"),
    Column("best_ms", "Best", numeric=True),
    Column("speedup", "Speedup", numeric=True),
    Column("speed_of_light", "Of bound", numeric=True),
    Column("figures", "Figures"),
    Column("attempts", "Tried", numeric=True),
    Column("created_at", "Begun (UTC)"),
    Column("reason", "Reason", shown=False),
)
STATES = ("running", "finished", "interrupted", "failed", "killed")


def show_runs(memory: Memory, request: PageRequest) -> Page | Export:
    """Every run, newest first unless the address says otherwise."""
    live = listen_to_all(memory)  # before anything is read: what changes meanwhile is told
    rows = [run_row(line) for line in memory.run_entries.lines()]
    state = request.query.get("state", "")
    chosen = [row for row in rows if state in ("", row["state"].value)]
    table = view_table("runs", COLUMNS, chosen, request, "-created_at")
    if isinstance(table, Export):
        return table
    counts = {name: sum(row["state"].value == name for row in rows) for name in STATES}
    return Page(
        "runs.html",
        "Runs",
        {"table": table, "state": state, "counts": counts, "total": len(rows), "live": live},
    )


def run_row(line: RunLine) -> Row:
    """A run as a row of COLUMNS."""
    time_ms = line.latency_ms if line.latency_ms is not None else line.best_ms
    known = line.estimated if time_ms is not None else None
    origin = Origin(known, line.target, line.created_at) if known is not None else None
    state = seen_state(line.state, Path(line.out_dir))
    figures = Cell(origin.kind, kind=origin.kind, hint=str(origin)) if origin else Cell(None)
    return {
        "run": Cell(line.id, href=run_address(line.id), kind="code"),
        "problem": Cell(line.problem, href=problem_address(line.problem)),
        "state": Cell(state, kind="status", hint=line.failure),
        "target": Cell(line.target),
        "best_ms": time_cell(time_ms, origin),
        "speedup": Cell(line.speedup, describe_factor(line.speedup)),
        "speed_of_light": Cell(line.speed_of_light, describe_share(line.speed_of_light)),
        "figures": figures,
        "attempts": Cell(line.attempts),
        "created_at": date_cell(line.created_at),
        "reason": Cell(line.failure or line.reason),
    }
