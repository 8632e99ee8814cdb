"""What is shown of recorded landscapes: how a recording stands, and how arms compare."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from kmem.learning.comparison import Comparison, Interval
from kmem.learning.recording.outlook import Outlook
from kmem.learning.recording.schedule import Progress

#: Of the table in a file or a log, which have no width: cells cut to 80 characters would say
#: nothing.
_TABLE_WIDTH = 200
_HEADINGS = (
    "arm",
    "measurements",
    "rounds",
    "arrived",
    "saved",
    "whole run",
    "final speed",
    "over best-of-n",
    "area gained",
    "negative transfer",
    "more measurements",
    "later rounds",
)


@contextmanager
def recording_progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: click.echo(
            f"[{progress.done}/{progress.total}] {progress.text}", err=True
        )
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("recording", total=None)

        def show(progress: Progress) -> None:
            bar.console.print(progress.text, markup=False, highlight=False)
            bar.update(task, total=progress.total, completed=progress.done)

        yield show


def show_comparison(compared: Sequence[Comparison], *, on_stderr: bool) -> None:
    """Print how arms compare, a row for each."""
    table = Table(
        title="Measurements to 95% of the best recorded speed; 95% intervals over problems and "
        "seeds",
        title_justify="left",
    )
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for entry in compared:
        table.add_row(
            entry.arm.value,
            f"{entry.to_target:.2f}",
            f"{entry.rounds_to_target:.2f}",
            f"{entry.reached:.0%}",
            _percent(entry.saved),
            _percent(entry.total),
            str(entry.final_speed),
            str(entry.control),
            str(entry.area_gained),
            _percent(entry.negative_transfer),
            f"{entry.more_measurements:.1%}",
            f"{entry.later_rounds:.1%}",
        )
    console = Console(stderr=on_stderr)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    console.print(table)


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def show_outlook(outlooks: Sequence[Outlook]) -> None:
    """A suite's problems as lines, in the order in which they would be recorded, and the sums."""
    halves = {None: "", False: "fitted on", True: "set aside"}
    for each in outlooks:
        state = "recorded" if each.finished else f"about {each.seconds_left:.0f} s"
        if each.recorded and not each.finished:
            state += f", {each.recorded} settings are recorded"
        about = ", ".join(filter(None, (each.family, halves[each.set_aside])))
        click.echo("\t".join((each.name, each.graph_class, state, about)).rstrip())
    missing = [each for each in outlooks if not each.finished]
    classes = {each.graph_class for each in outlooks}
    recorded = {each.graph_class for each in outlooks if each.finished}
    minutes = sum(each.seconds_left for each in missing) / 60
    click.echo(
        f"{len(outlooks) - len(missing)} of {len(outlooks)} landscapes are recorded, "
        f"{len(recorded)} of {len(classes)} graph classes; the others take about {minutes:.0f} "
        "minutes of judging, less with more --jobs and fewer --settings",
        err=True,
    )
