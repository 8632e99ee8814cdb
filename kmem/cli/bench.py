"""`kmem bench`: the main job over directories of problems, with a live display, a table at the end
and results that survive a kill.
"""

import json
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from kmem.cli import EXIT_INTERRUPTED
from kmem.cli.options import memory_option, precision_option, purity_option, target_option

if TYPE_CHECKING:
    from kmem.bench.problems import BenchProblem
    from kmem.bench.results import BenchDirectory, Manifest, Settings
    from kmem.bench.rows import Row
    from kmem.bench.schedule import BenchEvent

# kmem.bench and devices are imported inside the functions: `kmem --help` must not pay for torch.

EXIT_SOME_FAILED = 1


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.IntRange(min=1),
    help="Level of KernelBench checkouts; default: all levels.",
)
@click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="Only problems whose name matches, such as '1?_*'; may be repeated.",
)
@precision_option
@purity_option
@target_option
@memory_option
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Rounds after the first, for each problem.",
)
@click.option(
    "--minutes-per-problem",
    "minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Wall-clock budget of each; timing the module itself is apart.",
)
@click.option(
    "--resume",
    "root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    envvar="KMEM_BENCH",
    help="Directory of results to go on with, or to make; default: runs/bench-<date>.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Problems at once on each GPU: one is traced and compiled while another is measured.",
)
@click.option(
    "--gpus", type=click.IntRange(min=1), help="GPUs to spread the problems over; default: one."
)
@click.option(
    "--record",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="KMEM_RECORD",
    help=(
        "Do not optimise: measure whole knob landscapes into DIR, for kmem memory ablate. PATH may "
        "then be a suite file too."
    ),
)
@click.option(
    "--settings",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="With --record: knob settings measured of each problem; all, if it has no more.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print manifest, scores and rows as one JSON object."
)
def bench(
    paths: tuple[Path, ...],
    level: int | None,
    only: tuple[str, ...],
    precision: str,
    purity: str,
    target: str | None,
    memory_mode: str,
    rounds: int,
    minutes: float,
    root: Path | None,
    jobs: int,
    gpus: int | None,
    record: Path | None,
    settings: int,
    as_json: bool,
) -> None:
    """Run `kmem optimize` on many problems and print how much was gained.

    PATH is a problem file, a directory of problems, or a KernelBench checkout as it is. Each
    problem runs in a process of its own, so that a crash is one row of the table.

    Rows are kept in DIR/results.jsonl as they come. After a kill the same command with --resume DIR
    goes on; kmem bench --resume DIR alone takes problems and settings from DIR. Problems that have
    a row, failed ones too, are not repeated (remove its line to repeat one). DIR also gets the page
    results.md with its plot, the logs and the run directories.

    Speedup is best baseline over kernel. A problem without a verified improvement counts with ratio
    1.0 in the means, a failed one too. A win is a ratio above 1.02. fast_1, fast_1.2 and fast_2 are
    the shares of all problems with a ratio above 1, 1.2 and 2. Without a GPU all times are
    estimates, labelled so, and never share a directory with measured ones.

    With --record nothing is searched for: some settings of every recipe that matches are compiled,
    checked and timed once, and kept with their verdicts, so that searches can be repeated without a
    GPU. --minutes-per-problem then limits the judging, and the same command goes on after a kill. A
    suite file is JSON that lists problems with sizes, such as problems/landscapes.json.

    Exit code 0: every problem was run; 1: some failed; 130: interrupted.
    """
    if record is not None:
        if gpus is not None:
            raise click.UsageError(
                "--gpus does not go with --record, which measures on one GPU; record parts of a "
                "suite with --only."
            )
        from kmem.cli.landscapes import record_suite

        record_suite(paths, level, only, precision, purity, target, record, settings, minutes, jobs)
        return
    from kmem.bench.process import OptimizeProcess, visible_gpus
    from kmem.bench.results import BenchDirectory, Settings
    from kmem.bench.schedule import run_problems

    places = visible_gpus(gpus) if gpus is not None else []
    root = root or Path("runs") / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    manifest, problems = describe(
        root, paths, level, only, Settings(precision, purity, target, memory_mode, rounds, minutes)
    )
    with interrupt_on_termination(), BenchDirectory(root) as directory:
        directory.write_manifest(manifest)
        click.echo(f"bench of {len(problems)} problems in {root}", err=True)
        runner = OptimizeProcess(manifest.settings, root.resolve(), places, jobs=jobs)
        try:
            with Progress(manifest) as show:
                run_problems(
                    problems,
                    runner,
                    directory,
                    show,
                    jobs=jobs * (gpus or 1),
                    measured=manifest.measured,
                )
        except KeyboardInterrupt:
            finish(directory, manifest, as_json=as_json)
            click.echo(
                (
                    f"\n"
                    f"Interrupted. What is finished is kept: kmem bench --resume "
                    f"{shlex.quote(str(root))}"
                ),
                err=True,
            )
            raise SystemExit(EXIT_INTERRUPTED) from None
        rows = finish(directory, manifest, as_json=as_json)
    if any(row.failed for row in rows):
        raise SystemExit(EXIT_SOME_FAILED)


