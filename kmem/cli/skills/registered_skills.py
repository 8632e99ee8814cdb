"""The registered skills, as the commands on skills ask for them.

The registry of plugins comes as the click context's object; its `skills` maps names to directories.
"""

from kmem.errors import NotRegistered
from kmem.plugins import Registry
from kmem.skills import Skill, load_library, load_skill


def find_skill(registry: Registry, name: str) -> Skill:
    """A registered skill by name.

    Raises NotRegistered, and SkillError for a faulty one.
    """
    if name not in registry.skills:
        raise NotRegistered(
            f"No skill named '{name}'; `kmem skills list` shows all {len(registry.skills)}"
        )
    return load_skill(registry.skills[name])


def load_skills(registry: Registry) -> list[Skill]:
    """Every registered skill, by name; a broken one is a warning and left out."""
    return list(load_library(registry.skills).values())
