"""The skills that ship with kmem, and those a user added beside the database: registered through
the same hook as anybody's.
"""

from collections.abc import Callable
from pathlib import Path

from kmem.hookspecs import hookimpl
from kmem.memory.location import added_skills_root, default_db_path
from kmem.skills import bundled_skills_root, skill_directories


@hookimpl
def register_skills(register: Callable[[Path], None]) -> None:
    for path in (
        *skill_directories(bundled_skills_root()),
        *skill_directories(added_skills_root(default_db_path())),
    ):
        register(path)
