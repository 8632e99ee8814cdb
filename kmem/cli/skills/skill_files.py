"""The commands of `kmem skills` for who writes a skill: new, validate, try and vocabulary."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from kmem.cli.display.skills import print_table
from kmem.cli.display.vocabulary import vocabulary_data, vocabulary_rows
from kmem.cli.exit_codes import EXIT_TRY_FAILED
from kmem.curate.own_skills import is_own, mark_as_own
from kmem.curate.recipe_check import recipe_faults
from kmem.devices import TARGETS
from kmem.errors import NotRegistered, OutputError, SkillError
from kmem.memory.location import default_db_path
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.skills import (
    Skill,
    code_files,
    load_library,
    read_skill,
    skill_directories,
    skill_template,
    validate_library,
)
from kmem.testing.rewrite_check import rewrite_faults


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
@click.option(
    "--recipe",
    is_flag=True,
    help="Also a recipe.py: a small one that works, for one operator, to change into yours.",
)
@click.option(
    "--rewrite",
    is_flag=True,
    help="Instead a rewrite.py: a small one that works, for one pattern, to change into yours.",
)
@click.option(
    "--moves",
    is_flag=True,
    help="Instead kmem-moves in the SKILL.md: changes of the knobs of whatever recipe is in play.",
)
def new_skill(name: str, directory: Path, recipe: bool, rewrite: bool, moves: bool) -> None:
    """Start a skill: make the directory NAME with a SKILL.md.

    The SKILL.md is to be filled in. The directory is remembered as your own, so that `validate`,
    `try` and `add` run its code without --trust-code. docs/skills.md leads from here to a skill
    that runs use.
    """
    chosen = {"--recipe": recipe, "--rewrite": rewrite, "--moves": moves}
    if sum(chosen.values()) > 1:
        named = " and ".join(option for option, is_given in chosen.items() if is_given)
        raise click.UsageError(f"{named} make several skills: start one of each")
    files = skill_template(name, recipe=recipe, rewrite=rewrite, moves=moves)
    target = directory / name
    try:
        target.mkdir(parents=True)
        for relative, text in files.items():
            (target / relative).parent.mkdir(exist_ok=True)
            (target / relative).write_text(text, encoding="utf-8")
    except FileExistsError as ex:
        raise OutputError(f"{target} exists already; choose another name or --dir") from ex
    except OSError as ex:
        raise OutputError(
            f"Directory {target} cannot be made ({ex.strerror}); choose another with --dir"
        ) from ex
    mark_as_own(target, default_db_path())
    click.echo(str(target))


@click.command("validate")
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--embed/--no-embed",
    default=True,
    show_default=True,
    help="Whether to look for near-duplicate descriptions (loads the model).",
)
@click.option("--trust-code", is_flag=True, help="Also run code that was not made here.")
@click.pass_obj
def validate_skills(
    registry: Registry, directories: tuple[Path, ...], embed: bool, trust_code: bool
) -> None:
    """Print every fault of the skills.

    They are those in DIRECTORIES, by default all registered ones. A recipe.py or rewrite.py among
    them is imported in a confined process, if it is of a registered skill, was made here with
    `kmem skills new`, or is trusted by --trust-code. A rewrite.py among DIRECTORIES is also run on
    its examples/rewritten.py: both graphs must be equal in float64 on every family of inputs. Each
    move of kmem-moves among DIRECTORIES must change a knob of a recipe for its operators. A claim
    that an unchanged profile fulfils is a fault.
    """
    chosen = [path for directory in directories for path in _skills_in(directory)] or list(
        registry.skills.values()
    )
    checked, faults = _read_each(chosen)
    trusted = [path for path in chosen if trust_code or _is_trusted(path, registry)]
    broken = recipe_faults(trusted)
    # those that ship are checked by kmem's own tests
    broken = rewrite_faults(trusted if directories else ()) | broken
    faults += [f"{path.resolve().name}: {fault}" for path, fault in broken.items()]
    faults += _moves_faults(checked if directories else ())
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
    for path in chosen:
        if path not in trusted and code_files(path):
            click.echo(f"{_not_run(path)}, then validate with --trust-code", err=True)
    if faults:
        raise SkillError(
            f"{_count(faults, 'fault')} in {_count(chosen, 'skill')}; mend the files named above"
        )
    click.echo(f"{_count(chosen, 'skill')}, no faults", err=True)


@click.command("try")
@click.argument("name")
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--target",
    default="h200",
    show_default=True,
    help=f"Device to choose settings for: {', '.join(TARGETS)}.",
)
@click.option("--trust-code", is_flag=True, help="Run code that was not made here.")
@click.pass_obj
def try_skill(registry: Registry, name: str, problem: Path, target: str, trust_code: bool) -> None:
    """Try the recipe, the rewrite or the moves of skill NAME on PROBLEM.

    NAME is a registered skill or a skill's directory. Printed are the operators of the problem's
    graph and which of them the recipe writes, then the Triton that it emits at its best-ranked
    setting; of a rewrite, where it applies and the rewritten graph. The kernel is judged in the
    Triton interpreter at small sizes. Of moves, each is told with the settings to which it leads
    from the best-ranked one of every site. Exits 0 if at least one site matched and the values
    agree, or a move changed something, 1 otherwise.
    """
    skill = _named_skill(registry, name, trust_code=trust_code)
    # all load torch
    from kmem.cli.actions.try_moves import try_moves
    from kmem.cli.actions.try_recipe import try_recipe
    from kmem.cli.actions.try_rewrite import try_rewrite

    if skill.moves:
        is_right = try_moves(skill, load_library(registry.skills), problem, target)
    else:
        is_right = (try_recipe if skill.has_recipe else try_rewrite)(skill, problem, target)
    if not is_right:
        raise SystemExit(EXIT_TRY_FAILED)


@click.command("vocabulary")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def show_vocabulary(as_json: bool) -> None:
    """List the words a SKILL.md may use.

    They are bottlenecks, metrics, roles of knobs and operators, with a line about each.
    """
    if as_json:
        click.echo(json.dumps(vocabulary_data(), indent=2))
        return
    print_table(("key", "word", "meaning"), vocabulary_rows())


def _moves_faults(skills: Sequence[Skill]) -> list[str]:
    """A line for each skill with a move that changes nothing."""
    moving = [skill for skill in skills if skill.moves]
    if not moving:
        return []
    from kmem.testing.moves import moves_fault  # loads torch

    return [f"{skill.name}: {fault}" for skill in moving if (fault := moves_fault(skill))]


def _named_skill(registry: Registry, name: str, *, trust_code: bool) -> Skill:
    """The skill of a name or a directory, with a recipe that may be run.

    Its text may still have faults: a recipe is often written first.

    Raises NotRegistered, and SkillError if it cannot be read, or its recipe cannot or may not be
    run.
    """
    path = registry.skills.get(name, Path(name))
    if not (path / "SKILL.md").is_file():
        raise NotRegistered(
            f"No skill named '{name}', and no directory {name} with a SKILL.md; "
            f"`kmem skills list` shows all {len(registry.skills)}"
        )
    skill, faults = read_skill(path)
    if skill is None:
        raise SkillError(f"{path / 'SKILL.md'} cannot be read: {'; '.join(faults)}")
    if not skill.acts:
        raise SkillError(
            f"Skill {skill.name} has no recipe.py, rewrite.py or kmem-moves: it is prose for "
            "language models, and there is nothing to try; `kmem skills new --recipe` makes one "
            "that works"
        )
    if skill.has_code and not trust_code and not _is_trusted(path, registry):
        raise SkillError(f"{_not_run(path)}, then try again with --trust-code")
    broken = recipe_faults([path])
    if broken:
        raise SkillError(broken[path])
    return skill


def _is_trusted(path: Path, registry: Registry) -> bool:
    """Whether a recipe may be run: of a registered skill, or of one that was made here."""
    registered = {known.resolve() for known in registry.skills.values()}
    return path.resolve() in registered or is_own(path, default_db_path())


def _not_run(path: Path) -> str:
    return f"{code_files(path)[-1]} is code that was not made here and was not run: read it"


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _skills_in(directory: Path) -> list[Path]:
    inside = [] if (directory / "SKILL.md").is_file() else skill_directories(directory)
    return inside or [directory]  # without any SKILL.md it is the directory itself that lacks one


def _read_each(paths: Sequence[Path]) -> tuple[list[Skill], list[str]]:
    """The skills that can be read, and every fault of all their texts."""
    loaded: list[Skill] = []
    faults: list[str] = []
    for path in paths:
        skill, own = read_skill(path)
        faults += [f"{path.resolve().name}: {fault}" for fault in own]
        if skill is not None:
            loaded.append(skill)
    return loaded, faults
