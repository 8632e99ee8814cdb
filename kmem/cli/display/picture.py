"""A run as a picture in the terminal: bars of times, and how the best came down."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kmem.records import Attempt, RunResult
from kmem.run.report.convergence import best_so_far, timed_attempts

_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STEPS = "▁▂▃▄▅▆▇█"


def show_picture(console: Console, result: RunResult, attempts: Sequence[Attempt]) -> None:
    """Draw bound, best and baselines as bars, and the best time over the attempts.

    Nothing where nothing passed, or the console is no terminal.
    """
    timed = timed_attempts(attempts)
    if not console.is_terminal or not timed:
        return
    rows = []
    if result.bound is not None:
        rows.append(("bound", result.bound.time_ms, "green"))
    best = min(latency_ms for _, _, latency_ms in timed)
    if result.best is not None:
        best = result.best.measurement.latency_ms
    rows.append(("best", best, "bold cyan"))
    rows += [
        (baseline.name, baseline.timing.latency_ms, "yellow")
        for baseline in result.baselines
        if baseline.timing is not None
    ]
    longest = max(time_ms for _, time_ms, _ in rows)
    table = Table.grid(padding=(0, 1))
    for name, time_ms, style in rows:
        table.add_row(name, f"{time_ms:.4g} ms", Text(draw_bar(time_ms / longest), style=style))
    steps = [latency_ms for _, latency_ms in best_so_far(timed)]
    table.add_row("over", f"{len(steps)} passed", Text(draw_steps(steps), style="cyan"))
    console.print(table)


def draw_bar(share: float) -> str:
    """A bar of a share of the whole width, to an eighth of a character; never empty."""
    eighths = max(1, round(share * _BAR * 8))
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[-1] * whole + (_EIGHTHS[rest] if rest else "")


def draw_steps(values: Sequence[float]) -> str:
    """Values from left to right as heights between the least and the greatest of them."""
    if len(values) > _BAR:  # as many as fit, the last among them
        values = [values[(place + 1) * len(values) // _BAR - 1] for place in range(_BAR)]
    least, most = min(values), max(values)
    if most == least:
        return _STEPS[0] * len(values)
    top = len(_STEPS) - 1
    return "".join(_STEPS[round((value - least) / (most - least) * top)] for value in values)
