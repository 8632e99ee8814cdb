"""`kmem why`: what a round of a run saw, was offered, decided and got, and why."""

import json

import click

from kmem.cli.options.run_name import RUN_NAME
from kmem.cli.runs.rounds import describe_round, no_such_round, read_rounds, round_data
from kmem.memory.store import Memory


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
@click.argument("number", metavar="[ROUND]", type=click.IntRange(min=0), required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: the rounds under `rounds`."
)
def why(run_id: str, number: int | None, as_json: bool) -> None:
    """Say why RUN did what it did in ROUND (default: in every round).

    Shows the diagnosis with its evidence, each skill offered with its reasons, what was planned and
    what was vetoed, what came of it beside what was predicted, and what was learnt: claims that the
    next profile settled.
    RUN may be a unique prefix of its id, its directory, or a problem's name, for its latest run.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        failure = memory.run_entries.one(run.id).failure
        rounds = {
            found.number: found
            for found in read_rounds(memory, run.id).values()
            if found.diagnoses or found.plan is not None
        }
    if number is not None and number not in rounds:
        raise no_such_round(run.id, number, rounds)
    shown = list(rounds.values()) if number is None else [rounds[number]]
    if as_json:
        data = {
            "run": run.id,
            "failure": failure or None,
            "rounds": [round_data(found) for found in shown],
        }
        click.echo(json.dumps(data))
        return
    for found in shown:
        click.echo(describe_round(found))
    if failure and number is None:
        click.echo(f"The run did not finish: {failure}")
