"""The commands of `kmem skills` on the files of a skill: new and validate."""

from collections.abc import Sequence
from pathlib import Path

import click

from kmem.errors import OutputError, SkillError
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.skills import (
    Skill,
    load_recipe,
    read_skill,
    skill_directories,
    skill_template,
    validate_library,
)


@click.command("new")
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


@click.command("validate")
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--embed/--no-embed",
    default=True,
    show_default=True,
    help="Whether to look for near-duplicate descriptions (loads the model).",
)
@click.pass_obj
def validate_skills(registry: Registry, directories: tuple[Path, ...], embed: bool) -> None:
    """Print every fault of the skills in DIRECTORIES (default: all registered).

    A recipe.py among them is run.
    """
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


def _skills_in(directory: Path) -> list[Path]:
    inside = [] if (directory / "SKILL.md").is_file() else skill_directories(directory)
    return inside or [directory]  # without any SKILL.md it is the directory itself that lacks one


def _read_each(paths: Sequence[Path]) -> tuple[list[Skill], list[str]]:
    """The skills that can be read, and every fault of all, its recipe's too."""
    loaded: list[Skill] = []
    faults: list[str] = []
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
