"""From directories to skills, recipes and rewrites.

A skill's recipe.py or rewrite.py may have modules beside it: code that serves this skill alone,
imported relatively (`from .kernels import TILE`). That file is then the package and its directory
the place of its modules; a skill has no packages below that. Code is imported only from directories
that a plugin registered or the user added, and only when a recipe or a rewrite is needed.

    skill = load_skill(Path("skills/tile-matmul"))  # SkillError, with every fault
    recipe = load_recipe(skill)  # None if it has none
"""

import importlib.util
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kmem.errors import SkillError
from kmem.recipes import Recipe
from kmem.records import content_hash, recipe_component
from kmem.rewrites import Rewrite
from kmem.skills.skill import Skill
from kmem.skills.validate import read_skill

logger = logging.getLogger(__name__)

#: Two threads must not import one recipe at once: the second would find it half made.
_IMPORTING = threading.RLock()
#: What a file of a skill defines.
_Code = TypeVar("_Code", Recipe, Rewrite)


def bundled_skills_root() -> Path:
    """The skills that ship with kmem.

    They lie inside an installed package, or beside the package in a checkout.
    """
    package = Path(__file__).parent.parent
    installed = package / "bundled_skills"
    return installed if installed.is_dir() else package.parent / "skills"


def skill_directories(root: Path) -> list[Path]:
    """Directories below a root that hold a SKILL.md, by name; empty if there is no such root."""
    return sorted(file.parent for file in root.glob("*/SKILL.md"))


def load_skill(path: Path) -> Skill:
    """Load one directory. Raises SkillError listing every fault."""
    skill, faults = read_skill(path)
    if faults or skill is None:
        raise SkillError(
            f"Skill directory {path} has faults:\n" + "\n".join(f"  {fault}" for fault in faults)
        )
    return skill


def read_library(paths: Mapping[str, Path]) -> tuple[dict[str, Skill], list[str]]:
    """The sound skills of these directories by name, and a line for each that is left out."""
    skills: dict[str, Skill] = {}
    left_out = []
    for name, path in sorted(paths.items()):
        skill, faults = read_skill(path)
        if skill is not None and not faults:
            skills[name] = skill
            continue
        more = f" (and {len(faults) - 1} faults more)" if len(faults) > 1 else ""
        left_out.append(
            f"Skill {name} is left out: {faults[0]}{more}; mend or remove {path}, "
            f"`kmem skills validate {path}` lists what is wrong"
        )
    return skills, left_out


def load_library(paths: Mapping[str, Path]) -> dict[str, Skill]:
    """The sound skills of these directories by name; one that is broken is a warning."""
    skills, left_out = read_library(paths)
    for reason in left_out:
        logger.warning("Warning: %s", reason)
    return skills


def load_recipes(skills: Iterable[Skill]) -> tuple[dict[str, Recipe], list[str]]:
    """The recipes of skills by name, and a line for each that cannot be imported."""
    return _load_each(skills, load_recipe)


def load_rewrites(skills: Iterable[Skill]) -> tuple[dict[str, Rewrite], list[str]]:
    """The rewrites of skills by name, and a line for each that cannot be imported."""
    return _load_each(skills, load_rewrite)


def _load_each(
    skills: Iterable[Skill], load: Callable[[Skill], _Code | None]
) -> tuple[dict[str, _Code], list[str]]:
    found: dict[str, _Code] = {}
    left_out = []
    for skill in skills:
        try:
            code = load(skill)
        except SkillError as ex:
            left_out.append(f"Skill {skill.name} is left out: {ex}; mend or remove {skill.path}")
            continue
        if code is not None:
            found[skill.name] = code
    return found, left_out


#: The files of a skill that kmem imports.
_ENTRIES = ("recipe.py", "rewrite.py")


def code_files(path: Path) -> list[Path]:
    """The code of the skill in a directory: the modules beside its entries, then these.

    A directory without a recipe.py and a rewrite.py has none.
    """
    entries = [path / name for name in _ENTRIES if (path / name).is_file()]
    if not entries:
        return []
    return [*(file for file in sorted(path.glob("*.py")) if file not in entries), *entries]


def load_recipe(skill: Skill) -> Recipe | None:
    """Import a skill's recipe.py and the modules it asks for; None if it has none.

    While no file of the skill changes, loading again gives the same recipe.

    Raises SkillError: if importing fails or the file defines no RECIPE.
    """
    if not skill.has_recipe:
        return None
    recipe: Recipe = _load_entry(skill, "recipe.py", Recipe)
    recipe.name, recipe.version = skill.name, recipe_version(skill)
    return recipe


def load_rewrite(skill: Skill) -> Rewrite | None:
    """Import a skill's rewrite.py as `load_recipe` does a recipe.py; None if it has none.

    Raises SkillError: if importing fails or the file defines no REWRITE.
    """
    if not skill.has_rewrite:
        return None
    rewrite: Rewrite = _load_entry(skill, "rewrite.py", Rewrite)
    rewrite.name = skill.name
    return rewrite


def _load_entry(skill: Skill, entry: str, kind: type) -> Any:
    """What a file of a skill defines under the name of its kind in capitals."""
    with _IMPORTING:
        module = _import_code(skill, entry)
    name = kind.__name__.upper()
    code = getattr(module, name, None)
    if not isinstance(code, kind):
        raise SkillError(
            f"{skill.path / entry} defines no {name} that is a {kind.__module__}.{kind.__name__}"
        )
    return code


def recipe_version(skill: Skill) -> str:
    """A hash over a skill's code: what it writes may be other text once it changes."""
    files = code_files(skill.path)
    parts = [part for file in files for part in (file.name, file.read_text(encoding="utf-8"))]
    return content_hash(*parts)[:12]


def recipe_versions(skills: Iterable[Skill]) -> dict[str, str]:
    """The versions of the recipes of these skills, named as outcomes name them."""
    return {
        recipe_component(skill.name): recipe_version(skill) for skill in skills if skill.has_recipe
    }


@contextmanager
def _no_bytecode_written() -> Iterator[None]:
    """What is imported within leaves no bytecode behind.

    Python tells bytecode of an earlier text by the file's size and the second it was written in: an
    edit of one word by a skill's author, tried at once, would run the old code.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _import_code(skill: Skill, entry: str) -> ModuleType:
    """recipe.py or rewrite.py as a package under a name of its own.

    The name holds a hash of the place and of every file, so that two skills, two copies of one, or
    one before and after an edit never share a module.
    """
    place = skill.path.resolve()
    own = content_hash(str(place), skill.hash)[:12]
    name = f"kmem_{Path(entry).stem}_{skill.name.replace('-', '_')}_{own}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, place / entry, submodule_search_locations=[str(place)]
    )
    assert spec is not None and spec.loader is not None  # the file has a suffix that says Python
    module = importlib.util.module_from_spec(spec)
    # A relative import looks its package up here.
    sys.modules[name] = module
    try:
        with _no_bytecode_written():
            spec.loader.exec_module(module)
    except BaseException as ex:
        for loaded in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
            del sys.modules[loaded]
        if isinstance(ex, KeyboardInterrupt):
            raise
        # The file is somebody else's code and may raise anything, an exit too; it is named with it.
        failing = _failing_file(skill.path, place, entry, ex)
        raise SkillError(f"{failing} fails on import: {type(ex).__name__}: {ex}") from ex
    return module


def _failing_file(path: Path, place: Path, entry: str, error: BaseException) -> Path:
    """The last of a skill's own files that was running when the error came."""
    running = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [file.name for file in running if file.parent == place]
    return path / (own[-1] if own else entry)
