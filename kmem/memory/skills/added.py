"""Skills that a user adds: copied whole into `skills/` beside the database, after every check.

Archives are unpacked with care. Where skills may come from is kmem/curate/sources.py.
"""

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from kmem.errors import OutputError, SkillError
from kmem.memory.location import added_skills_root
from kmem.skills import Skill, code_files, load_skill, read_skill

#: Unpacked size above which an archive is taken for a mistake or an attack; a skill is text of a
#: few hundred kilobytes.
MAX_SKILL_BYTES = 16 * 2**20
#: Names of files that `unpack_archive` unpacks end so.
ARCHIVES = (".zip", ".tar.gz", ".tgz")


def add_skill(
    directory: Path, db_path: Path, existing: Mapping[str, Path], *, with_recipe: bool = True
) -> Skill:
    """Copy a skill's directory beside the database; it appears whole or not at all.

    A name never changes its content: who improves a skill gives it another name, so that outcomes
    stay with what earned them. The one exception is an added skill whose recipe.py was left out,
    which may get that recipe later.

    Args:
        existing: the skills registered now, name -> directory.
        with_recipe: whether the skill's recipe.py is kept with the modules beside it. Nothing here
            runs it.

    Returns:
        The skill in its new place; the one already there if it is the same, byte for byte.

    Raises:
        SkillError: listing every fault, or naming the other skill of that name if it differs.
        OutputError: if the directory beside the database cannot be written.
    """
    root = added_skills_root(db_path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".adding-", dir=root))
    except OSError as ex:
        raise OutputError(
            f"Directory {root} cannot be written ({ex.strerror}); "
            "choose another database with KMEM_DB"
        ) from ex
    try:
        copy = _copy(directory, staging / directory.resolve().name, with_recipe=with_recipe)
        skill = load_skill(copy)
        place = root / skill.name
        other = existing.get(skill.name) or (place if place.exists() else None)
        if other is not None:
            return _same_or_completed(skill, other, other == place)
        for cache in skill.path.rglob("__pycache__"):
            shutil.rmtree(cache)
        os.rename(skill.path, place)
        return load_skill(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _same_or_completed(skill: Skill, other: Path, was_added: bool) -> Skill:
    """The skill of the same name that is there, given the new one's recipe if it lacks only that.

    Raises SkillError if the two differ otherwise.
    """
    present, _ = read_skill(other)
    if present is not None and present.hash == skill.hash:
        return present
    if present is not None and was_added and _is_but_for_recipe(present, skill):
        for file in code_files(skill.path):
            os.replace(file, other / file.name)
        return load_skill(other)
    raise SkillError(
        f"A different skill is named '{skill.name}' already: {other}; "
        "rename the new one (directory and frontmatter)"
    )


def _is_but_for_recipe(present: Skill, new: Skill) -> bool:
    """Whether the new skill is the one that is there, and the code that makes it act."""
    if present.has_code or not new.has_code:
        return False
    with tempfile.TemporaryDirectory(prefix="kmem-add-") as scratch:
        bare = _copy(new.path, Path(scratch) / new.name, with_recipe=False)
        return load_skill(bare).hash == present.hash


def _copy(directory: Path, target: Path, *, with_recipe: bool) -> Path:
    """Copy a skill's directory without caches, and on request without its code."""
    code = set() if with_recipe else set(code_files(directory))

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [
            name for name in names if name in ("__pycache__", ".git") or Path(folder) / name in code
        ]

    return Path(shutil.copytree(directory, target, ignore=left_out))


def unpack_archive(source: Path, target: Path) -> None:
    """Unpack a .zip or .tar.gz into a directory.

    Raises:
        SkillError: if it cannot be unpacked, is too large, or holds links.
    """
    try:
        if source.suffix == ".zip":
            with zipfile.ZipFile(source) as archive:
                _check_size(source, sum(member.file_size for member in archive.infolist()))
                if any(stat.S_ISLNK(member.external_attr >> 16) for member in archive.infolist()):
                    raise SkillError(f"Archive {source} holds links; pack plain files")
                archive.extractall(target)  # zipfile drops absolute paths and ".."
        else:
            with tarfile.open(source) as archive:
                _check_size(source, sum(member.size for member in archive))
                if not all(member.isfile() or member.isdir() for member in archive):
                    raise SkillError(f"Archive {source} holds links or devices; pack plain files")
                archive.extractall(target, filter="data")  # refuses paths that lead outside
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as ex:
        raise SkillError(
            f"Archive {source} cannot be unpacked ({ex}); pack the skill's directory again"
        ) from ex


def _check_size(source: Path, size: int) -> None:
    if size > MAX_SKILL_BYTES:
        raise SkillError(
            f"Archive {source} unpacks to {size} bytes, more than {MAX_SKILL_BYTES}; "
            "a skill is text: leave large files out"
        )
