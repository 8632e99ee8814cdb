"""`kmem runs`: list, show, resume and replay runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.errors import TargetError
from kmem.plugins import Registry

if TYPE_CHECKING:
    from kmem.records import Run, RunResult, RunState

# The memory imports sqlite_utils, devices import torch: inside the functions, so that `kmem --help`
# does not pay for them.


@click.group(invoke_without_command=True)
@click.pass_context
def runs(ctx: click.Context) -> None:
    """List, show, resume and replay runs (default: list)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_runs)


@runs.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all runs under `runs`."
)
def list_runs(as_json: bool) -> None:
    """List runs, newest first."""
    from kmem.memory.store import Memory

    with Memory() as memory:
        found = memory.runs.all()
    if as_json:
        click.echo(
            json.dumps({"runs": [_run_summary(run, state, result) for run, state, result in found]})
        )
        return
    for run, state, result in found:
        outcome = ""
        if result is not None and result.best is not None and result.speedup is not None:
            outcome = (
                f"{result.best.measurement.latency_ms:.4g} "
                f"ms{' est.' if result.estimated else ''}, {result.speedup:.2f}x"
            )
        click.echo(
            f"{run.id}  {_seen_state(run, state):11}  {run.problem.name:24} {run.target:8} "
            f"{outcome}"
        )


def _seen_state(run: "Run", state: "RunState") -> str:
    """The state in memory, but "killed" for a run that nobody works on any more and that could not
    say so.
    """
    from kmem.records import RunState
    from kmem.run.directory import is_worked_on

    return (
        "killed"
        if state is RunState.RUNNING and not is_worked_on(Path(run.out_dir))
        else state.value
    )


def _run_summary(run: "Run", state: "RunState", result: "RunResult | None") -> dict[str, object]:
    """Times in ms; null while the run has no result, or where nothing beat the best baseline."""
    return {
        "run": run.id,
        "problem": run.problem.name,
        "target": run.target,
        "state": _seen_state(run, state),
        "latency_ms": result.best.measurement.latency_ms if result and result.best else None,
        "speedup": result.speedup if result else None,
        "estimated": result.estimated if result else None,
        "out": run.out_dir,
    }


@runs.command("show")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--round",
    "number",
    type=click.IntRange(min=0),
    help="One round whole: prompts, answers, candidates, profiles, verdicts.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: the run with its diagnoses and attempts, or the round.",
)
def show_run(run_id: str, number: int | None, as_json: bool) -> None:
    """Show what a run tried and why. RUN may be a unique prefix of its id."""
    from kmem.cli.rounds import describe_whole_round, read_round, whole_round_data
    from kmem.memory.store import Memory
    from kmem.serialize import to_data

    with Memory() as memory:
        run = memory.runs.get(run_id)
        if number is not None:
            found = read_round(memory, run.id, number)
            click.echo(
                json.dumps(whole_round_data(found)) if as_json else describe_whole_round(found)
            )
            return
        state = memory.runs.state(run.id)
        result = memory.runs.result(run.id)
        attempts = memory.runs.attempts(run.id)
        diagnoses = memory.runs.diagnoses(run.id)
    if as_json:
        summary = _run_summary(run, state, result)
        found = {
            "diagnoses": [to_data(entry) for entry in diagnoses],
            "attempts": [to_data(attempt) for attempt in attempts],
        }
        click.echo(json.dumps({**summary, **found}))
        return
    click.echo(
        f"{run.id}  {state.value}  {run.problem.name} on {run.target}, precision "
        f"{run.contract.precision.value}, in {run.out_dir}"
    )
    click.echo(f"authors {', '.join(run.authors)}; strategy {run.strategy.value}")
    for entry in diagnoses:
        click.echo(f"round {entry.round}: {entry.diagnosis.summary}")
    for number, attempt in enumerate(attempts, 1):
        latency_ms = attempt.measurement.latency_ms
        time = (
            f"{latency_ms:.4g} ms{' est.' if attempt.measurement.estimated else ''}"
            if latency_ms is not None
            else ""
        )
        task, kernel = attempt.candidate.task, attempt.candidate.kernel
        descent = f"{kernel.hash[:8]} from {kernel.parent[:8] if kernel.parent else '-':8}"
        status = attempt.measurement.status.value
        click.echo(
            (
                f"{number:4} round {attempt.round} {descent} {task.move.value:6} {task.skill:28} "
                f"{status:14} {time}"
            ).rstrip()
        )
    if result is not None:
        from kmem.run.report import summarise

        click.echo(summarise(result))


@runs.command("resume")
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def resume_run(registry: Registry, run_id: str, as_json: bool) -> None:
    """Go on with a run that was interrupted or killed; finished measurements are not repeated.

    RUN may be a unique prefix.
    """
    from kmem.cli.optimize import execute_run
    from kmem.devices import resolve_target
    from kmem.memory.store import Memory

    with Memory() as memory:
        run = memory.runs.get(run_id)
        attempts = memory.runs.attempts(run.id)
    _, present = resolve_target(run.target)
    if any(attempt.measurement.estimated is present for attempt in attempts):
        where = "without a GPU, by estimates" if present else f"on a GPU ({run.target})"
        raise TargetError(
            f"Run {run.id} was begun {where}; resume it on such a machine, or start anew with kmem "
            f"optimize"
        )
    execute_run(run, registry, as_json=as_json)


@runs.command("replay")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory of the second walk; default: runs/replay-<run id>-<time>.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: whether it was identical, and the differences.",
)
@click.pass_obj
def replay(registry: Registry, run_id: str, out: Path | None, as_json: bool) -> None:
    """Walk a finished run again from what was recorded: no network, no GPU.

    Answers of language models, measurements and profiles are those of then; everything else is
    decided anew. Exit code 0: same plans, same prompts, same attempts in the same order, same end;
    1: something differs, and is named. RUN may be a unique prefix of its id.
    """
    from datetime import UTC, datetime

    from kmem.cli.optimize import Progress
    from kmem.memory.store import Memory
    from kmem.run.replay import replay_run

    with Memory() as memory:
        run = memory.runs.get(run_id)
        place = out or Path("runs") / f"replay-{run.id}-{datetime.now(UTC):%H%M%S}"
        with Progress(run) as show:
            differences = replay_run(run, place, registry, memory, show)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "run": run.id,
                    "identical": not differences,
                    "differences": differences,
                    "out": str(place),
                }
            )
        )
    elif differences:
        click.echo("\n".join(differences))
    else:
        click.echo(f"identical: {run.id} walked again in {place}")
    if differences:
        raise SystemExit(1)
