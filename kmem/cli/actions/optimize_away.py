"""`kmem optimize --executor`: one run on a worker of a cluster."""

import json
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import click

from kmem.away.errand import Asked, is_ours
from kmem.away.home import Home
from kmem.away.there import There
from kmem.cli.actions.crews import find_executor, open_desk
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.cli.options.run import RunOptions
from kmem.engines.executor import JobResult, Wanted
from kmem.engines.scheduler import Work
from kmem.errors import OutputError
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.source.load import load_problem
from kmem.records import Problem
from kmem.run.directory import default_run_directory, owner_of

#: A run ends by itself at its minutes; baselines and its end may take so much longer.
_LIMIT_EXTRA_S = 3600.0


def optimize_away(
    problem: Path, words: list[str], options: RunOptions, registry: Registry, *, as_json: bool
) -> None:
    """Run one problem on a worker, with its progress on stderr, and exit with its code.

    Args:
        words: the options of the command that say how to search.
    """
    executor = find_executor(registry, options.where)
    loaded = load_problem(problem)
    file = problem / "problem.py" if problem.is_dir() else problem
    now = datetime.now(UTC)
    out_dir = (options.out or default_run_directory(f"{loaded.name}-{now:%Y%m%d-%H%M%S}")).resolve()
    if out_dir.exists() and not is_ours(out_dir) and any(out_dir.iterdir()):
        raise OutputError(
            f"{out_dir} holds files that no run on a worker wrote, and would be emptied; choose "
            "another directory with --out"
        )
    _refuse_another(out_dir, loaded)
    over = threading.Event()
    found: list[JobResult] = []

    def end(result: JobResult) -> None:
        found.append(result)
        over.set()

    gpus = 0 if options.target else 1  # a named target is written for, not measured on
    with (
        tempfile.TemporaryDirectory(prefix=".kmem-crew-", dir=Path.cwd()) as place,
        interrupt_on_termination(),
    ):
        home = Home(Path(place))
        errand = There(
            Asked(
                file,
                lambda there, out: ["optimize", there, *words, "--out", out, "--json"],
                out_dir,
                options.memory_mode,
            ),
            home,
            lambda line: click.echo(line, err=True),
            end,
        )
        wanted = Wanted(gpus, 1 - gpus, address=options.where.address, directory=Path(place))
        limit_s = 60 * options.minutes + _LIMIT_EXTRA_S
        try:
            with open_desk(executor, wanted, home.close) as desk:
                desk.add(Work("run", errand.job, errand, limit_s=limit_s, gpu=bool(gpus)))
                while not over.wait(0.2):
                    desk.check()
        except KeyboardInterrupt:
            click.echo(
                f"\nInterrupted. Nothing that was measured is lost; the same command with --out "
                f"{out_dir} goes on",
                err=True,
            )
            raise SystemExit(EXIT_INTERRUPTED) from None
    _tell(found[0], out_dir, as_json=as_json)


def _refuse_another(out_dir: Path, problem: Problem) -> None:
    """Raise OutputError if the directory is that of a run on another problem."""
    owner = owner_of(out_dir)
    if owner is None:
        return
    with Memory.to_read() as memory:
        known = memory.runs.get(owner) if memory.runs.has(owner) else None
    if known is not None and known.problem.source != problem.source:
        raise OutputError(
            f"{out_dir} is the directory of run {owner} on another problem ({known.problem.name}); "
            "choose another with --out"
        )


def _tell(result: JobResult, out_dir: Path, *, as_json: bool) -> None:
    lines = result.stdout.strip().splitlines()
    if as_json and lines:
        click.echo(lines[-1])
    elif lines and json.loads(lines[-1])["status"] == "passed":
        click.echo(str(out_dir / "best_kernel.py"))
    if result.exit_code is None:
        click.echo(f"Error: no answer within {result.seconds:.0f} s", err=True)
    if result.exit_code != 0:
        raise SystemExit(result.exit_code or 1)
