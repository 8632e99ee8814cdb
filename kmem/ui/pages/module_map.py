"""Where the module's own time goes: a treemap of its parts, and the table of them."""

from dataclasses import dataclass
from pathlib import Path

from kmem.problem.breakdown import Breakdown, TimePart
from kmem.records import Baseline, Run
from kmem.run.state.breakdown import read_breakdown
from kmem.ui.figures import Origin, describe_factor, describe_ms, describe_share, time_cell
from kmem.ui.plots.treemap import Treemap, draw_breakdown
from kmem.ui.requests import Export, PageRequest
from kmem.ui.tables import Cell, Column, Row, TableView, view_table

COLUMNS = (
    Column("module", "In", wraps=True),
    Column("operator", "Operator"),
    Column("calls", "Calls", numeric=True),
    Column("eager_ms", "Eager", numeric=True),
    Column("share", "Of the whole", numeric=True),
    Column("least_ms", "Attainable", numeric=True),
    Column("factor", "Faster by", numeric=True),
    Column("figures", "Figures"),
)


@dataclass(frozen=True, slots=True)
class ModuleMap:
    """The treemap with its table, and the sentence between them."""

    treemap: Treemap
    table: TableView
    origin: Origin
    text: str
    measured: str  # what eager was measured to take, if it was


def view_module(
    run: Run, request: PageRequest, eager: Baseline | None = None
) -> ModuleMap | Export | None:
    """What a run found of its module's time; the export if the address asks for the table.

    Returns: None for a run that found nothing, for its module could not be traced, say.
    """
    found = read_breakdown(Path(run.out_dir))
    if found is None:
        return None
    origin = Origin(True, found.device, run.created_at)
    rows = [_row(part, found, origin) for part in (*found.parts, *filter(None, [found.rest]))]
    table = view_table("parts", COLUMNS, rows, request.part("parts"))
    if isinstance(table, Export):
        return table
    text = (
        f"Eager spends {describe_ms(found.eager_ms)} on {found.nodes:,} operators; one perfect "
        f"kernel would spend {describe_ms(found.bound_ms)}"
    )
    measured = ""
    if eager is not None and eager.timing is not None and not eager.estimated:
        said = Origin(False, run.target, run.created_at)
        measured = f"Eager as a whole takes {describe_ms(eager.timing.latency_ms)}, {said}"
    return ModuleMap(draw_breakdown(found), table, origin, text, measured)


def _row(part: TimePart, whole: Breakdown, origin: Origin) -> Row:
    share = part.eager_ms / whole.eager_ms
    factor = part.eager_ms / part.least_ms if part.least_ms > 0 else None
    return {
        "module": Cell(part.module, part.module or "the module itself", kind="code"),
        "operator": Cell(part.operator),
        "calls": Cell(part.calls),
        "eager_ms": time_cell(part.eager_ms, origin),
        "share": Cell(share, f"{share:.1%}" if share < 0.1 else describe_share(share)),
        "least_ms": time_cell(part.least_ms, origin),
        "factor": Cell(factor, describe_factor(factor)),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)),
    }
