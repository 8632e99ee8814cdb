"""`kmem runs`: list, show, resume and replay runs."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from kmem.cli.exit_codes import EXIT_REPLAY_DIFFERS
from kmem.cli.rounds import describe_whole_round, read_whole_round, whole_round_data
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Attempt, Measurement, Run, RunResult, RunState
from kmem.run.directory import is_worked_on
from kmem.run.report import summarise
from kmem.serialize import to_data


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
    with Memory() as memory:
        found = memory.runs.all()
    if as_json:
        listed = [_run_data(run, state, result) for run, state, result in found]
        click.echo(json.dumps({"runs": listed}))
        return
    for run, state, result in found:
        outcome = ""
        if result is not None and result.best is not None and result.speedup is not None:
            outcome = f"{_time(result.best.measurement)}, {result.speedup:.2f}x"
        click.echo(
            f"{run.id}  {_seen_state(run, state):11}  {run.problem.name:24} {run.target:8} "
            f"{outcome}"
        )


def _time(measurement: Measurement) -> str:
    if measurement.latency_ms is None:
        return ""
    return f"{measurement.latency_ms:.4g} {'ms est.' if measurement.estimated else 'ms'}"


def _seen_state(run: Run, state: RunState) -> str:
    """The state in memory, but "killed" for a run that ended without a word."""
    killed = state is RunState.RUNNING and not is_worked_on(Path(run.out_dir))
    return "killed" if killed else state.value


def _run_data(run: Run, state: RunState, result: RunResult | None) -> dict[str, object]:
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
    """Show what a run tried and why.

    RUN may be a unique prefix of its id.
    """
    with Memory() as memory:
        run = memory.runs.get(run_id)
        if number is not None:
            whole = read_whole_round(memory, run.id, number)
            click.echo(
                json.dumps(whole_round_data(whole)) if as_json else describe_whole_round(whole)
            )
            return
        state = memory.runs.state(run.id)
        result = memory.runs.result(run.id)
        attempts = memory.runs.attempts(run.id)
        diagnoses = memory.runs.diagnoses(run.id)
    if as_json:
        data = _run_data(run, state, result) | {
            "diagnoses": [to_data(entry) for entry in diagnoses],
            "attempts": [to_data(attempt) for attempt in attempts],
        }
        click.echo(json.dumps(data))
        return
    click.echo(
        f"{run.id}  {state.value}  {run.problem.name} on {run.target}, precision "
        f"{run.contract.precision.value}, in {run.out_dir}"
    )
    click.echo(f"authors {', '.join(run.authors)}; strategy {run.strategy.value}")
    for entry in diagnoses:
        click.echo(f"round {entry.round}: {entry.diagnosis.summary}")
    for place, attempt in enumerate(attempts, 1):
        click.echo(f"{place:4} {_describe_attempt(attempt)}")
    if result is not None:
        click.echo(summarise(result))


def _describe_attempt(attempt: Attempt) -> str:
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    descent = f"{kernel.hash[:8]} from {kernel.parent[:8] if kernel.parent else '-':8}"
    status = attempt.measurement.status.value
    return (
        f"round {attempt.round} {descent} {task.move.value:6} {task.skill:28} {status:14} "
        f"{_time(attempt.measurement)}"
    ).rstrip()


@runs.command("resume")
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def resume_run(registry: Registry, run_id: str, as_json: bool) -> None:
    """Go on with a run that was interrupted or killed; finished measurements are not repeated.

    RUN may be a unique prefix.
    """
    from kmem.cli.actions.optimize import resume  # loads torch, for this command alone

    resume(run_id, registry, as_json=as_json)


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
    from kmem.cli.actions.replay import walk_again  # loads torch, for this command alone

    with Memory() as memory:
        run = memory.runs.get(run_id)
        place = out or Path("runs") / f"replay-{run.id}-{datetime.now(UTC):%H%M%S}"
        differences = walk_again(run, place, registry, memory)
    if as_json:
        data = {
            "run": run.id,
            "identical": not differences,
            "differences": differences,
            "out": str(place),
        }
        click.echo(json.dumps(data))
    elif differences:
        click.echo("\n".join(differences))
    else:
        click.echo(f"identical: {run.id} walked again in {place}")
    if differences:
        raise SystemExit(EXIT_REPLAY_DIFFERS)
