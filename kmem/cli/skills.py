"""`kmem skills`: what the library knows and what it earned; the commands by which it grows are in
growth.py.

The registry of plugins comes as the click context's object; its `skills` maps names to directories.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.cli.growth import add_skill, distill, export, find_skill, load_skills, retract_skill
from kmem.errors import OutputError, SkillError

if TYPE_CHECKING:
    from kmem.curate.sources import SkillOrigin
    from kmem.memory.ledger.track_records import TrackRecord
    from kmem.memory.skills.search import SkillHit
    from kmem.memory.skills.standing import SkillStanding
    from kmem.plugins import Registry
    from kmem.records import Diagnosis
    from kmem.skills import Skill

# kmem.memory (sqlite_utils), rich and yaml are imported inside the commands: `kmem --help` must not
# pay for them.


@click.group(invoke_without_command=True)
@click.pass_context
def skills(ctx: click.Context) -> None:
    """List, search, show, add, check, learn and export skills (default: list)."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_skills)


@skills.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: all skills under `skills`."
)
@click.pass_obj
def list_skills(registry: "Registry", as_json: bool = False) -> None:
    """List skills and where each stands.

    Its status is bundled, plugin, added, draft, verified (a draft that was reproduced) or
    retracted.
    """
    from kmem.memory.store import Memory

    library = load_skills(registry)
    with Memory() as memory:
        standings = memory.standings.of_each(library)
    if as_json:
        click.echo(
            json.dumps({"skills": [_summary(skill, standings[skill.name]) for skill in library]})
        )
        return
    _print_table(
        ("skill", "status", "operators", "bottlenecks", "recipe"),
        [
            (
                skill.name,
                standings[skill.name].standing.value,
                " ".join(skill.operators),
                " ".join(item.value for item in skill.bottlenecks) or "any",
                "yes" if skill.has_recipe else "",
            )
            for skill in library
        ],
    )


@skills.command("show")
@click.argument("name")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object instead of rendered text."
)
@click.pass_obj
def show_skill(registry: "Registry", name: str, as_json: bool) -> None:
    """Show a skill's text and what it has earned.

    After the text: where it stands and why, and its track record, the outcomes measured here or
    imported.
    """
    from kmem.curate.sources import skill_source
    from kmem.memory.store import Memory
    from kmem.serialize import to_data

    skill = find_skill(registry, name)
    with Memory() as memory:
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
        click.echo(json.dumps(_summary(skill, standing) | body, indent=2))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(f"# {skill.name}\n\n{skill.description}\n\n{skill.body}"))
    console.print(Markdown(f"## Status\n\n{_status_text(standing, origin)}"))
    console.print(Markdown(f"## Track record\n\n{_track_record(records)}"))


@skills.command("search")
@click.argument("query", required=False, default="")
@click.option(
    "--op",
    "operators",
    multiple=True,
    help="Only skills about this operator, such as max_pool; may be repeated.",
)
@click.option("--arch", help="Only skills for this architecture, such as sm_90.")
@click.option(
    "--ncu",
    "report",
    type=click.Path(path_type=Path),
    help="Also match the bottleneck of this Nsight Compute report (CSV).",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many skills to print at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
@click.pass_obj
def search_skills(
    registry: "Registry",
    query: str,
    operators: tuple[str, ...],
    arch: str | None,
    report: Path | None,
    limit: int,
    as_json: bool,
) -> None:
    """Search skills by meaning and by words.

    Prints why each was found, and what its recorded outcomes promise. Drafts come last and
    labelled; retracted skills are left out.
    """
    from dataclasses import replace

    from kmem.memory.ledger.track_records import installed_versions
    from kmem.memory.store import Memory

    if not query and report is None:
        raise click.UsageError("Say what to search for: QUERY, --ncu FILE, or both")
    _check_operators(operators)
    diagnosis = None
    if report is not None:
        from kmem.cli.stages import diagnose_report

        diagnosis = diagnose_report(report, None)
    library = load_skills(registry)
    with Memory() as memory:
        memory.skills.sync(library)
        hits = memory.skills.search(
            " ".join(filter(None, (query, diagnosis.summary if diagnosis else ""))),
            operators=operators or None,
            arch=arch,
            bottlenecks=(diagnosis.bottleneck, *diagnosis.secondary) if diagnosis else (),
            signature=diagnosis.signature.values if diagnosis else None,
            limit=max(1, len(library)),
        )
        hits = memory.standings.order_hits({skill.name: skill for skill in library}, hits, limit)
        earned = memory.track_records.posteriors(
            [hit.name for hit in hits],
            bottleneck=diagnosis.bottleneck if diagnosis else None,
            operators=operators,
            arch=arch or "",
            versions=installed_versions(),
        )
    _print_hits(
        [replace(hit, reasons=(*hit.reasons, earned[hit.name].reason)) for hit in hits],
        diagnosis,
        as_json,
    )


@skills.command("new")
@click.argument("name")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    show_default=True,
    help="Where to make it.",
)
def new_skill(name: str, directory: Path) -> None:
    """Start a skill: make the directory NAME with a SKILL.md to fill in."""
    from kmem.skills import skill_template

    files = skill_template(name)
    target = directory / name
    try:
        target.mkdir(parents=True)
        for relative, text in files.items():
            (target / relative).write_text(text, encoding="utf-8")
    except FileExistsError as ex:
        raise OutputError(f"{target} exists already; choose another name or --dir") from ex
    except OSError as ex:
        raise OutputError(
            f"Directory {target} cannot be made ({ex.strerror}); choose another with --dir"
        ) from ex
    click.echo(str(target))


