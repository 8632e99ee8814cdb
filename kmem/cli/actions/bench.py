"""Run a bench: a job of an executor for each problem; then table, scores and page."""

import json
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kmem.away.errand import begin_anew
from kmem.bench.page import (
    missing_names,
    render_failures,
    render_scores,
    render_table,
    sort_rows,
    write_page,
)
from kmem.bench.problems import BenchProblem, choose_problems, find_problems
from kmem.bench.purse import Purse
from kmem.bench.results import BenchDirectory, Manifest, Settings, read_manifest, read_rows
from kmem.bench.rows import Row
from kmem.bench.schedule import run_problems
from kmem.bench.scores import compute_scores
from kmem.bench.utilisation import (
    Hold,
    describe_utilisation,
    keep_utilisation,
    measure_utilisation,
    utilisation_data,
)
from kmem.cli.actions.bench_crew import BenchCrew, open_bench_crew
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.bench import BenchDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_SOME_FAILED
from kmem.cli.options.authors import author_words
from kmem.cli.options.bench import BenchOptions
from kmem.devices import resolve_target
from kmem.errors import MemoryStoreError
from kmem.explore.models.cost.budget import Spending
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Budget, Device, Strategy
from kmem.run.directory import default_run_directory, owner_of
from kmem.run.setup.session import versions


def run_bench(
    paths: tuple[Path, ...], options: BenchOptions, registry: Registry, *, as_json: bool
) -> None:
    """Run what is still to do, print the results, and exit with the code that they deserve."""
    root = options.root or _new_root()
    Memory().close()  # one that no run could open is one line here, and not a row of each problem
    with interrupt_on_termination(), open_bench_crew(root, options, registry) as crew:
        manifest, problems = describe_bench(root, paths, options, crew.target)
        with BenchDirectory(root) as directory:
            _begin(directory, manifest, problems, options)
            purse = _purse_of(manifest, problems, root.resolve() / "runs", crew.at_once)
            piece = _run(directory, manifest, crew, purse, problems)
            crew.desk.close()  # those that were interrupted have ended then
            _tell(piece, manifest, crew.take_holds(), as_json=as_json)


def _purse_of(
    manifest: Manifest, problems: Sequence[BenchProblem], runs: Path, at_once: int
) -> Purse | None:
    if manifest.usd is None:
        return None
    return Purse(
        manifest.usd, problems, lambda problem: spent_usd(runs / problem.key), jobs=at_once
    )


