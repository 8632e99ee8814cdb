"""The skills that ship with kmem, and those that the user added beside the database."""

from collections.abc import Callable
from pathlib import Path

from kmem import hookimpl
from kmem.memory.location import added_skills_root, default_db_path
from kmem.skills import bundled_skills_root, skill_directories


@hookimpl
def register_skills(register: Callable[[Path], None]) -> None:
    # with the database in a clone both are one directory
    roots = (bundled_skills_root(), added_skills_root(default_db_path()))
    for root in dict.fromkeys(root.resolve() for root in roots):
        for path in skill_directories(root):
            register(path)
