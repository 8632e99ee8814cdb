"""How a bench stands: a live panel, or a line for every new stage of a problem."""

import click
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from kmem.bench.results import Manifest
from kmem.bench.schedule import BenchEvent
from kmem.bench.scores import compute_scores
from kmem.cli.display.live import LiveDisplay


class BenchDisplay(LiveDisplay[BenchEvent]):
    """Shows what runs and its stage, what ended last, how many are done, and the mean so far."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self._title = f"bench on {manifest.device}"
        self._running: dict[str, str] = {}
        self._ended: list[str] = []
        self._panel = self._draw("")

    def print_line(self, event: BenchEvent) -> None:
        name = event.problem.name
        if event.row is None and self._running.get(name) == event.stage:
            return
        self._running[name] = event.stage
        click.echo(f"{name:32} {_outcome(event)}  [{_standing(event)}]", err=True)

    def update(self, event: BenchEvent) -> None:
        name = event.problem.name
        self._running[name] = f"{name:32} {_outcome(event)}"
        if event.row is not None:
            self._ended = [*self._ended[-7:], self._running.pop(name)]
        # drawn here, not in `render`, which another thread calls while these lists change
        self._panel = self._draw(_standing(event))

    def render(self) -> Panel:
        return self._panel

    def _draw(self, standing: str) -> Panel:
        # Text, not markup: brackets of the user's file names and error messages are no styles.
        lines = [
            *(Text(line, style="dim") for line in self._ended),
            *map(Text, self._running.values()),
            Text(""),
            Text(standing),
        ]
        return Panel(Group(*lines), title=self._title, title_align="left")


def _outcome(event: BenchEvent) -> str:
    row = event.row
    if row is None:
        return f"{event.stage:11} {event.text}".rstrip()
    unit = "ms est." if row.result and row.result["estimated"] else "ms"
    time_ms = f" {row.time_ms:.4g} {unit}" if row.time_ms is not None else ""
    speedup = f", {row.speedup:.2f}x {row.best_baseline}" if row.speedup else ""
    reason = f": {row.reason}" if row.failed else ""
    return f"{row.status.value}{time_ms}{speedup}{reason} in {row.seconds:.0f} s"


def _standing(event: BenchEvent) -> str:
    parts = [f"{len(event.rows)}/{event.total} done"]
    if scores := compute_scores(event.rows):
        parts.append(f"geometric mean {scores.geometric_mean:.3f}")
        if scores.failed:
            parts.append(f"{scores.failed} failed")
    return ", ".join(parts)