def _begin(
    directory: BenchDirectory,
    manifest: Manifest,
    problems: Sequence[BenchProblem],
    options: BenchOptions,
) -> None:
    directory.write_manifest(manifest)
    if options.retry_failed:
        again = directory.forget_failed({problem.key for problem in problems})
        for key in again:
            begin_anew(directory.root / "runs" / key)
        click.echo(f"{len(again)} failed problems run again", err=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one start of a bench was about, and how it went."""

    directory: BenchDirectory
    problems: Sequence[BenchProblem]
    wall_s: float
    interrupted: bool
    purse: Purse | None = None


def _run(
    directory: BenchDirectory,
    manifest: Manifest,
    crew: BenchCrew,
    purse: Purse | None,
    problems: Sequence[BenchProblem],
) -> Piece:
    """Run what is still to do, until it is done or interrupted."""
    began, interrupted = time.monotonic(), False
    click.echo(f"bench of {len(problems)} problems in {directory.root}", err=True)
    ordered, settings = crew.longest_first(problems), manifest.settings
    try:
        with BenchDisplay(manifest) as show:
            run_problems(
                ordered,
                crew.runner(settings, ordered, _candidates(settings), purse),
                directory,
                show,
                jobs=crew.at_once,
                measured=manifest.measured,
                may_start=lambda: purse is None or not purse.is_empty,
            )
    except KeyboardInterrupt:
        interrupted = True
    wall_s = round(time.monotonic() - began, 1)
    return Piece(directory, problems, wall_s, interrupted, purse)


def _tell(
    piece: Piece, manifest: Manifest, holds: Mapping[str, Sequence[Hold]], *, as_json: bool
) -> None:
    """Print the results, and exit with the code that they deserve."""
    root, purse = piece.directory.root, piece.purse
    used = _keep_use(root, piece.wall_s, holds)
    rows = print_results(piece.directory, manifest, used, as_json=as_json)
    if piece.interrupted:
        again = f"kmem bench --resume {shlex.quote(str(root))}"
        click.echo(f"\nInterrupted. What is finished is kept: {again}", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    left = len(piece.problems) - len(rows)
    if purse is not None and left > 0:
        click.echo(_explain_end(purse, left, manifest, root), err=True)
    if any(row.failed for row in rows):
        raise SystemExit(EXIT_SOME_FAILED)


def _keep_use(root: Path, wall_s: float, holds: Mapping[str, Sequence[Hold]]) -> Mapping[str, Any]:
    """How long this piece took and each GPU was in use: kept beside the rows, and told."""
    found = measure_utilisation(holds)
    data = utilisation_data(found, wall_s)
    keep_utilisation(root, data)
    if found:
        click.echo(describe_utilisation(found), err=True)
    return data


def _candidates(settings: Settings) -> Mapping[str, int]:
    """What each problem's control is given: as many measurements as the run that it controls."""
    if settings.control is None:
        return {}
    rows = read_rows(Path(settings.control))
    return {row.key: row.measurements for row in rows if row.measurements}


def _explain_end(purse: Purse, left: int, manifest: Manifest, root: Path) -> str:
    """Why the bench ended before its last problem, and how it goes on."""
    again = f"kmem bench --resume {shlex.quote(str(root))} --usd MORE"
    return (
        f"The budget for language models is spent: {purse.spent:.4f} of {manifest.usd:g} USD, "
        f"which does not pay for a further problem. {left} problems have no row; go on with: "
        f"{again}"
    )


def find_begun(directory: Path) -> str | None:
    """The id of the run in a directory, if memory knows it, so that it can be resumed."""
    run_id = owner_of(directory)
    if run_id is None:
        return None
    try:
        with Memory.to_read() as memory:
            return run_id if memory.runs.has(run_id) else None
    except MemoryStoreError:
        return None


def spent_usd(directory: Path) -> float:
    """What the language models of the run in a directory have cost so far."""
    run_id = find_begun(directory)
    if run_id is None:
        return 0.0
    with Memory.to_read() as memory:
        return Spending(Budget(), RunArchive(memory.path, run_id)).spent_usd


def _new_root() -> Path:
    return default_run_directory(f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")


def describe_bench(
    root: Path,
    paths: tuple[Path, ...],
    options: BenchOptions,
    target: tuple[Device, bool] | None,
) -> tuple[Manifest, tuple[BenchProblem, ...]]:
    """What the directory is about with this piece joined to it, and the problems of this piece.

    Without paths, problems and settings are those of the directory.

    Args:
        target: the device of other machines and whether it is there; None: this machine's.

    Raises:
        UsageError: if neither paths nor an earlier bench say what to run.
        ProblemError, TargetError: as their names say.
        OutputError: if the directory holds a bench with other settings.
    """
    earlier = read_manifest(root)
    if options.control is not None:
        settings, known = _control_of(options.control)
        problems = find_problems(paths or known, options.level, options.only)
    elif paths:
        contract = options.contract
        settings = Settings(
            contract.precision,
            contract.purity,
            options.target,
            options.memory_mode,
            options.rounds,
            options.minutes,
            ",".join(options.timing.baselines),
            options.timing.baseline_minutes,
            options.candidates,
            author_words(options),
            options.strategy,
        )
        problems = find_problems(paths, options.level, options.only)
    elif earlier is not None:
        settings = earlier.settings
        known = [Path(problem.path) for problem in earlier.problems]
        problems = find_problems(known, None, options.only)
    else:
        raise click.UsageError(
            "Name problem files or directories, or with --resume the directory of an earlier bench."
        )
    problems = choose_problems(problems, options.first, options.sample)
    device, present = target or resolve_target(settings.target)
    piece = Manifest(
        settings,
        device.name,
        device.full_name,
        present,
        versions(),
        datetime.now(UTC).isoformat(timespec="seconds"),
        (shlex.join(["kmem", *sys.argv[1:]]),),
        tuple(problems),
        options.usd,
    )
    return (earlier.extend(piece, root) if earlier else piece), piece.problems


def _control_of(root: Path) -> tuple[Settings, list[Path]]:
    """The settings of the control of a bench, and the problems that have a row there.

    Raises UsageError if there is none.
    """
    manifest = read_manifest(root)
    done = {row.key for row in read_rows(root) if not row.failed}
    if manifest is None or not done:
        raise click.UsageError(f"{root} holds no rows of a bench that a control could be made of.")
    settings = replace(
        manifest.settings,
        strategy=Strategy.BEST_OF_N.value,
        rounds=0,
        memory="off",
        control=str(root.resolve()),
    )
    return settings, [Path(each.path) for each in manifest.problems if each.key in done]


def print_results(
    directory: BenchDirectory, manifest: Manifest, used: Mapping[str, Any], *, as_json: bool
) -> list[Row]:
    """Write the page and its plot, print the table (or JSON) and return the rows.

    Args:
        used: how long this piece took and each GPU was in use.
    """
    rows = sort_rows(manifest, read_rows(directory.root))
    scores, missing = compute_scores(rows), missing_names(manifest, rows)
    page = write_page(directory.root / "results.md", manifest, rows)
    if as_json:
        data = {
            "manifest": asdict(manifest),
            "scores": asdict(scores) if scores else None,
            "missing": missing,
            "utilisation": used,
            "rows": [asdict(row) for row in rows],
        }
        click.echo(json.dumps(data, default=lambda value: value.value))
    else:
        click.echo(render_table(rows, missing))
        if failures := render_failures(rows):
            click.echo("\n" + failures)
        if scores is not None:
            click.echo("\n" + render_scores(scores, measured=manifest.measured))
    click.echo(f"page: {page}", err=True)
    return rows
