"""Skills that travel with a team's outcomes: skills/<contributor>/<skill>/ on the shared branch.

What goes out are the skills that lie beside the database and were not fetched from anywhere: drafts
that were distilled here, and skills that were added from this machine. A name never changes its
content, so a directory of the branch is written once. What comes in is checked as any added skill,
and its code is left out unless the user trusts it.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kmem.curate.sources import add_from, skill_source
from kmem.errors import KmemError
from kmem.memory.location import added_skills_root
from kmem.memory.skills.added import add_skill
from kmem.skills import code_files, read_skill

_ROOM = "skills"


@dataclass(frozen=True, slots=True)
class ReceivedSkills:
    """Skills that came in, and those that could not be taken, with the reason."""

    added: list[str] = field(default_factory=list)
    without_recipe: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def contribute_skills(db_path: Path, clone: Path, own_name: str) -> int:
    """Copy this memory's own skills into a clone that has no skill of their name.

    Returns:
        How many were copied.
    """
    root = added_skills_root(db_path)
    there = {place.name for place in clone.glob(f"{_ROOM}/*/*")}
    copied = 0
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        skill, faults = read_skill(directory) if directory.is_dir() else (None, [])
        if skill is None or faults or directory.name in there:
            continue
        if skill_source(db_path, skill.name) is not None:  # whoever wants it fetches it there
            continue
        shutil.copytree(
            directory,
            clone / _ROOM / own_name / skill.name,
            ignore=shutil.ignore_patterns("__pycache__", ".*"),
        )
        copied += 1
    return copied


def receive_skills(
    clone: Path, db_path: Path, existing: Mapping[str, Path], *, trust_code: bool
) -> ReceivedSkills:
    """Add the skills of a clone that are not registered yet.

    Args:
        existing: the skills registered now, name -> directory.
        trust_code: whether their recipes come along.
    """
    received = ReceivedSkills()
    for directory in sorted(clone.glob(f"{_ROOM}/*/*")):
        name = directory.name
        if name in existing and not (trust_code and _lacks_recipe(existing[name], directory)):
            continue
        try:
            if trust_code:
                add_from(str(directory), db_path, existing, trust_code=True)
            else:
                add_skill(directory, db_path, existing, with_recipe=False)
        except KmemError as ex:
            received.refused.append(f"{name} of {directory.parent.name}: {ex}")
            continue
        received.added.append(name)
        if not trust_code and code_files(directory):
            received.without_recipe.append(name)
    return received


def _lacks_recipe(present: Path, offered: Path) -> bool:
    return bool(code_files(offered)) and not code_files(present)
