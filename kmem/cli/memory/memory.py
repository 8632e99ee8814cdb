"""`kmem memory`: share what was measured, take back what was wrong, and count what is there."""

import json
from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.memory.db import check_database
from kmem.cli.memory.team import name_contributor, sync, trust
from kmem.cli.options.ablation import AblationOptions
from kmem.cli.options.records import option, takes
from kmem.errors import MemoryStoreError
from kmem.memory.ledger.track_records import installed_versions
from kmem.memory.stats import memory_stats, skill_stats
from kmem.memory.store import Memory, default_db_path
from kmem.memory.team.exchange import Exchanged, export_outcomes, import_outcomes, merge_memory
from kmem.plugins import Registry
from kmem.serialize import to_data

#: Skills that `kmem memory stats` prints, the most tried first.
_SKILLS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """What goes along with outcomes that are shared, and under which licence."""

    sources: bool = option(
        "--sources/--no-sources",
        default=True,
        show_default=True,
        help="Whether the texts of kernels go along.",
    )
    redact: bool = option(
        "--redact",
        is_flag=True,
        help="Leave out source code, problem names, graphs and shapes: only recipes, knobs, "
        "signatures and ratios go.",
    )
    licence: str | None = option(
        "--licence",
        help="Licence your outcomes are under, such as CC-BY-4.0; stated once, it stays.",
    )


@click.group(invoke_without_command=True)
@click.pass_context
def memory(ctx: click.Context) -> None:
    """Share, merge, retract and count measured outcomes (default: stats)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(stats)


@memory.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@takes(SharingOptions)
@click.option(
    "--without",
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="Leave out what PATH holds, an exported file or a directory of them: what is new goes.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace FILE even if it is no export, or holds more than the new one.",
)
def export(file: Path, options: SharingOptions, without: Path | None, force: bool) -> None:
    """Write every outcome and retraction to FILE as JSON lines, each under its content hash.

    FILE is replaced when all is written, by nothing that holds less.
    """
    if not default_db_path().is_file():
        raise MemoryStoreError(
            f"No database at {default_db_path()}, so there is nothing to export; check KMEM_DB"
        )
    with Memory.to_read() if options.licence is None else Memory() as store:
        if options.licence is not None:
            store.contributors.set_licence(store.contributors.own_name, options.licence)
        written = export_outcomes(
            store,
            file,
            sources=options.sources,
            redact=options.redact,
            force=force,
            without=without,
        )
    click.echo(f"{file}: {_count(written)}", err=True)


@memory.command("import")
@click.argument("path", type=click.Path(path_type=Path))
def import_(path: Path) -> None:
    """Merge PATH, an exported file or a directory of them (*.jsonl), into the database.

    Repeating it changes nothing.
    """
    with Memory() as store:
        added = import_outcomes(store, path)
    click.echo(f"Added {_count(added)}", err=True)


@memory.command("merge")
@click.argument("other", metavar="OTHER.db", type=click.Path(path_type=Path))
def merge(other: Path) -> None:
    """Merge another kmem database into this one.

    OTHER.db is only read, and repeating it changes nothing.
    """
    with Memory() as store:
        added = merge_memory(store, other)
    click.echo(f"Added {_count(added)}", err=True)


def _count(exchanged: Exchanged) -> str:
    return (
        f"{exchanged.outcomes} outcomes, {exchanged.retractions} retractions, "
        f"{exchanged.kernels} kernels"
    )


@memory.command("retract")
@click.argument("outcome", metavar="HASH")
@click.option(
    "--reason", required=True, help="Why the outcome no longer counts; it is kept and shared."
)
def retract(outcome: str, reason: str) -> None:
    """Record that the outcome HASH (or a unique prefix) no longer counts; nothing is deleted."""
    with Memory() as store:
        retraction = store.ledger.retract(
            store.ledger.resolve(outcome), reason, store.contributors.own_name
        )
    click.echo(retraction.outcome_hash)


@memory.command("rebuild")
def rebuild() -> None:
    """Derive what skills earned again from the whole ledger, and say whether anything differed."""
    with Memory() as store:
        found = store.track_records.rebuild()
    difference = (
        f"{found.differing} differed from what was kept" if found.differing else "nothing differed"
    )
    click.echo(f"{found.sums} sums derived again; {difference}")


@memory.command("ablate")
@click.argument("suite", metavar="SUITE", type=click.Path(file_okay=False, path_type=Path))
@takes(AblationOptions)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as one JSON object on stdout."
)
@click.pass_obj
def ablate(registry: Registry | None, suite: Path, options: AblationOptions, as_json: bool) -> None:
    """Measure what memory is worth: repeat searches with and without it on recorded landscapes.

    SUITE is a directory that kmem bench --record made, such as db/evidence/landscapes. Every search
    is kmem's own loop; only its measurements come from the record, so no GPU is needed and the same
    command gives the same table. The memories of this machine are not touched.

    \b
    off      no memory
    read     the outcomes of searches of the other problems, never of the problem itself
    rw       a memory that grows from problem to problem, in an order shuffled by the seed
    placebo  as read, every result dealt anew over all outcomes: as much memory, no information
    shuffled as read, settings dealt anew over each recipe's results: that searches end, not by what
    poison   as read, told by a stranger the wrong way round: the slowest as the fastest
    oracle   the best recorded setting of the nearest other size

    Columns: measurements and rounds until a kernel has 95% of the best recorded speed (a search
    that never arrives is charged for every recorded setting), the share that arrived, the share of
    measurements saved, the measurements of whole runs over those without memory, the final speed
    over that without memory, and over that of best-of-n by as many measurements, the area gained
    under the best speed so far, negative transfer (the share of searches that end more than 2%
    slower than the one without memory of the same problem and seed), and beside it the shares that
    need more measurements, be it one, and later rounds to get there.

    Of a landscape whose recording was cut off, the settings recorded until then are all there is;
    which these are is said.
    """
    from kmem.cli.actions.ablate import ablate_suite  # loads torch, for this command alone

    ablate_suite(suite, options, registry, as_json=as_json)


@memory.command("verify")
def verify() -> None:
    """Check the whole file and derive every content hash again; the same as `kmem db verify`."""
    check_database()


@memory.command("stats")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of lines.")
def stats(as_json: bool = False) -> None:
    """Count what the memory holds, and say what each skill that was tried is expected to do.

    Kernels that were recalled and passed again are counted apart: they are no new successes of a
    skill.
    """
    with Memory.to_read() as store:
        counts, skills = to_data(memory_stats(store)), skill_stats(store, installed_versions())
    if as_json:
        click.echo(json.dumps(counts | {"posteriors": [to_data(skill) for skill in skills]}))
        return
    if not default_db_path().is_file():
        click.echo("There is no database there yet; the first run makes it", err=True)
    for name, value in counts.items():
        click.echo(f"{name}: {value}")
    for skill in skills[:_SKILLS_SHOWN]:
        click.echo(
            f"{skill.skill}: {skill.tried} tried, {skill.passed} passed, {skill.recalled} "
            f"recalled; of the next, cautiously: {skill.correct:.0%} correct, "
            f"{skill.improves:.0%} of those improve, {skill.speedup:.2f}x"
        )
    if len(skills) > _SKILLS_SHOWN:
        click.echo(
            f"and {len(skills) - _SKILLS_SHOWN} skills more: kmem memory stats --json", err=True
        )


for command in (sync, name_contributor, trust):
    memory.add_command(command)
