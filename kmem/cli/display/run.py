"""How a run stands: a live panel, or a line for each event, with the time since the start."""

import math
import time
from collections.abc import Callable

import click
from rich.panel import Panel
from rich.text import Text

from kmem.cli.display.live import LiveDisplay
from kmem.records import Run
from kmem.run.state.progress import Event


class RunDisplay(LiveDisplay[Event]):
    """Shows the stage, the best time, the distance to the bound and what is left of the budget."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._recent = [
            f"{'trace':11} tracing {run.problem.name} and finding the bound for {run.target}"
        ]
        self._event: Event | None = None
        self._started = time.monotonic()
        self._event_at = self._started
        self._said = ""

    @property
    def standing(self) -> str:
        """The best time and the baseline as they were last announced."""
        return _times(self._event) if self._event is not None else "nothing passed yet"

    def __enter__(self) -> Callable[[Event], None]:
        show = super().__enter__()
        if not self.is_live:
            click.echo(self._recent[0], err=True)
        return show

    def print_line(self, event: Event) -> None:
        self._event = event
        seconds = time.monotonic() - self._started
        # said once, and again when it has changed: a log would else repeat it in every line
        times, said = _times(event), self._said
        self._said = times
        standing = _standing(event, event.seconds_left) if times != said else ""
        parts = [*([standing] if standing else []), f"at {seconds:.1f} s"]
        click.echo(f"{event.stage:11} {event.text}  [{', '.join(parts)}]", err=True)

    def print_still(self, seconds: float) -> None:
        stage, text = self._recent[0].split(maxsplit=1)
        left: list[str] = []
        if self._event is not None:
            stage, text = self._event.stage, self._event.text
            left = _left(self._event.seconds_left - seconds)
        parts = ", ".join([*left, f"at {time.monotonic() - self._started:.1f} s"])
        click.echo(f"{stage:11} still, for {seconds:.0f} s: {text}  [{parts}]", err=True)

    def update(self, event: Event) -> None:
        self._recent = [*self._recent[-5:], f"{event.stage:11} {event.text}"]
        self._event, self._event_at = event, time.monotonic()

    def render(self) -> Panel:
        """The panel, in which times run on while a stage works: its own, and what is left."""
        seconds = time.monotonic() - self._event_at
        lines = [*self._recent[:-1], f"{self._recent[-1]}  [for {seconds:.0f} s]"]
        if self._event is not None:
            lines += ["", _standing(self._event, self._event.seconds_left - seconds)]
        # Text, not markup: a message may hold square brackets.
        return Panel(
            Text("\n".join(lines)),
            title=Text(f"{self._run.problem.name} on {self._run.target}"),
            title_align="left",
        )


def _times(event: Event) -> str:
    """The best time so far against the best baseline."""
    unit = " ms est." if event.estimated else " ms"
    best = f"best {event.best_ms:.4g}{unit}" if event.best_ms is not None else "nothing passed yet"
    if event.baseline_ms is None:
        return best
    return f"{best}, baseline {event.baseline_ms:.4g}{unit}"


def _standing(event: Event, seconds_left: float) -> str:
    parts = [_times(event)]
    if event.speed_of_light is not None:
        parts.append(f"{event.speed_of_light:.0%} of bound")
    parts.append(f"{event.measurements} measured")
    return ", ".join([*parts, *_left(seconds_left)])


def _left(seconds_left: float) -> list[str]:
    if seconds_left <= 0:
        over = f"over its minutes by {-seconds_left:.0f} s"
        return [f"{over}, for what is begun and for the final verification"]
    return [f"{seconds_left:.0f} s left"] if seconds_left < math.inf else []  # a replay has none