@skills.command("validate")
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--embed/--no-embed",
    default=True,
    show_default=True,
    help="Whether to look for near-duplicate descriptions (loads the model).",
)
@click.pass_obj
def validate_skills(registry: "Registry", directories: tuple[Path, ...], embed: bool) -> None:
    """Print every fault of the skills in DIRECTORIES (default: all registered); a recipe.py among
    them is run.
    """
    from kmem.memory.store import Memory
    from kmem.skills import validate_library

    chosen = [path for directory in directories for path in _skills_in(directory)] or list(
        registry.skills.values()
    )
    checked, faults = _read_each(chosen)
    names = {skill.name for skill in checked}
    others, _ = _read_each([path for name, path in registry.skills.items() if name not in names])
    with Memory() as memory:
        if embed and memory.vectors.embedder is None:
            click.echo("Near-duplicates not checked: KMEM_EMBEDDING_MODEL=none", err=True)
            embed = False
        found = validate_library([*checked, *others], memory.vectors.embed_texts if embed else None)
    faults += [fault for fault in found if fault.split(":", 1)[0] in names]
    for fault in faults:
        click.echo(fault)
    if faults:
        raise SkillError(
            f"{_count(faults, 'fault')} in {_count(chosen, 'skill')}; mend the SKILL.md files "
            f"named above"
        )
    click.echo(f"{_count(chosen, 'skill')}, no faults", err=True)


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


for command in (add_skill, distill, retract_skill, export):
    skills.add_command(command)


def _skills_in(directory: Path) -> list[Path]:
    from kmem.skills import skill_directories

    inside = [] if (directory / "SKILL.md").is_file() else skill_directories(directory)
    return inside or [directory]  # without any SKILL.md it is the directory itself that lacks one


def _read_each(paths: Sequence[Path]) -> "tuple[list[Skill], list[str]]":
    from kmem.skills import load_recipe, read_skill

    loaded, faults = [], []
    for path in paths:
        skill, own = read_skill(path)
        faults += [f"{path.name}: {fault}" for fault in own]
        if skill is not None:
            loaded.append(skill)
            try:
                load_recipe(skill)
            except SkillError as ex:
                faults.append(f"{path.name}: {ex}")
    return loaded, faults


def _check_operators(operators: Sequence[str]) -> None:
    from kmem.vocabulary import OPERATORS

    for name in operators:
        if name not in OPERATORS:
            raise click.BadParameter(
                f"'{name}' is not an operator; they are: {', '.join(OPERATORS)}", param_hint="--op"
            )


def _summary(skill: "Skill", standing: "SkillStanding") -> dict[str, object]:
    return {
        "name": skill.name,
        "status": standing.standing.value,
        "description": skill.description,
        "operators": skill.operators,
        "bottlenecks": [bottleneck.value for bottleneck in skill.bottlenecks],
        "signature": [str(condition) for condition in skill.signature],
        "arch": skill.arch,
        "precision": skill.precision,
        "conflicts": skill.conflicts,
        "recipe": skill.has_recipe,
        "path": str(skill.path),
    }


def _status_text(standing: "SkillStanding", origin: "SkillOrigin | None") -> str:
    lines = [f"{standing.reason[0].upper()}{standing.reason[1:]}."]
    if origin is not None:
        left_out = "; its recipe.py was left out" if origin.recipe_left_out else ""
        lines.append(
            f"Added from "
            f"{origin.address}{f' at {origin.revision[:12]}' if origin.revision else ''}{left_out}."
        )
    lines += [
        f"- {each.effect} on {each.problem}, {each.device}, seed "
        f"{'unknown' if each.seed is None else each.seed}, by {each.origin} "
        f"(outcome {each.outcome[:12]})"
        for each in standing.reproductions
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def _track_record(records: "Sequence[TrackRecord]") -> str:
    if not records:
        return "Never measured in this memory."
    rows = [
        (
            f"| {item.arch} | {item.tried} | {item.passed} | {item.improved} | "
            f"{_times(item.speedup)} | {item.recalled} |"
        )
        for item in records
    ]
    return "\n".join(
        [
            "| arch | tried | passed | improved | geometric-mean speedup of its steps | recalled |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _times(speedup: float | None) -> str:
    return "unknown" if speedup is None else f"{speedup:.2f}x"


def _print_hits(hits: "Sequence[SkillHit]", diagnosis: "Diagnosis | None", as_json: bool) -> None:
    from kmem.serialize import to_data

    if as_json:
        found = {
            "diagnosis": to_data(diagnosis) if diagnosis else None,
            "skills": [to_data(hit) for hit in hits],
        }
        click.echo(json.dumps(found, indent=2))
        return
    if diagnosis is not None:
        click.echo(diagnosis.summary)
    if not hits:
        click.echo("No skill fits; leave out --op or --arch, or use other words", err=True)
        return
    _print_table(
        ("skill", "score", "why"),
        [(hit.name, f"{hit.score:.4f}", "; ".join(hit.reasons)) for hit in hits],
    )


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        # a name cut short could not be copied into the next command
        table.add_column(column, no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
