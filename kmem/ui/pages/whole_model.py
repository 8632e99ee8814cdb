"""The page of a whole model: where its time goes, piece by piece, and how each piece stands."""

from pathlib import Path

from kmem.errors import KmemError
from kmem.memory.store import Memory
from kmem.records import Run
from kmem.ui.addresses import model_address, run_address
from kmem.ui.figures import Fact, Origin, describe_date, describe_factor, describe_ms, time_cell
from kmem.ui.plots.treemap import draw_pieces
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.tables import Cell, Column, Row, view_table
from kmem.whole.state import ModelState, PieceState, read_state

COLUMNS = (
    Column("piece", "Piece", names_row=True),
    Column("module", "In", wraps=True),
    Column("operators", "Operators", shown=False),
    Column("calls", "Calls", numeric=True),
    Column("eager_ms", "Eager", numeric=True),
    Column("least_ms", "Attainable", numeric=True),
    Column("kernel_ms", "Kernel", numeric=True),
    Column("saved_ms", "Saves", numeric=True),
    Column("status", "State"),
    Column("why", "Why", wraps=True),
    Column("run", "Run", shown=False),
)


def model_of(run: Run) -> str:
    """The address of the model that a run's problem is a piece of; empty if it is none."""
    return model_address(run.id) if _find(run) is not None else ""


def show_model(memory: Memory, request: PageRequest) -> Page | Export:
    """The model that the problem of a run is a piece of, as the run on it stands.

    Raises NoSuchPage if it is a problem of its own.
    """
    run = memory.runs.get(request.names["run"])
    state = _find(run)
    if state is None:
        raise NoSuchPage(f"The run {run.id} is not of a piece of a model")
    origin = Origin(state.estimated, state.device, run.created_at)
    known = {line.id for line in memory.run_entries.lines()}
    rows = [_row(piece, origin, known) for piece in state.pieces]
    table = view_table("pieces", COLUMNS, rows, request, "-eager_ms")
    if isinstance(table, Export):
        return table
    content = {
        "name": state.name,
        "model": state.settings.model,
        "began": describe_date(run.created_at),
        "state": state,
        "origin": origin,
        "facts": _facts(state, origin),
        "treemap": draw_pieces(state),
        "table": table,
    }
    return Page("model.html", state.name, content)


def _find(run: Run) -> ModelState | None:
    """The state of the run on a model that a run was begun by; runs of pieces lie in its runs/."""
    place = Path(run.out_dir).parent
    if place.name != "runs":
        return None
    try:
        state = read_state(place.parent)
    except (KmemError, OSError):
        return None
    return state if state is not None and any(p.run == run.id for p in state.pieces) else None


def _facts(state: ModelState, origin: Origin) -> list[Fact]:
    after_ms = state.total_ms - sum(piece.saved_ms for piece in state.pieces)
    kept = len(state.kept)
    return [
        Fact("One eager forward", describe_ms(state.total_ms), "by its operators", origin.kind),
        Fact("With kernels", describe_ms(after_ms), f"{kept} of {len(state.parts)} pieces kept"),
        Fact("Faster by", describe_factor(state.total_ms / after_ms) if after_ms > 0 else "–"),
        Fact("Spent", f"{state.seconds / 60:.1f} min", f"of {state.settings.minutes:g}"),
    ]


def _row(piece: PieceState, origin: Origin, known: set[str]) -> Row:
    href = run_address(piece.run) if piece.run in known and piece.run else ""
    return {
        "piece": Cell(piece.name, href=href),
        "module": Cell(piece.module, piece.module or "the model itself", kind="code"),
        "operators": Cell(", ".join(piece.operators)),
        "calls": Cell(piece.calls),
        "eager_ms": time_cell(piece.eager_ms * piece.calls, origin),
        "least_ms": time_cell(piece.least_ms * piece.calls, origin),
        "kernel_ms": time_cell(
            None if piece.kernel_ms is None else piece.kernel_ms * piece.calls, origin
        ),
        "saved_ms": time_cell(piece.saved_ms or None, origin),
        "status": Cell(piece.status.value, kind="status"),
        "why": Cell(piece.reason),
        "run": Cell(piece.run, href=href, kind="code"),
    }
