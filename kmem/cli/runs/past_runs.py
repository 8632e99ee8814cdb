"""`kmem runs compare`, `diff` and `prune`: past runs beside each other, and those that may go."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kmem.cli.display.entries import describe_entry, describe_time, entry_data, seen_state
from kmem.cli.options.past_runs import RunFilter, read_moment
from kmem.cli.options.records import nested, option, takes
from kmem.cli.options.run_name import RUN_NAME
from kmem.curate.change import diff_sources
from kmem.errors import MemoryStoreError
from kmem.memory.runs.entries import RunEntry
from kmem.memory.store import Memory
from kmem.records import Attempt, Kernel, Run, fastest_baseline
from kmem.run.directory import is_worked_on, remove_run_directory

#: Of a table in a file or a log, which have no width.
_TABLE_WIDTH = 160


@dataclass(frozen=True, slots=True)
class _Compared:
    """A run with what it tried."""

    entry: RunEntry
    attempts: list[Attempt]

    def best_by_skill(self) -> dict[str, float]:
        """The best time in ms of each skill that passed."""
        best: dict[str, float] = {}
        for attempt in self.attempts:
            latency_ms, skill = attempt.measurement.latency_ms, attempt.candidate.task.skill
            if latency_ms is not None:
                best[skill] = min(latency_ms, best.get(skill, latency_ms))
        return best


@click.command("compare")
@click.argument("run_ids", metavar="RUN RUN...", type=RUN_NAME, nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: `runs`, in order.")
def compare(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Show runs side by side: what was asked, what came of it, and what each skill reached.

    Each RUN may be a unique prefix of its id, its directory, or a problem's name, for its
    latest run.
    """
    if len(run_ids) < 2:
        raise click.UsageError("Name at least two runs")
    with Memory.to_read() as memory:
        runs = [memory.runs.get(run_id) for run_id in run_ids]
        compared = [
            _Compared(memory.run_entries.one(run.id), memory.runs.attempts(run.id)) for run in runs
        ]
    if as_json:
        data = [entry_data(one.entry) | {"best_ms": one.best_by_skill()} for one in compared]
        click.echo(json.dumps({"runs": data}))
        return
    table = Table(show_edge=False)
    table.add_column("")
    for one in compared:
        table.add_column(one.entry.run.id, overflow="fold")
    for heading, cells in _rows(compared):
        table.add_row(heading, *cells)
    console = Console()
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    console.print(table)


def _rows(compared: Sequence[_Compared]) -> list[tuple[str, list[str]]]:
    """The rows of the table: facts, results, then a row for each skill."""
    columns = [_facts(one) for one in compared]
    rows = [(heading, [column[heading] for column in columns]) for heading in columns[0]]
    best = [one.best_by_skill() for one in compared]
    estimated = [one.entry.estimated for one in compared]
    for skill in sorted({skill for each in best for skill in each}):
        cells = [
            describe_time(each[skill], estimated=guess) if skill in each else ""
            for each, guess in zip(best, estimated, strict=True)
        ]
        rows.append((skill, cells))
    return rows


def _facts(one: _Compared) -> dict[str, str]:
    run, result = one.entry.run, one.entry.result
    best = result.best if result is not None else None
    best_ms = one.entry.best_ms  # of a finished run what was verified, else the best so far
    if best is not None and best.measurement.latency_ms is not None:
        best_ms = best.measurement.latency_ms
    baseline = fastest_baseline(result.baselines) if result is not None else None
    return {
        "problem": run.problem.name,
        "device": run.target,
        "precision": run.contract.precision.value,
        "authors": ", ".join(run.authors),
        "strategy": f"{run.strategy.value}, seed {run.seed}",
        "budget": f"{run.budget.rounds} rounds, {run.budget.minutes:g} min",
        "state": seen_state(one.entry),
        "best": (
            describe_time(best_ms, estimated=one.entry.estimated) if best_ms is not None else ""
        ),
        "baseline": f"{baseline.name} {baseline.timing.latency_ms:.4g} ms" if baseline else "",
        "speedup": f"{result.speedup:.2f}x" if result is not None and result.speedup else "",
        "speed of light": (
            f"{result.speed_of_light:.0%}" if result is not None and result.speed_of_light else ""
        ),
        "attempts": str(len(one.attempts)),
        "winner": best.candidate.task.skill if best is not None else "",
    }


@click.command("diff")
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
@click.argument("number", metavar="[ATTEMPT]", type=click.IntRange(min=1), required=False)
@click.option(
    "--with",
    "other_id",
    metavar="RUN",
    type=RUN_NAME,
    help="Compare with the best kernel of this run instead.",
)
def diff(run_id: str, number: int | None, other_id: str | None) -> None:
    """Show what an attempt changed: its kernel against the one it was made from.

    ATTEMPT is its number in `kmem runs show RUN`; without it the best kernel is taken. A kernel
    that was made from none is compared with the module. RUN may be a unique prefix of its id, its
    directory, or a problem's name, for its latest run.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        kernel = _find_attempt(run, memory.runs.attempts(run.id), number).candidate.kernel
        if other_id is not None:
            other = memory.runs.get(other_id)
            attempts = memory.runs.attempts(other.id)
            before = _find_attempt(other, attempts, None).candidate.kernel
        else:
            before = memory.runs.kernel(kernel.parent) if kernel.parent else None
    click.echo(diff_sources(before or Kernel(run.problem.source), kernel), nl=False)


def _find_attempt(run: Run, attempts: Sequence[Attempt], number: int | None) -> Attempt:
    """An attempt by its number, or the fastest.

    Raises MemoryStoreError if there is none.
    """
    if number is not None:
        if number > len(attempts):
            raise MemoryStoreError(f"Run {run.id} has {len(attempts)} attempts, not {number}")
        return attempts[number - 1]
    passed = [each for each in attempts if each.measurement.latency_ms is not None]
    if not passed:
        raise MemoryStoreError(f"No kernel of run {run.id} passed; name an attempt by its number")
    return min(passed, key=lambda attempt: attempt.measurement.latency_ms)


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """Which runs go."""

    filter: RunFilter = nested(RunFilter)
    before: str | None = option(
        "--before",
        metavar="WHEN",
        help="Only runs begun before a date (2026-01-31) or longer ago than a time (12h, 7d).",
    )
    keep_directory: bool = option(
        "--keep-directories", is_flag=True, help="Forget the runs, and leave their directories."
    )


@click.command("prune")
@takes(PruneOptions)
@click.option("--yes", is_flag=True, help="Do it; without this, the runs are only listed.")
def prune(options: PruneOptions, yes: bool) -> None:
    """Remove past runs with their directories; without --yes, list what would go.

    At least one filter must be given. Runs that are worked on stay. What was measured stays in the
    ledger, so nothing is forgotten of what skills and knobs earned.
    """
    if options.filter.is_empty and options.before is None:
        raise click.UsageError("Say which runs: --state, --problem or --before")
    latest = read_moment(options.before, "--before") if options.before is not None else None
    with Memory() if yes else Memory.to_read() as memory:
        chosen = [
            entry
            for entry in options.filter.choose(memory.run_entries.all())
            if (latest is None or entry.run.created_at < latest)
            and not is_worked_on(Path(entry.run.out_dir))
        ]
        for entry in chosen:
            if yes:
                memory.run_entries.remove(entry.run.id)
                if not options.keep_directory:
                    remove_run_directory(Path(entry.run.out_dir), entry.run)
            click.echo(describe_entry(entry))
    done = "removed" if yes else "would be removed; say --yes to do it"
    click.echo(f"{len(chosen)} runs {done}", err=True)