def describe(
    root: Path, paths: tuple[Path, ...], level: int | None, only: tuple[str, ...], asked: "Settings"
) -> "tuple[Manifest, tuple[BenchProblem, ...]]":
    """What the directory is about with this piece joined to it, and the problems of this piece.

    Without paths, problems and settings are the directory's. Raises UsageError, ProblemError,
    TargetError, or OutputError if they differ.
    """
    from kmem.bench.problems import find_problems
    from kmem.bench.results import Manifest, read_manifest

    earlier = read_manifest(root)
    if not paths and earlier is None:
        raise click.UsageError(
            "Name problem files or directories, or with --resume the directory of an earlier bench."
        )
    settings = asked if paths else earlier.settings
    problems = (
        find_problems(paths, level, only)
        if paths
        else find_problems([Path(problem.path) for problem in earlier.problems], None, only)
    )
    from kmem.devices import resolve_target
    from kmem.run.session import versions

    device, present = resolve_target(settings.target)
    command = shlex.join(["kmem", *sys.argv[1:]])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    piece = Manifest(
        settings,
        device.name,
        device.full_name,
        present,
        versions(),
        now,
        (command,),
        tuple(problems),
    )
    return (earlier.extend(piece, root) if earlier else piece), piece.problems


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Take SIGTERM, as `timeout` and job schedulers send it, for a Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def finish(directory: "BenchDirectory", manifest: "Manifest", *, as_json: bool) -> "list[Row]":
    """Write the page and its plot, print the table (or JSON) and return the rows."""
    from kmem.bench.page import (
        missing_names,
        render_failures,
        render_scores,
        render_table,
        sort_rows,
        write_page,
    )
    from kmem.bench.results import read_rows
    from kmem.bench.scores import compute_scores

    rows = sort_rows(manifest, read_rows(directory.root))
    scores, missing = compute_scores(rows), missing_names(manifest, rows)
    page = write_page(directory.root / "results.md", manifest, rows)
    if as_json:
        data = {
            "manifest": asdict(manifest),
            "scores": asdict(scores) if scores else None,
            "missing": missing,
        }
        data["rows"] = [asdict(row) for row in rows]
        click.echo(json.dumps(data, default=lambda value: value.value))
    else:
        click.echo(render_table(rows, missing))
        if failures := render_failures(rows):
            click.echo("\n" + failures)
        if scores is not None:
            click.echo("\n" + render_scores(scores, measured=manifest.measured))
    click.echo(f"page: {page}", err=True)
    return rows


class Progress(AbstractContextManager["Callable[[BenchEvent], None]"]):
    """A live panel on a terminal, plain lines elsewhere: what runs and its stage, done of total,
    the geometric mean so far.
    """

    def __init__(self, manifest: "Manifest") -> None:
        self._manifest = manifest
        self._live = None
        self._running: dict[str, str] = {}
        self._ended: list[str] = []

    def __enter__(self) -> "Callable[[BenchEvent], None]":
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        if not console.is_terminal:
            return self._print_line
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.__enter__()
        return self._update

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, value, traceback)

    def _print_line(self, event: "BenchEvent") -> None:
        """A line for every new stage of a problem."""
        name = event.problem.name
        if event.row is None and self._running.get(name) == event.stage:
            return
        self._running[name] = event.stage
        click.echo(f"{name:32} {_outcome(event)}  [{_standing(event)}]", err=True)

    def _update(self, event: "BenchEvent") -> None:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        name = event.problem.name
        self._running[name] = f"{name:32} {_outcome(event)}"
        if event.row is not None:
            self._ended = [*self._ended[-7:], self._running.pop(name)]
        # Text, not markup: brackets of the user's file names and error messages are no styles.
        lines = [
            *(Text(line, style="dim") for line in self._ended),
            *map(Text, self._running.values()),
            Text(""),
            Text(_standing(event)),
        ]
        self._live.update(
            Panel(Group(*lines), title=f"bench on {self._manifest.device}", title_align="left"),
            refresh=True,
        )


def _outcome(event: "BenchEvent") -> str:
    row = event.row
    if row is None:
        return f"{event.stage:11} {event.text}".rstrip()
    unit = "ms est." if row.result and row.result["estimated"] else "ms"
    time_ms = f" {row.time_ms:.4g} {unit}" if row.time_ms is not None else ""
    speedup = f", {row.speedup:.2f}x {row.best_baseline}" if row.speedup else ""
    return (
        f"{row.status.value}{time_ms}{speedup}{': ' + row.reason if row.failed else ''} in "
        f"{row.seconds:.0f} s"
    )


def _standing(event: "BenchEvent") -> str:
    from kmem.bench.scores import compute_scores

    parts = [f"{len(event.rows)}/{event.total} done"]
    if scores := compute_scores(event.rows):
        parts.append(f"geometric mean {scores.geometric_mean:.3f}")
        if scores.failed:
            parts.append(f"{scores.failed} failed")
    return ", ".join(parts)
