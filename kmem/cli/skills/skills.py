"""`kmem skills`: what the library of skills knows and what each skill earned."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.display.skills import (
    describe_gates,
    describe_status,
    describe_track_record,
    hit_data,
    print_hits,
    print_list,
    print_markdown,
    skill_data,
)
from kmem.cli.group import LazyCommand
from kmem.cli.options.records import option, takes
from kmem.cli.skills.registered_skills import find_skill, load_skills
from kmem.curate.search import Question, search_library
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Bottleneck
from kmem.serialize import to_data
from kmem.skills import Skill
from kmem.vocabulary import OPERATORS


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What narrows a search for skills."""

    operators: tuple[str, ...] = option(
        "--op",
        multiple=True,
        help="Only skills about this operator, such as max_pool; may be repeated.",
    )
    arch: str | None = option("--arch", help="Only skills for this architecture, such as sm_90.")
    report: Path | None = option(
        "--ncu",
        type=click.Path(path_type=Path),
        help="Also match the bottleneck of this Nsight Compute report (CSV).",
    )
    limit: int = option(
        "--limit",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help="How many skills to print at most.",
    )


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What narrows a list of skills."""

    operators: tuple[str, ...] = option(
        "--op",
        multiple=True,
        help="Only skills about this operator, such as max_pool; may be repeated.",
    )
    bottleneck: str | None = option(
        "--bottleneck",
        type=click.Choice([each.value for each in Bottleneck]),
        help="Only skills that address this bottleneck.",
    )
    has_recipe: bool = option("--has-recipe", is_flag=True, help="Only skills with a recipe.")

    def holds(self, skill: Skill) -> bool:
        """Whether a skill is to be listed; one about any operator is about each."""
        addressed = {each.value for each in skill.bottlenecks}
        return (
            (not self.operators or skill.covers_operators(self.operators))
            and (self.bottleneck is None or not addressed or self.bottleneck in addressed)
            and (skill.has_recipe or not self.has_recipe)
        )


@click.group(invoke_without_command=True)
@click.pass_context
def skills(ctx: click.Context) -> None:
    """List, search, show, add, check, learn and export skills (default: list)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_skills)


@skills.command("list")
@takes(ListOptions)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all skills under `skills`."
)
@click.pass_obj
def list_skills(registry: Registry, options: ListOptions, as_json: bool = False) -> None:
    """List skills, a line each: name, status, whether it has a recipe, description.

    Its status is bundled, plugin, added, draft, verified (a draft that was reproduced) or
    retracted. A recipe acts in every run; a skill without one is prose for language models.
    """
    _check_operators(options.operators)
    library = [skill for skill in load_skills(registry) if options.holds(skill)]
    with Memory.to_read() as memory:
        standings = memory.standings.of_each(library)
    if as_json:
        listed = [skill_data(skill, standings[skill.name]) for skill in library]
        click.echo(json.dumps({"skills": listed}))
        return
    print_list(library, standings)


@skills.command("show")
@click.argument("name")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object instead of rendered text."
)
@click.pass_obj
def show_skill(registry: Registry, name: str, as_json: bool) -> None:
    """Show a skill's text and what it has earned.

    After the text: what it asks of a kernel and where it is forbidden, where it stands and why, and
    its track record, the outcomes measured here or imported.
    """
    from kmem.curate.sources import skill_source  # git and the network, which a search has not

    skill = find_skill(registry, name)
    with Memory.to_read() as memory:
        records = memory.track_records.of_skill(name)
        standing = memory.standings.of(skill)
        origin = skill_source(memory.path, name)
    if as_json:
        body = {
            "license": skill.license,
            "source": skill.source,
            "origin": to_data(origin) if origin else None,
            "body": skill.body,
            "record": [to_data(record) for record in records],
            "reproductions": [to_data(each) for each in standing.reproductions],
        }
        click.echo(json.dumps(skill_data(skill, standing) | body, indent=2))
        return
    print_markdown(
        f"# {skill.name}\n\n{skill.description}\n\n{skill.body}",
        f"## Combinations\n\n{describe_gates(skill)}",
        f"## Status\n\n{describe_status(standing, origin)}",
        f"## Track record\n\n{describe_track_record(records)}",
    )


@skills.command("search")
@click.argument("query", required=False, default="")
@takes(SearchOptions)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
@click.pass_obj
def search_skills(registry: Registry, query: str, options: SearchOptions, as_json: bool) -> None:
    """Search skills by meaning and by words.

    Prints of each what it is, how it acts (by a recipe, or as prose for a language model), why it
    was found, and what its recorded outcomes promise. Drafts come last and labelled; retracted
    skills are left out. If nothing in the library is about the question, that is said and nothing
    listed.
    """
    if not query and options.report is None:
        raise click.UsageError("Say what to search for: QUERY, --ncu FILE, or both")
    _check_operators(options.operators)
    diagnosis = None
    if options.report is not None:
        from kmem.cli.actions.stages import diagnose_report  # loads torch, for this option alone

        diagnosis = diagnose_report(options.report)
    found = search_library(
        registry,
        Question(query, options.operators, options.arch, diagnosis, options.limit),
        lambda text: click.echo(text, err=True),
    )
    if as_json:
        data = {
            "diagnosis": to_data(diagnosis) if diagnosis else None,
            "fits": found.fits,
            "skills": [
                hit_data(hit, found.skills[hit.name], found.standings[hit.name])
                for hit in found.hits
            ],
        }
        click.echo(json.dumps(data, indent=2))
        return
    if diagnosis is not None:
        click.echo(diagnosis.summary)
    print_hits(found.hits, found.skills, found.standings)
    if not found.fits:
        click.echo(
            f"No skill is about '{query}': none is near enough in meaning. Name an operator, a "
            "bottleneck or what a profile shows; `kmem skills vocabulary` lists the words",
            err=True,
        )
    elif not found.hits:
        click.echo("No skill fits; leave out --op or --arch, or use other words", err=True)


def _check_operators(operators: Sequence[str]) -> None:
    for name in operators:
        if name not in OPERATORS:
            raise click.BadParameter(
                f"'{name}' is not an operator; they are: {', '.join(OPERATORS)}", param_hint="--op"
            )


#: The other commands: name, module, object in it, and the first sentence of the help. They are
#: loaded when asked for: a search need not wait for what unpacks archives and tries kernels.
_TABLE = (
    ("new", "skill_files", "new_skill", "Start a skill: make the directory NAME with a SKILL.md."),
    ("validate", "skill_files", "validate_skills", "Print every fault of the skills."),
    (
        "try",
        "skill_files",
        "try_skill",
        "Try the recipe, the rewrite or the moves of skill NAME on PROBLEM.",
    ),
    ("vocabulary", "skill_files", "show_vocabulary", "List the words a SKILL.md may use."),
    ("add", "growth", "add_skill", "Add skills from SOURCE to your own."),
    ("remove", "growth", "remove_skill", "Remove a skill that you added."),
    ("distill", "growth", "distill", "Turn measured wins of runs into draft skills."),
    ("retract", "growth", "retract_skill", "Record that a skill is to be used no more."),
    ("export", "growth", "export", "Lay skills out as folders for coding agents."),
)
for name, module, function, summary in _TABLE:
    skills.add_command(LazyCommand(name, f"kmem.cli.skills.{module}", summary, function))
