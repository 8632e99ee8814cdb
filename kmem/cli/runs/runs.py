"""`kmem runs`: list, show, resume and replay runs; past_runs.py compares and removes them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from kmem.cli.display.entries import describe_entry, describe_measured, entry_data, seen_state
from kmem.cli.display.picture import show_picture
from kmem.cli.exit_codes import EXIT_REPLAY_DIFFERS
from kmem.cli.options.past_runs import RunFilter, read_moment
from kmem.cli.options.records import nested, option, takes
from kmem.cli.options.run_name import RUN_NAME, holds_several_runs
from kmem.cli.runs.past_runs import compare, diff, prune
from kmem.cli.runs.rounds import describe_whole_round, read_whole_round, whole_round_data
from kmem.explore.models.cost.budget import Spending
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Attempt, Budget
from kmem.run.directory import default_run_directory
from kmem.run.report.costs import count_wins, describe_costs
from kmem.run.report.first_screen import summarise
from kmem.serialize import to_data


@click.group(invoke_without_command=True)
@click.pass_context
def runs(ctx: click.Context) -> None:
    """List, show, compare, resume, replay and prune runs (default: list)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_runs)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Which runs a list has."""

    filter: RunFilter = nested(RunFilter)
    since: str | None = option(
        "--since",
        metavar="WHEN",
        help="Only runs begun since a date (2026-01-31) or within a time (12h, 7d).",
    )


@runs.command("list")
@takes(ListOptions)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all runs under `runs`."
)
def list_runs(options: ListOptions, as_json: bool) -> None:
    """List runs, newest first: when (UTC), state, problem, device, and what came of each."""
    with Memory.to_read() as memory:
        entries = memory.run_entries.all()
    earliest = read_moment(options.since, "--since") if options.since is not None else ""
    found = [entry for entry in options.filter.choose(entries) if entry.run.created_at >= earliest]
    if as_json:
        click.echo(json.dumps({"runs": [entry_data(entry) for entry in found]}))
        return
    for entry in found:
        click.echo(describe_entry(entry))
    if not entries:
        click.echo("No runs yet; kmem optimize PROBLEM makes one", err=True)
    elif not found:
        click.echo(f"None of {len(entries)} runs is so", err=True)


@runs.command("show")
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
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

    RUN may be a unique prefix of its id, its directory, or a problem's name, for its latest run.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        if number is not None:
            whole = read_whole_round(memory, run.id, number)
            click.echo(
                json.dumps(whole_round_data(whole)) if as_json else describe_whole_round(whole)
            )
            return
        entry = memory.run_entries.one(run.id)
        attempts = memory.runs.attempts(run.id)
        diagnoses = memory.runs.diagnoses(run.id)
        usage = Spending(Budget(), RunArchive(memory.path, run.id)).usage()
    if as_json:
        data = entry_data(entry) | {
            "diagnoses": [to_data(entry) for entry in diagnoses],
            "attempts": [to_data(attempt) for attempt in attempts],
            "usage": [to_data(row) for row in usage],
            "wins": count_wins(attempts),
        }
        click.echo(json.dumps(data))
        return
    click.echo(
        f"{run.id}  {seen_state(entry)}  {run.problem.name} on {run.target}, precision "
        f"{run.contract.precision.value}, in {run.out_dir}"
    )
    if entry.failure:
        click.echo(f"not finished: {entry.failure}")
    click.echo(f"authors {', '.join(run.authors)}; strategy {run.strategy.value}")
    for entry in diagnoses:
        click.echo(f"round {entry.round}: {entry.diagnosis.summary}")
    for place, attempt in enumerate(attempts, 1):
        click.echo(f"{place:4} {_describe_attempt(attempt)}")
    for line in describe_costs(usage, attempts):
        click.echo(line)
    if entry.result is not None:
        show_picture(Console(), entry.result, attempts)
        click.echo(summarise(entry.result))


def _describe_attempt(attempt: Attempt) -> str:
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    descent = f"{kernel.hash[:8]} from {kernel.parent[:8] if kernel.parent else '-':8}"
    status = attempt.measurement.status.value
    return (
        f"round {attempt.round} {descent} {task.move.value:6} {task.skill:28} {status:14} "
        f"{describe_measured(attempt.measurement)}"
    ).rstrip()


@runs.command("resume")
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def resume_run(registry: Registry, run_id: str, as_json: bool) -> None:
    """Go on with a run that was interrupted or killed; finished measurements are not repeated.

    RUN may be a unique prefix of its id, a problem's name, for its latest run, or its directory, as
    that of a run on a whole model is.
    """
    if holds_several_runs(Path(run_id)):
        from kmem.cli.actions.whole_run import resume_model  # loads torch

        resume_model(Path(run_id), registry, as_json=as_json)
        return
    from kmem.cli.actions.optimize import resume  # loads torch, for this command alone

    resume(run_id, registry, as_json=as_json)


@runs.command("replay")
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory of the second walk; default: replay-<run id>-<time> in KMEM_OUT, or in runs/.",
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
    1: something differs, and is named. RUN may be a unique prefix of its id, its directory, or
    a problem's name, for its latest run.
    """
    from kmem.cli.actions.replay import walk_again  # loads torch, for this command alone

    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        place = out or default_run_directory(f"replay-{run.id}-{datetime.now(UTC):%H%M%S}")
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


for command in (compare, diff, prune):
    runs.add_command(command)
