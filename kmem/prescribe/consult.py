"""Ask the memory everything a prescription needs, then rank.

Memory is asked for text matches, posteriors, and what each skill's past successes looked like.
Retracted skills are never offered. Of the drafts that `kmem skills distill` wrote, at most one is,
in the last place and labelled: without being tried none could ever be verified, and more would
crowd out what is known to work.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Never

from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.skills.standing import Standing
from kmem.memory.store import Memory
from kmem.prescribe.gate import Gate, SkillQuery
from kmem.prescribe.rank import MAX_PRESCRIPTIONS, Knowledge, prescribe_skills
from kmem.records import Prescription
from kmem.skills import DRAFT, PITFALLS, Skill, recipe_versions


def consult_memory(
    memory: Memory,
    query: SkillQuery,
    skills: Sequence[Skill],
    versions: Mapping[str, str],
    *,
    outcomes: bool = True,
    limit: int = MAX_PRESCRIPTIONS,
) -> tuple[Prescription, ...]:
    """The skills to offer for a diagnosis, best first.

    Args:
        skills: must be synchronised with the memory's skill library.
        versions: of torch and triton in use; outcomes under other versions, or of recipes that
            are not those of `skills`, count less.
        outcomes: whether recorded outcomes count; without them only what the skills say of
            themselves does.

    Raises:
        EmbeddingError: if an embedding model is wanted and cannot be loaded.
    """
    diagnosis = query.diagnosis
    skills = [skill for skill in skills if skill.name != PITFALLS]
    matches = memory.skills.match_texts(" ".join([*query.operators, diagnosis.summary]))

    def posteriors(names: Sequence[str]) -> Mapping[str, Posterior]:
        return memory.track_records.posteriors(
            names,
            bottleneck=diagnosis.bottleneck,
            operators=query.operators,
            arch=query.arch,
            versions={**versions, **recipe_versions(skills)},
        )

    def prescribe(
        candidates: Sequence[Skill], excluded: Set[Standing], most: int
    ) -> tuple[Prescription, ...]:
        known = Knowledge(
            matches,
            posteriors if outcomes else _nothing_known,
            memory.track_records.winning_signatures if outcomes else _nothing_known,
            # Asked of the best only: working out where a skill stands reads its files and outcomes.
            is_offered=lambda skill: memory.standings.of(skill).standing not in excluded,
        )
        return prescribe_skills(query, candidates, known, limit=most)

    # What was learnt from outcomes is left out where outcomes do not count.
    established = prescribe(
        [skill for skill in skills if outcomes or skill.status != DRAFT],
        {Standing.RETRACTED, Standing.DRAFT},
        limit,
    )
    gate = Gate(query)
    fitting = [
        skill for skill in skills if outcomes and skill.status == DRAFT and gate.passes(skill)
    ]
    drafts = prescribe(fitting, {Standing.RETRACTED, Standing.VERIFIED}, 1)
    return _with_draft(established, drafts, limit)


def _with_draft(
    established: tuple[Prescription, ...], drafts: tuple[Prescription, ...], limit: int
) -> tuple[Prescription, ...]:
    label = "a draft: not reproduced often enough to be verified"
    labelled = tuple(replace(draft, reasons=(label, *draft.reasons)) for draft in drafts)
    return (*established[: max(1, limit - len(labelled))], *labelled)[:limit]


def _nothing_known(names: Sequence[str]) -> Mapping[str, Never]:
    return {}
