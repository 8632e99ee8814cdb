"""Problems over all their runs: the list of them, and one with its best times as runs came."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.memory.runs.entries import RunLine
from kmem.memory.store import Memory
from kmem.ui.addresses import compare_address, problem_address
from kmem.ui.figures import (
    Fact,
    Origin,
    date_cell,
    describe_date,
    describe_factor,
    describe_ms,
    describe_share,
    time_cell,
)
from kmem.ui.pages.module_map import ModuleMap, view_module
from kmem.ui.pages.runs import COLUMNS as RUN_COLUMNS
from kmem.ui.pages.runs import run_row
from kmem.ui.plots.history import draw_history
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.source import show_python
from kmem.ui.tables import Cell, Column, Row, view_table

COLUMNS = (
    Column("problem", "Problem", names_row=True),
    Column("runs", "Runs", numeric=True),
    Column("best_ms", "Best", numeric=True),
    Column("figures", "Figures"),
    Column("device", "Device"),
    Column("speedup", "Best speedup", numeric=True),
    Column("speed_of_light", "Of bound", numeric=True),
    Column("latest", "Latest run (UTC)"),
)


#: Directories of runs in which a problem's breakdown is looked for, newest first.
_LOOKED_AT = 10


def show_problems(memory: Memory, request: PageRequest) -> Page | Export:
    """Every problem that was ever run, the latest first."""
    by_problem: dict[str, list[RunLine]] = {}
    for line in memory.run_entries.lines():
        by_problem.setdefault(line.problem, []).append(line)
    rows = [_row(name, lines) for name, lines in by_problem.items()]
    table = view_table("problems", COLUMNS, rows, request, "-latest")
    if isinstance(table, Export):
        return table
    return Page("problems.html", "Problems", {"table": table, "total": len(rows)})


def _row(name: str, lines: Sequence[RunLine]) -> Row:
    best = best_line(lines)
    time_ms = _time_ms(best) if best is not None else None
    speedups = [line.speedup for line in lines if line.speedup is not None]
    shares = [line.speed_of_light for line in lines if line.speed_of_light is not None]
    origin = _origin(best) if best is not None else None
    return {
        "problem": Cell(name, href=problem_address(name)),
        "runs": Cell(len(lines)),
        "best_ms": time_cell(time_ms, origin),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)) if origin else Cell(None),
        "device": Cell(best.target if best is not None else None),
        "speedup": Cell(max(speedups, default=None), describe_factor(max(speedups, default=None))),
        "speed_of_light": Cell(
            max(shares, default=None), describe_share(max(shares, default=None))
        ),
        "latest": date_cell(lines[0].created_at),
    }


def best_line(lines: Sequence[RunLine]) -> RunLine | None:
    """The run with the best time; measured ones come before estimated ones."""
    timed = [line for line in lines if _time_ms(line) is not None]
    return min(timed, key=lambda line: (bool(line.estimated), _time_ms(line)), default=None)


def _time_ms(line: RunLine) -> float | None:
    return line.latency_ms if line.latency_ms is not None else line.best_ms


def _origin(line: RunLine) -> Origin:
    return Origin(bool(line.estimated), line.target, line.created_at)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two runs worth a look side by side."""

    text: str
    href: str


def show_problem(memory: Memory, request: PageRequest) -> Page | Export:
    """A problem by its name, over all its runs.

    Raises NoSuchPage if none was ever run.
    """
    name = request.names["problem"]
    lines = memory.run_entries.lines(problem=name)
    if not lines:
        raise NoSuchPage(f"No problem {name} was ever run")
    table = view_table(
        "runs", RUN_COLUMNS, [run_row(line) for line in lines], request, "-created_at"
    )
    if isinstance(table, Export):
        return table
    module = _module(memory, lines, request)
    if isinstance(module, Export):
        return module
    problem = memory.runs.get(lines[0].id).problem
    timed = [(line, time_ms) for line in reversed(lines) if (time_ms := _time_ms(line)) is not None]
    content = {
        "name": name,
        "table": table,
        "facts": _facts(lines),
        "plots": draw_history(
            [(_origin(line), line.id, time_ms, line.speedup) for line, time_ms in timed]
        ),
        "pair": _pair(lines),
        "module": module,
        "source": show_python(problem.source),
        "path": problem.path,
    }
    return Page("problem.html", name, content)


def _module(
    memory: Memory, lines: Sequence[RunLine], request: PageRequest
) -> ModuleMap | Export | None:
    """Where the module's time goes, as the latest run that is still there found it."""
    for line in lines[:_LOOKED_AT]:
        if module := view_module(memory.runs.get(line.id), request):
            return module
    return None


def _pair(lines: Sequence[RunLine]) -> _Pair | None:
    """The best run and the latest other one of its device."""
    best = best_line(lines)
    if best is None:
        return None
    others = [line for line in lines if line.id != best.id and line.target == best.target]
    if not others:
        return None
    text = f"the best and the latest other run on {best.target}"
    return _Pair(text, compare_address(best.id, others[0].id))


def _facts(lines: Sequence[RunLine]) -> list[Fact]:
    facts = [Fact("Runs", f"{len(lines):,}", f"latest {describe_date(lines[0].created_at)}")]
    for target in dict.fromkeys(line.target for line in lines):
        best = best_line([line for line in lines if line.target == target])
        if best is not None:
            kind = _origin(best).kind
            facts.append(Fact(f"Best, {target}", describe_ms(_time_ms(best)), best.id, kind))
    speedups = [line for line in lines if line.speedup is not None]
    if speedups:
        fastest = max(speedups, key=lambda line: line.speedup or 0.0)
        note = f"over the best baseline, {fastest.target}"
        facts.append(
            Fact("Best speedup", describe_factor(fastest.speedup), note, _origin(fastest).kind)
        )
    return facts
