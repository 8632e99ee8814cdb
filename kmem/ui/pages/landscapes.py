"""Recorded landscapes: the list of them, and one as a heat map over two of its knobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kmem.errors import LandscapeError
from kmem.learning.landscape import Landscape, LandscapeDirectory, Point
from kmem.memory.store import Memory
from kmem.run.report.first_screen import describe_knobs
from kmem.ui.addresses import landscape_address
from kmem.ui.figures import (
    Fact,
    Origin,
    date_cell,
    describe_factor,
    describe_ms,
    time_cell,
)
from kmem.ui.plots.heat_map import SHADES, Axis, axes_of, draw_heat_map
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.tables import Cell, Column, Row, view_table

COLUMNS = (
    Column("landscape", "Landscape", names_row=True),
    Column("family", "Family"),
    Column("settings", "Settings", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("best_ms", "Best", numeric=True),
    Column("speedup", "Vs eager", numeric=True),
    Column("figures", "Figures"),
    Column("device", "Device"),
    Column("precision", "Precision"),
    Column("recorded", "Recorded (UTC)"),
)
POINTS = (
    Column("knobs", "Setting", wraps=True),
    Column("status", "Status"),
    Column("time_ms", "Time", numeric=True),
    Column("figures", "Figures"),
    Column("ratio", "Of the best", numeric=True),
    Column("predicted_ms", "Predicted", numeric=True),
)


@dataclass
class Atlas:
    """The landscapes of a directory, read again when a file changes."""

    root: Path
    _known: dict[str, tuple[tuple[str, int, int], Landscape]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Every landscape there is, finished or not."""
        files = self.root.glob("*.jsonl*") if self.root.is_dir() else ()
        return sorted({path.name.split(".")[0] for path in files})

    def find(self, name: str) -> Landscape | None:
        """One of them; None if there is no such file. Raises LandscapeError if it is damaged."""
        if name not in self.names():  # so no name leads out of the directory
            return None
        stamp = self._stamp(name)
        if name not in self._known or self._known[name][0] != stamp:
            landscape = LandscapeDirectory(self.root).find(name)
            if landscape is None:
                return None
            self._known[name] = (stamp, landscape)
        return self._known[name][1]

    def _stamp(self, name: str) -> tuple[str, int, int]:
        for path in (self.root / f"{name}.jsonl", self.root / f"{name}.jsonl.xz"):
            if path.is_file():
                found = path.stat()
                return path.name, found.st_mtime_ns, found.st_size
        return "", 0, 0


def show_landscapes(atlas: Atlas) -> Callable[[Memory, PageRequest], Page | Export]:
    """The page with every landscape."""

    def show(memory: Memory, request: PageRequest) -> Page | Export:
        rows, faults = [], []
        for name in atlas.names():
            try:
                landscape = atlas.find(name)
            except LandscapeError as ex:
                faults.append(str(ex))
                continue
            if landscape is not None:
                rows.append(_row(name, landscape))
        table = view_table("landscapes", COLUMNS, rows, request, "landscape")
        if isinstance(table, Export):
            return table
        content = {"table": table, "root": str(atlas.root), "faults": faults}
        return Page("landscapes.html", "Landscapes", content)

    return show


def show_landscape(atlas: Atlas) -> Callable[[Memory, PageRequest], Page | Export]:
    """The page of a landscape. It raises NoSuchPage if there is none of this name."""

    def show(memory: Memory, request: PageRequest) -> Page | Export:
        landscape = atlas.find(request.names["landscape"])
        if landscape is None:
            raise NoSuchPage(f"No landscape {request.names['landscape']} in {atlas.root}")
        rows = [_point_row(point, landscape) for point in landscape.settings.values()]
        table = view_table("settings", POINTS, rows, request, "time_ms")
        if isinstance(table, Export):
            return table
        axes = axes_of(landscape)
        across, down = _choose(axes, request)
        content = {
            "landscape": landscape,
            "origin": _origin(landscape),
            "facts": _facts(landscape),
            "axes": axes,
            "across": across,
            "down": down,
            "shades": SHADES,
            "map": draw_heat_map(landscape, across, down) if across and down else None,
            "table": table,
        }
        return Page("landscape.html", landscape.name, content)

    return show


def _choose(axes: Sequence[Axis], request: PageRequest) -> tuple[Axis | None, Axis | None]:
    """The two axes that the address asks for, by default those with most values."""
    known = {axis.key: axis for axis in axes}
    across = known.get(request.query.get("x", ""), axes[0] if axes else None)
    others = [axis for axis in axes if axis is not across]
    down = known.get(request.query.get("y", ""))
    if down is None or down is across:
        down = others[0] if others else None
    return across, down


def _origin(landscape: Landscape) -> Origin:
    header = landscape.header
    return Origin(header.estimated, header.device.name, header.created_at)


def _best_ms(landscape: Landscape) -> float | None:
    return landscape.best.latency_ms if landscape.is_searchable else None


def _speedup(landscape: Landscape) -> float | None:
    best_ms = _best_ms(landscape)
    eager_ms = landscape.eager.latency_ms if landscape.eager is not None else None
    return eager_ms / best_ms if eager_ms and best_ms else None


def _row(name: str, landscape: Landscape) -> Row:
    header, origin = landscape.header, _origin(landscape)
    speedup = _speedup(landscape)
    points = landscape.settings.values()
    return {
        "landscape": Cell(name, href=landscape_address(name)),
        "family": Cell(header.family),
        "settings": Cell(len(points)),
        "passed": Cell(sum(point.timing is not None for point in points)),
        "best_ms": time_cell(_best_ms(landscape), origin),
        "speedup": Cell(speedup, describe_factor(speedup)),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)),
        "device": Cell(header.device.name),
        "precision": Cell(header.contract.precision.value),
        "recorded": date_cell(header.created_at),
    }


def _facts(landscape: Landscape) -> list[Fact]:
    kind, eager = _origin(landscape).kind, landscape.eager
    points = landscape.settings.values()
    passed = sum(point.timing is not None for point in points)
    facts = [Fact("Settings", f"{len(points):,}", f"{passed:,} passed")]
    if landscape.is_searchable:
        facts.append(Fact("Best", describe_ms(_best_ms(landscape)), "", kind))
    if eager is not None and eager.latency_ms:
        facts.append(Fact("Eager", describe_ms(eager.latency_ms), "the module as it is", kind))
    if (speedup := _speedup(landscape)) is not None:
        facts.append(Fact("Best over eager", describe_factor(speedup), "", kind))
    return facts


def _point_row(point: Point, landscape: Landscape) -> Row:
    best_ms, time_ms = _best_ms(landscape), point.latency_ms
    ratio = time_ms / best_ms if time_ms and best_ms else None
    origin = _origin(landscape)
    several = len(landscape.header.sites) > 1
    knobs = "; ".join(
        f"{f'{choice.recipe} at {choice.site}: ' if several else ''}{describe_knobs(choice)}"
        for choice in point.choices
    )
    log = point.log.strip().splitlines()
    return {
        "knobs": Cell(knobs, kind="code"),
        "status": Cell(point.status.value, kind="status", hint=log[-1] if log else ""),
        "time_ms": time_cell(time_ms, origin),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)) if time_ms else Cell(None),
        "ratio": Cell(ratio, describe_factor(ratio)),
        "predicted_ms": Cell(point.estimated_ms, describe_ms(point.estimated_ms)),
    }
