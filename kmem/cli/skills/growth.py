"""The commands of `kmem skills` that change or share the library.

They are add, remove, distill, retract and export.
"""

import json
import shutil
from pathlib import Path

import click

from kmem.cli.options.run_name import RUN_NAME
from kmem.cli.skills.registered_skills import find_skill, load_skills
from kmem.curate.distill import distill_runs
from kmem.curate.export import export_skills
from kmem.curate.sources import add_from, forget_source
from kmem.errors import NotRegistered
from kmem.memory.location import added_skills_root, default_db_path
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.serialize import to_data
from kmem.skills import load_skill
from kmem.skills.form import is_name


@click.command("add")
@click.argument("source")
@click.option(
    "--trust-code",
    is_flag=True,
    help="Keep, and import once, a recipe.py that was not made here; otherwise it is left out.",
)
@click.pass_obj
def add_skill(registry: Registry, source: str, trust_code: bool) -> None:
    """Add skills from SOURCE to your own.

    SOURCE is a directory, a SKILL.md, a .zip or a .tar.gz, here or at an http(s) URL, or a git
    repository (https, ssh, file:// or PATH.git, with @REVISION and #SUBDIRECTORY if wanted).
    Several skills are added together or not at all. A recipe.py is code: it is left out, unless
    the skill was made here with `kmem skills new` or you trust it by --trust-code. One that is kept
    is imported in a confined process first, to check it.
    """
    db_path = default_db_path()
    for added in add_from(source, db_path, registry.skills, trust_code=trust_code):
        click.echo(str(added.path))
        if added.recipe_left_out:
            click.echo(
                f"{added.name}: text only; its recipe.py is code from elsewhere: read it, then "
                "add again with --trust-code",
                err=True,
            )
        with Memory() as memory:
            retraction = memory.standings.of(load_skill(added.path)).retraction
        if retraction is not None:
            click.echo(
                f"{added.name} stays retracted ({retraction.reason}): it is neither offered nor "
                "run; a mended skill needs another name",
                err=True,
            )


@click.command("remove")
@click.argument("name")
@click.pass_obj
def remove_skill(registry: Registry, name: str) -> None:
    """Remove a skill that you added.

    Its directory beside the database is deleted. What was measured with it stays. A skill that
    ships with kmem, or is a plugin's, is not removed but retracted.
    """
    root = added_skills_root(default_db_path())
    path = root / name
    # a broken skill can be removed too, so only the directory is asked for
    if not is_name(name) or registry.skills.get(name, path) != path or not path.is_dir():
        known = "is not one that you added" if name in registry.skills else "is not known"
        raise NotRegistered(
            f"Skill '{name}' {known}; what was added lies in {root}, and "
            "`kmem skills retract` keeps any other skill from being used"
        )
    forget_source(default_db_path(), name)
    shutil.rmtree(path)
    click.echo(f"{name} is removed from {root}", err=True)


@click.command("distill")
@click.argument("run_id", metavar="[RUN]", type=RUN_NAME, required=False)
@click.option(
    "--all", "every", is_flag=True, help="Distill every run of this memory instead of one."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for a copy of each draft, to review or share.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: drafts, knobs and left_out."
)
@click.pass_obj
def distill(
    registry: Registry, run_id: str | None, every: bool, out: Path | None, as_json: bool
) -> None:
    """Turn measured wins of runs into draft skills.

    Prints the drafts' directories. RUN may be a unique prefix of a run's id, its directory, or a
    problem's name, for its latest run. A win is an attempt that beat the kernel it was made from,
    its interval above 1. What existing skills explain, other recipes or knobs, is on their record
    already and becomes no draft. A draft is verified once outcomes reproduced it on two problems
    and two seeds.
    """
    if every == (run_id is not None):
        raise click.UsageError("Say which run to distill: RUN, or --all")
    with Memory() as memory:
        every_run = [entry.run for entry in memory.run_entries.all()]
        runs = every_run if every else [memory.runs.get(run_id)]
        found = distill_runs(memory, runs, registry.skills, out)
    if as_json:
        click.echo(json.dumps(to_data(found), indent=2))
        return
    for draft in found.drafts:
        known = "New draft" if draft.is_new else "Known already:"
        click.echo(f"{known} {draft.name}: {draft.effect} in run {draft.run}", err=True)
    for path in dict.fromkeys(draft.path for draft in found.drafts):
        click.echo(path)
    for knob in found.knobs:
        click.echo(
            f"On the record of {', '.join(knob.skills)}, no draft: {knob.change}, {knob.effect} in "
            f"run {knob.run}",
            err=True,
        )
    for reason in found.left_out:
        click.echo(f"No win: {reason}", err=True)
    if not (found.drafts or found.knobs or found.left_out):
        click.echo(f"No measured win in {len(runs)} runs", err=True)


@click.command("retract")
@click.argument("name")
@click.option(
    "--reason", required=True, help="Why it is no longer to be used; it is kept and shared."
)
@click.pass_obj
def retract_skill(registry: Registry, name: str, reason: str) -> None:
    """Record that a skill is to be used no more.

    It is neither offered nor run any longer; nothing is deleted, and its outcomes stay. Others get
    the retraction by `kmem memory sync`, and nothing takes it back. It is of this content: a mended
    skill is another one, under another name.
    """
    with Memory() as memory:
        retraction = memory.standings.retract(find_skill(registry, name), reason)
    click.echo(retraction.hash)
    click.echo(
        f"{name} is retracted: {retraction.reason}. It is neither offered nor run; its outcomes "
        "stay",
        err=True,
    )


@click.command("export")
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory to lay them out in.",
)
@click.option(
    "--only", default="*", show_default=True, help="Shell pattern on names, such as '*softmax*'."
)
@click.pass_obj
def export(registry: Registry, directory: Path, only: str) -> None:
    """Lay skills out as folders for coding agents.

    One directory a skill, in the Agent Skills format, and an index in README.md. Doing so again
    brings the directory up to date. Files that no export wrote, or that were changed since, are
    never overwritten.
    """
    library = load_skills(registry)
    with Memory() as memory:
        done = export_skills(library, memory.standings.of_each(library), directory, only)
    click.echo(str(directory))
    click.echo(
        f"{done.skills} skills: {done.written} files written, {done.unchanged} unchanged, "
        f"{done.removed} removed",
        err=True,
    )
