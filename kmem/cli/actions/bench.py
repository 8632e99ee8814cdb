"""Run a bench: its problems, a process for each, and the table, scores and page at the end."""

import json
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kmem.bench.page import (
    missing_names,
    render_failures,
    render_scores,
    render_table,
    sort_rows,
    write_page,
)
from kmem.bench.problems import BenchProblem, choose_problems, find_problems
from kmem.bench.process import OptimizeProcess
from kmem.bench.purse import Purse
from kmem.bench.results import BenchDirectory, Manifest, Settings, read_manifest, read_rows
from kmem.bench.rows import Row
from kmem.bench.schedule import Runner, run_problems
from kmem.bench.scores import compute_scores
from kmem.bench.utilisation import (
    Hold,
    describe_utilisation,
    keep_utilisation,
    measure_utilisation,
    read_holds,
    utilisation_data,
)
from kmem.cli.actions.bench_away import open_away
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.bench import BenchDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_SOME_FAILED
from kmem.cli.options.authors import author_words
from kmem.cli.options.bench import BenchOptions
from kmem.devices import resolve_target
from kmem.errors import MemoryStoreError
from kmem.explore.models.cost.budget import Spending
from kmem.host.visible_gpus import visible_gpus
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory, default_db_path
from kmem.plugins import Registry
from kmem.records import Budget, Device, Strategy
from kmem.run.directory import default_run_directory, owner_of
from kmem.run.session import versions


def run_bench(
    paths: tuple[Path, ...], options: BenchOptions, registry: Registry, *, as_json: bool
) -> None:
    """Run what is still to do, print the results, and exit with the code that they deserve."""
    root = options.root or _new_root()
    if options.where.executor != "local":
        with interrupt_on_termination(), open_away(root, options, registry) as away:
            manifest, problems = describe_bench(root, paths, options, away.target)
            problems = away.longest_first(problems)
            with BenchDirectory(root) as directory:
                _begin(directory, manifest, problems, options)
                runner = away.runner(manifest.settings, _candidates(manifest.settings))
                _run(
                    directory,
                    manifest,
                    problems,
                    Running(runner, away.at_once, lambda: away.home.holds),
                    as_json=as_json,
                )
        return
    places = visible_gpus(options.gpus) if options.gpus else []
    Memory().close()  # one that no run could open is one line here, and not a row of each problem
    manifest, problems = describe_bench(root, paths, options, None)
    with interrupt_on_termination(), BenchDirectory(root) as directory:
        _begin(directory, manifest, problems, options)
        at_once = options.jobs * max(1, len(places))
        runs = root.resolve() / "runs"
        purse = (
            Purse(
                manifest.usd,
                problems,
                lambda problem: spent_usd(runs / problem.key),
                jobs=at_once,
            )
            if manifest.usd is not None
            else None
        )
        runner = OptimizeProcess(
            manifest.settings,
            root.resolve(),
            places,
            jobs=options.jobs,
            purse=purse,
            find_begun=find_begun,
            candidates=_candidates(manifest.settings),
        )
        running = Running(runner, at_once, lambda: _take_holds(runner.holds), purse)
        _run(directory, manifest, problems, running, as_json=as_json)


def _begin(
    directory: BenchDirectory,
    manifest: Manifest,
    problems: Sequence[BenchProblem],
    options: BenchOptions,
) -> None:
    directory.write_manifest(manifest)
    if options.retry_failed:
        again = directory.forget_failed({problem.key for problem in problems})
        click.echo(f"{again} failed problems run again", err=True)


def _take_holds(word: str) -> dict[str, list[Hold]]:
    """When this machine's GPUs were held, as written down beside their lock files; removes that."""
    locks = default_db_path().parent / "cache" / "locks"
    found = read_holds(locks, word)
    for file in locks.glob(f"*.{word}.holds"):
        file.unlink(missing_ok=True)
    return found


@dataclass(frozen=True, slots=True)
class Running:
    """By what problems are run, how many at once, and what language models may cost.

    `holds` says when each GPU was held.
    """

    runner: Runner
    at_once: int
    holds: Callable[[], Mapping[str, Sequence[Hold]]]
    purse: Purse | None = None


def _run(
    directory: BenchDirectory,
    manifest: Manifest,
    problems: tuple[BenchProblem, ...],
    running: Running,
    *,
    as_json: bool,
) -> None:
    root, purse = directory.root, running.purse
    began = time.monotonic()
    click.echo(f"bench of {len(problems)} problems in {root}", err=True)
    try:
        with BenchDisplay(manifest) as show:
            run_problems(
                problems,
                running.runner,
                directory,
                show,
                jobs=running.at_once,
                measured=manifest.measured,
                may_start=lambda: purse is None or not purse.is_empty,
            )
    except KeyboardInterrupt:
        print_results(directory, manifest, _keep_use(root, running, began), as_json=as_json)
        again = f"kmem bench --resume {shlex.quote(str(root))}"
        click.echo(f"\nInterrupted. What is finished is kept: {again}", err=True)
        raise SystemExit(EXIT_INTERRUPTED) from None
    used = _keep_use(root, running, began)
    rows = print_results(directory, manifest, used, as_json=as_json)
    if purse is not None and len(rows) < len(problems):
        click.echo(_explain_end(purse, len(problems) - len(rows), manifest, root), err=True)
    if any(row.failed for row in rows):
        raise SystemExit(EXIT_SOME_FAILED)


def _keep_use(root: Path, running: Running, began: float) -> Mapping[str, Any]:
    """How long this piece took and each GPU was in use: kept beside the rows, and told."""
    found = measure_utilisation(running.holds())
    data = utilisation_data(found, round(time.monotonic() - began, 1))
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
