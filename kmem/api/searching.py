"""`kmem.search_skills`: the library of skills, asked by meaning and by words."""

from collections.abc import Sequence

from kmem.curate.search import Question, search_library
from kmem.memory.skills.search import SkillHit
from kmem.plugins import build_plugin_manager, collect


def search_skills(
    query: str, *, operators: Sequence[str] = (), arch: str | None = None, limit: int = 10
) -> list[SkillHit]:
    """Skills that fit a question, best first; none if no skill is about it.

    Args:
        query: what is slow or looked for, in plain words: "softmax over long rows".
        operators: only skills about one of these, such as max_pool.
        arch: only skills for this architecture, such as sm_90.
        limit: how many at most.
    """
    registry = collect(build_plugin_manager())
    question = Question(query, tuple(operators), arch, limit=limit)
    return list(search_library(registry, question, lambda text: None).hits)
