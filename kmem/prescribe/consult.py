"""Ask the memory everything a prescription needs, then rank: search, posteriors, and what each
skill's past successes looked like.

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
from kmem.prescribe.gate import Gate
from kmem.prescribe.rank import MAX_PRESCRIPTIONS, prescribe_skills
from kmem.records import Contract, Diagnosis, Prescription
from kmem.skills import DRAFT, Skill


def consult_memory(
    memory: Memory,
    diagnosis: Diagnosis,
    operators: Sequence[str],
    skills: Sequence[Skill],
    arch: str,
    contract: Contract,
    versions: Mapping[str, str],
    *,
    outcomes: bool = True,
    limit: int = MAX_PRESCRIPTIONS,
) -> tuple[Prescription, ...]:
    """The skills to offer for a diagnosis, best first; `skills` must be synchronised with the
    memory's library.

    Args: versions: of torch and triton in use; evidence from others counts less. outcomes: whether
        recorded outcomes count; without them only what the skills say of themselves does.
    Raises:
        EmbeddingError: if an embedding model is wanted and cannot be loaded.
    """
    matches = memory.skills.match_texts(" ".join([*operators, diagnosis.summary]))

    def posteriors(names: Sequence[str]) -> Mapping[str, Posterior]:
        return memory.track_records.posteriors(
            names,
            bottleneck=diagnosis.bottleneck,
            operators=operators,
            arch=arch,
            versions=versions,
        )

    def prescribe(
        candidates: Sequence[Skill], excluded: Set[Standing], most: int
    ) -> tuple[Prescription, ...]:
        return prescribe_skills(
            diagnosis,
            operators,
            candidates,
            arch,
            contract,
            matches=matches,
            posteriors=posteriors if outcomes else _nothing_known,
            signatures=memory.track_records.winning_signatures if outcomes else _nothing_known,
            # Asked of the best only: working out where a skill stands reads its files and outcomes.
            is_offered=lambda skill: memory.standings.of(skill).standing not in excluded,
            limit=most,
        )

    # What was learnt from outcomes is left out where outcomes do not count.
    established = prescribe(
        [skill for skill in skills if outcomes or skill.status != DRAFT],
        {Standing.RETRACTED, Standing.DRAFT},
        limit,
    )
    gate = Gate(diagnosis, operators, arch, contract)
    drafts = [
        skill for skill in skills if outcomes and skill.status == DRAFT and gate.passes(skill)
    ]
    return _with_draft(
        established, prescribe(drafts, {Standing.RETRACTED, Standing.VERIFIED}, 1), limit
    )


def _with_draft(
    established: tuple[Prescription, ...], drafts: tuple[Prescription, ...], limit: int
) -> tuple[Prescription, ...]:
    labelled = tuple(
        replace(
            draft, reasons=("a draft: not reproduced often enough to be verified", *draft.reasons)
        )
        for draft in drafts
    )
    return (*established[: max(1, limit - len(labelled))], *labelled)[:limit]


def _nothing_known(names: Sequence[str]) -> Mapping[str, Never]:
    return {}
