"""What `kmem bench --record` and `kmem memory ablate` do: measure whole knob landscapes, and replay
searches on them.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.cli import EXIT_INTERRUPTED
from kmem.records import Contract, Precision, Problem, Purity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kmem.learning.arms import Arm
    from kmem.learning.comparison import Comparison, Interval
    from kmem.learning.recording.schedule import Progress

# kmem.learning and devices (torch) are imported inside the functions: `kmem --help` must not pay
# for them.

_SEED = 0
#: Of the table in a file or a log, which have no width: cells cut to 80 characters would say
#: nothing.
_TABLE_WIDTH = 200


def record_suite(
    paths: tuple[Path, ...],
    level: int | None,
    only: tuple[str, ...],
    precision: str,
    purity: str,
    target: str | None,
    root: Path,
    settings: int,
    minutes: float,
    jobs: int,
) -> None:
    """Record the landscapes of every problem under the paths; exits 130 if interrupted, with what
    was measured kept.
    """
    from kmem.cli.bench import interrupt_on_termination
    from kmem.cli.optimize import measured_ceilings
    from kmem.devices import resolve_target
    from kmem.learning.recording.request import Asked
    from kmem.learning.recording.schedule import record_landscapes
    from kmem.memory.store import Memory

    if not paths:
        raise click.UsageError(
            "Name problem files, directories of them, or a suite file such as "
            "problems/landscapes.json."
        )
    device, present = resolve_target(target)
    problems = find_suite(paths, level, only)
    contract = Contract(Precision(precision), Purity(purity))
    click.echo(
        f"recording landscapes of {len(problems)} problems for {device.name} in {root}", err=True
    )
    try:
        with interrupt_on_termination(), _progress() as show:
            if present:
                with Memory() as memory:
                    device = measured_ceilings(device, memory)
            asked = Asked(device, present, contract, settings, _SEED, minutes, jobs)
            record_landscapes(problems, root, asked, show)
    except KeyboardInterrupt:
        click.echo(
            (
                f"\n"
                f"Interrupted. What is measured is kept; go on with: "
                f"{shlex.join(['kmem', *sys.argv[1:]])}"
            ),
            err=True,
        )
        raise SystemExit(EXIT_INTERRUPTED) from None
    click.echo(str(root))


def find_suite(
    paths: tuple[Path, ...], level: int | None, only: tuple[str, ...]
) -> tuple[Problem, ...]:
    """The problems of suite files, and those of files and directories as they are; only those whose
    name matches, if patterns are given.

    Raises ProblemError: if a path is none of these, or nothing is left.
    """
    from fnmatch import fnmatchcase

    from kmem.bench.problems import find_problems
    from kmem.errors import ProblemError
    from kmem.learning.suite import SUFFIX, load_suite
    from kmem.problem.load import load_problem

    problems: list[Problem] = []
    for path in paths:
        if path.suffix == SUFFIX:
            problems += load_suite(path)
        else:
            problems += [load_problem(found.path) for found in find_problems([path], level)]
    kept = {
        problem.name: problem
        for problem in problems
        if not only or any(fnmatchcase(problem.name, pattern) for pattern in only)
    }
    if not kept:
        raise ProblemError(
            f"No problem of {', '.join(map(str, paths))} is called {' or '.join(only)}; see the "
            f"names in the suite"
        )
    return tuple(kept.values())


@contextmanager
def _progress() -> "Iterator[Callable[[Progress], None]]":
    """A bar on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: click.echo(
            f"[{progress.done}/{progress.total}] {progress.text}", err=True
        )
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("recording", total=None)

        def show(progress: "Progress") -> None:
            bar.console.print(progress.text, markup=False, highlight=False)
            bar.update(task, total=progress.total, completed=progress.done)

        yield show


