"""How a run stands: a live panel, or a line for each event, with the time since the start."""

import math
import time
from collections.abc import Callable

import click
from rich.panel import Panel
from rich.text import Text

from kmem.cli.display.live import LiveDisplay
from kmem.records import Run
from kmem.run.progress import Event


class RunDisplay(LiveDisplay[Event]):
    """Shows the stage, the best time, the distance to the bound and what is left of the budget."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._recent = [
            f"{'trace':11} tracing {run.problem.name} and finding the bound for {run.target}"
        ]
        self._event: Event | None = None
        self._event_at = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Callable[[Event], None]:
        show = super().__enter__()
        if not self.is_live:
            click.echo(self._recent[0], err=True)
        return show

    def print_line(self, event: Event) -> None:
        seconds = time.monotonic() - self._started
        standing = _standing(event, event.seconds_left)
        click.echo(f"{event.stage:11} {event.text}  [{standing}, at {seconds:.1f} s]", err=True)

    def update(self, event: Event) -> None:
        self._recent = [*self._recent[-5:], f"{event.stage:11} {event.text}"]
        self._event, self._event_at = event, time.monotonic()

    def render(self) -> Panel:
        """The panel, in which the time left runs also while a stage works."""
        lines = list(self._recent)
        if self._event is not None:
            left = max(0.0, self._event.seconds_left - (time.monotonic() - self._event_at))
            lines += ["", _standing(self._event, left)]
        # Text, not markup: a message may hold square brackets.
        return Panel(
            Text("\n".join(lines)),
            title=Text(f"{self._run.problem.name} on {self._run.target}"),
            title_align="left",
        )


def _standing(event: Event, seconds_left: float) -> str:
    unit = " ms est." if event.estimated else " ms"
    parts = [
        f"best {event.best_ms:.4g}{unit}" if event.best_ms is not None else "nothing passed yet"
    ]
    if event.baseline_ms is not None:
        parts.append(f"baseline {event.baseline_ms:.4g}{unit}")
    if event.speed_of_light is not None:
        parts.append(f"{event.speed_of_light:.0%} of bound")
    parts.append(f"{event.measurements} measured")
    if seconds_left < math.inf:  # a replay has no clock
        parts.append(f"{seconds_left:.0f} s left")
    return ", ".join(parts)
