"""Search the registered skills, with where each stands and what its outcomes promise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kmem.memory.ledger.track_records import installed_versions
from kmem.memory.skills.search import SkillHit
from kmem.memory.skills.standing import SkillStanding
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Diagnosis
from kmem.skills import Skill, load_library, recipe_versions

#: Descriptions that take a second to embed: then a search says what it waits for.
_MANY = 20


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for: words, a diagnosis, or both."""

    query: str = ""
    operators: tuple[str, ...] = ()  # only skills about one of these
    arch: str | None = None  # only skills for this one, such as sm_90
    diagnosis: Diagnosis | None = None
    limit: int = 10


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, best first; `fits` is whether any skill is about the question at all."""

    hits: tuple[SkillHit, ...]
    fits: bool
    skills: Mapping[str, Skill]  # every registered one, by name
    standings: Mapping[str, SkillStanding]  # of the hits, by name


def search_library(registry: Registry, question: Question, say: Callable[[str], None]) -> Found:
    """Search by meaning and by words; drafts come last, retracted skills are left out.

    Args:
        say: told in a line what takes long.
    """
    diagnosis = question.diagnosis
    library = list(load_library(registry.skills).values())
    with Memory.to_read() as memory:
        memory.skills.sync(library)
        unread = memory.skills.count_unembedded()
        if unread > _MANY:
            say(f"reading {unread} descriptions, once ...")
        fits = diagnosis is not None or memory.skills.fits(question.query)
        hits = memory.skills.search(
            " ".join(filter(None, (question.query, diagnosis.summary if diagnosis else ""))),
            operators=question.operators or None,
            arch=question.arch,
            bottlenecks=(diagnosis.bottleneck, *diagnosis.secondary) if diagnosis else (),
            signature=diagnosis.signature.values if diagnosis else None,
            limit=max(1, len(library)) if fits else 0,
        )
        by_name = {skill.name: skill for skill in library}
        hits = memory.standings.order_hits(by_name, hits, question.limit)
        earned = memory.track_records.posteriors(
            [hit.name for hit in hits],
            bottleneck=diagnosis.bottleneck if diagnosis else None,
            operators=question.operators,
            arch=question.arch or "",
            versions={**installed_versions(), **recipe_versions(library)},
        )
        standings = memory.standings.of_each(by_name[hit.name] for hit in hits)
    hits = [replace(hit, reasons=(*hit.reasons, earned[hit.name].reason)) for hit in hits]
    return Found(tuple(hits), fits, by_name, standings)