def ablate_suite(
    root: Path,
    arms: str,
    seeds: int,
    left_out: tuple[str, ...],
    strategy: str,
    only: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay every arm on recorded landscapes, and print how they compare: a table for people on
    stderr, one JSON object on stdout.
    """
    from kmem.errors import LandscapeError
    from kmem.learning.ablation import Setup, ablate
    from kmem.learning.comparison import compare_arms
    from kmem.learning.landscape import LandscapeDirectory
    from kmem.learning.picture import draw_ablation
    from kmem.records import Strategy
    from kmem.serialize import to_data

    setup = Setup(_read_arms(arms), seeds, left_out, Strategy(strategy))
    directory = LandscapeDirectory(root)
    found = directory.read(only)
    landscapes = [landscape for landscape in found if landscape.is_searchable]
    empty = [landscape.name for landscape in found if not landscape.is_searchable]
    unfinished = {
        landscape.name: len(landscape.settings)
        for landscape in landscapes
        if not directory.is_finished(landscape.name)
    }
    if empty:
        click.echo(f"left out, for no setting of theirs has passed: {', '.join(empty)}", err=True)
    if unfinished:
        counts = ", ".join(f"{name} ({count})" for name, count in unfinished.items())
        click.echo(
            f"recorded in part, searched as if there were no other settings: {counts}", err=True
        )
    if not landscapes:
        raise LandscapeError(
            f"No setting of any landscape in {root} has passed; go on with kmem bench SUITE "
            f"--record {root}"
        )
    click.echo(f"{len(landscapes)} landscapes, {len(setup.arms)} arms, {seeds} seeds", err=True)
    trials = ablate(
        landscapes, setup, lambda done, total: click.echo(f"seed {done} of {total}", err=True)
    )
    compared = compare_arms(trials)
    about = {
        "landscapes": {landscape.name: len(landscape.settings) for landscape in landscapes},
        "recorded_in_part": sorted(unfinished),
        "left_out_as_empty": empty,
        "devices": sorted({landscape.header.device.full_name for landscape in landscapes}),
        "setup": to_data(setup),
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(to_data(trial), sort_keys=True) + "\n" for trial in trials)
        (out / "trials.jsonl").write_text(lines, encoding="utf-8")
        summary = {**about, "arms": [to_data(entry) for entry in compared]}
        (out / "comparison.json").write_text(
            json.dumps(summary, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        without = f", without {', '.join(left_out)}" if left_out else ""
        draw_ablation(
            out / "ablation.png",
            trials,
            title=f"{len(landscapes)} problems, {seeds} seeds, {strategy}{without}",
        )
    _show_comparison(compared)
    if out is not None:
        click.echo(f"trials, comparison and plot: {out}", err=True)
    if as_json:
        click.echo(
            json.dumps({**about, "arms": [to_data(entry) for entry in compared]}, sort_keys=True)
        )


def _read_arms(arms: str) -> "tuple[Arm, ...]":
    """Arms from their names, in the order of the table; `off` is always among them, for the others
    are compared with it.
    """
    from kmem.learning.arms import Arm

    named = {name.strip() for name in arms.split(",") if name.strip()}
    unknown = sorted(named - {arm.value for arm in Arm})
    if unknown:
        raise click.UsageError(
            f"No arm is called {', '.join(unknown)}; there are "
            f"{', '.join(arm.value for arm in Arm)}."
        )
    return tuple(arm for arm in Arm if arm.value in named or arm is Arm.OFF)


def _show_comparison(compared: "Sequence[Comparison]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="Measurements to 95% of the best recorded speed; 95% intervals over problems and seeds",
        title_justify="left",
    )
    for heading in (
        "arm",
        "measurements",
        "rounds",
        "arrived",
        "saved",
        "final speed",
        "area gained",
        "negative transfer",
        "more measurements",
        "later rounds",
    ):
        table.add_column(heading)
    for entry in compared:
        table.add_row(
            entry.arm.value,
            f"{entry.to_target:.2f}",
            f"{entry.rounds_to_target:.2f}",
            f"{entry.reached:.0%}",
            _percent(entry.saved),
            str(entry.final_speed),
            str(entry.area_gained),
            _percent(entry.negative_transfer),
            f"{entry.more_measurements:.1%}",
            f"{entry.later_rounds:.1%}",
        )
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    console.print(table)


def _percent(interval: "Interval") -> str:
    return f"{interval.value:.1%} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"
