"""`kmem memory sync`, `name` and `trust`: what a team shares, and how much it counts."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.records import option, takes
from kmem.curate.team_skills import ReceivedSkills, contribute_skills, receive_skills
from kmem.memory.ledger.contributors import Contribution
from kmem.memory.store import Memory
from kmem.memory.team.names import checked_name, find_name
from kmem.memory.team.sync import (
    Synced,
    SyncSettings,
    clone_path,
    contribute_nothing,
    remembered_settings,
    sync_memory,
)
from kmem.plugins import Registry


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """What a sync takes along; what is not said is as at the last sync."""

    sources: bool | None = option(
        "--sources/--no-sources",
        default=None,
        help="Whether the texts of kernels go along; at first they do.",
    )
    redact: bool | None = option(
        "--redact/--no-redact",
        default=None,
        help="Leave out source code, problem names, graphs, shapes and skills: only recipes, "
        "knobs, signatures and ratios go.",
    )
    imported: bool | None = option(
        "--imported/--no-imported",
        default=None,
        help="Also publish what was imported here and nobody has published there.",
    )
    skills: bool = option(
        "--skills/--no-skills",
        default=True,
        show_default=True,
        help="Whether skills travel too, both ways.",
    )
    trust_code: bool = option(
        "--trust-code", is_flag=True, help="Take the recipe.py of others' skills too: it is code."
    )
    licence: str | None = option(
        "--licence",
        help="Licence your outcomes are under, such as CC-BY-4.0; stated once, it stays.",
    )

    def settings(self, remote: str | None, last: SyncSettings | None) -> SyncSettings:
        """With what was said the last time. Raises UsageError without any remote."""
        if remote is None and last is None:
            raise click.UsageError(
                "Say where to: kmem memory sync REMOTE, the address of a git repository; it is "
                "remembered"
            )
        known = last or SyncSettings(str(remote))

        def chosen(said: bool | None, before: bool) -> bool:
            return before if said is None else said

        return SyncSettings(
            remote or known.remote,
            chosen(self.sources, known.sources),
            chosen(self.redact, known.redact),
            chosen(self.imported, known.imported),
        )


@click.command("sync")
@click.argument("remote", required=False)
@takes(SyncOptions)
@click.pass_obj
def sync(registry: Registry | None, remote: str | None, options: SyncOptions) -> None:
    """Merge what others published at the git repository REMOTE, and publish what was measured here.

    REMOTE and what goes along are remembered: later syncs need neither. Everything lies on the
    branch kmem-memory, in files that are only ever added, one directory per contributor. Skills
    that were made or distilled here travel too; the code of others' skills is left out without
    --trust-code.
    """
    with Memory() as store:
        settings = options.settings(remote, remembered_settings(store))
        own_name = store.contributors.own_name
        shares_skills = options.skills and not settings.redact

        def contribute(clone: Path) -> int:
            return contribute_skills(store.path, clone, own_name)

        done = sync_memory(
            store,
            settings.remote,
            sources=settings.sources,
            redact=settings.redact,
            licence=options.licence,
            imported=settings.imported,
            contribute=contribute if shares_skills else contribute_nothing,
        )
        received = ReceivedSkills()
        if options.skills:
            received = receive_skills(
                clone_path(store, settings.remote),
                store.path,
                registry.skills if registry is not None else {},
                trust_code=options.trust_code,
            )
        name = find_name(store, redact=settings.redact)
    click.echo(_describe_sync(done, f"{name} ({own_name})" if name else own_name), err=True)
    for reason in done.refused:
        click.echo(f"Not merged: {reason}", err=True)
    _tell_skills(done.contributed, received)


def _describe_sync(done: Synced, who: str) -> str:
    published = (
        f"published {_counted(done.published, 'record')}"
        if done.published
        else "published nothing: there was nothing new of its own"
    )
    return (
        f"Merged {_counted(done.merged.outcomes, 'outcome')} and "
        f"{_counted(done.merged.retractions, 'retraction')} of "
        f"{_counted(done.segments, 'new segment')}; {published} as {who}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tell_skills(contributed: int, received: ReceivedSkills) -> None:
    if contributed:
        click.echo(f"Published {_counted(contributed, 'skill')}", err=True)
    if received.added:
        click.echo(
            f"Added {_counted(len(received.added), 'skill')}: {', '.join(received.added)}", err=True
        )
    if received.without_recipe:
        click.echo(
            f"Left out the code of {', '.join(received.without_recipe)}; kmem memory sync "
            f"--trust-code takes it",
            err=True,
        )
    for reason in received.refused:
        click.echo(f"Not added: {reason}", err=True)


@click.command("name")
@click.argument("name", required=False)
def name_contributor(name: str | None) -> None:
    """Say what you are called among those who share outcomes, or show it.

    Without it, KMEM_CONTRIBUTOR or git's user.name goes along with what `kmem memory sync`
    publishes; with --redact only a name that was given to kmem does.
    """
    with Memory() if name is not None else Memory.to_read() as store:
        if name is not None:
            store.contributors.set_name(checked_name(name))
        known = find_name(store, redact=False)
    click.echo(known if known is not None else "no name yet: kmem memory name NAME")


@click.command("trust")
@click.argument("origin", metavar="[NAME]", required=False)
@click.argument("level", type=click.FloatRange(0.0, 1.0), required=False)
def trust(origin: str | None, level: float | None) -> None:
    """Show whose outcomes are here and how much they count, or let NAME's count LEVEL.

    NAME is what a contributor is called, or its own name or the beginning of that. LEVEL is from 0
    (not at all) to 1 (as if measured here). Unless set, outcomes measured here count 1 and those of
    others 0.5.

    Whoever writes a file may put any name into it, but what is imported never counts as measured
    here: under this memory's own name it stands as "claims to be NAME".
    """
    if origin is not None and level is None:
        raise click.UsageError("Say how much it counts: kmem memory trust NAME LEVEL")
    with Memory.to_read() if origin is None else Memory() as store:
        if origin is not None and level is not None:
            store.contributors.set_trust(store.contributors.resolve(origin), level)
        for line in _contributor_lines(store):
            click.echo(line)


def _contributor_lines(store: Memory) -> list[str]:
    contributors = store.contributors
    levels, own_name = contributors.trust(), contributors.own_name
    names = contributors.names()
    found, licences = contributors.contributions(), contributors.licences()
    shown = {*found, own_name, *levels.levels}
    lines = []
    for one in sorted(shown):
        called = f"{names[one]} ({one})" if one in names else one
        here = " (this memory)" if one == own_name else ""
        given = found.get(one)
        lines.append(
            f"{called}{here}: trust {levels.weight(one):g}, {_describe_given(given)}, "
            f"licence {licences.get(one, 'not stated')}"
        )
    return lines


def _describe_given(given: Contribution | None) -> str:
    if given is None:
        return "0 outcomes"
    return (
        f"{_counted(given.outcomes, 'outcome')} on {', '.join(given.devices)}, the last "
        f"{given.last}"
    )
