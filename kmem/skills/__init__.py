"""Skills as directories: what one says, whether it is right, and the code that it brings.

In the order in which a directory becomes a skill:

- skill.py: the record, and what it answers by itself: its hash, the operators and architectures
  that it covers.
- form.py: SKILL.md as a text: its keys, its sections, how a condition and a claim are read.
- template.py: the files of a new skill, and what is left of them in one.
- validate.py: every fault of a skill: of its directory, and among the skills of a library.
- load.py: directories, the skill in one, and its recipe.py or rewrite.py with the modules beside
  them.
"""

from kmem.skills.form import parse_claim, parse_condition, parse_move
from kmem.skills.load import (
    bundled_skills_root,
    code_files,
    load_library,
    load_recipe,
    load_recipes,
    load_rewrite,
    load_rewrites,
    load_skill,
    read_library,
    recipe_version,
    recipe_versions,
    skill_directories,
)
from kmem.skills.skill import (
    DRAFT,
    PITFALLS,
    Combination,
    Condition,
    KnobMove,
    Skill,
    Step,
    arch_matches,
    embedded_text,
)
from kmem.skills.template import skill_template
from kmem.skills.validate import NEAR_DUPLICATE_COSINE, read_skill, validate_library

__all__ = [
    "DRAFT",
    "NEAR_DUPLICATE_COSINE",
    "PITFALLS",
    "Combination",
    "Condition",
    "KnobMove",
    "Skill",
    "Step",
    "arch_matches",
    "bundled_skills_root",
    "code_files",
    "embedded_text",
    "load_library",
    "load_recipe",
    "load_recipes",
    "load_rewrite",
    "load_rewrites",
    "load_skill",
    "parse_claim",
    "parse_condition",
    "parse_move",
    "read_library",
    "read_skill",
    "recipe_version",
    "recipe_versions",
    "skill_directories",
    "skill_template",
    "validate_library",
]
