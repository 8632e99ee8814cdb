"""Rank skills for a diagnosis: gate, then likeness, then the posterior of recorded outcomes.

gate.py says whether a skill applies, likeness.py how alike it is, kmem/memory/ledger/posteriors.py
what it earned. This module puts them together, under a ceiling and without conflicts.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.skills.search import TextMatches
from kmem.prescribe.gate import Gate, SkillQuery, Verdict
from kmem.prescribe.likeness import Likeness, greatest_likeness, skill_likeness
from kmem.records import Bottleneck, Diagnosis, Prescription
from kmem.skills import Skill

MAX_PRESCRIPTIONS = 3  # more than three skills made agents worse. Source: SkillsBench
#: A ceiling below this share of the time is not worth a skill. An improvement counts from 0.5%
#: (orchestrate/stop.py, MIN_IMPROVEMENT).
MIN_WORTH = 0.005
#: These change what has to be done, so that the headroom above the bound of the work as traced does
#: not limit them.
_BEYOND_THE_BOUND = frozenset({Bottleneck.ALGORITHMIC})
#: A skill without a track record is as likely to help as not.
_UNTRIED = 0.5
#: Candidates whose signatures are looked up at once.
_BATCH = 64


class _Candidate(NamedTuple):
    """A skill that may be offered, before its signatures were looked up.

    `most` is what its score is at most.
    """

    skill: Skill
    fit: float  # strength x relevance
    similarity: float | None
    text_rank: int | None
    posterior: Posterior | None
    # how far the gate had to be relaxed (0: not), and whether the ceiling leaves nothing
    place: tuple[int, int]
    most: float


class _Ranked(NamedTuple):
    candidate: _Candidate
    score: float
    likeness: Likeness

    @property
    def skill(self) -> Skill:
        return self.candidate.skill


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What memory knows of skills, for one query.

    Attributes:
        matches: of the diagnosis' summary.
        posteriors: gives those of the skills named, for the query's bottleneck, operators and
            architecture; a missing one counts as never tried.
        signatures: gives the mean signature of what each skill named improved before; asked only
            for those that could be offered.
        is_offered: whether a skill may be offered at all; asked in order of rank, until enough are
            found.
    """

    matches: TextMatches
    posteriors: Callable[[Sequence[str]], Mapping[str, Posterior]]
    signatures: Callable[[Sequence[str]], Mapping[str, Mapping[str, float]]]
    is_offered: Callable[[Skill], bool] = lambda skill: True


def prescribe_skills(
    query: SkillQuery,
    skills: Sequence[Skill],
    known: Knowledge,
    *,
    limit: int = MAX_PRESCRIPTIONS,
) -> tuple[Prescription, ...]:
    """The skills to offer, best first, at most `limit`, no two of which conflict.

    score = strength x relevance x (0.5 + likeness / 2) x P(correct and faster) x credit: the share
    of typed tests known to hold, how closely the skill is about these operators and this
    bottleneck, how alike diagnosis and skill are (0 if unknown), the posterior, and what settled
    predictions leave of it. Skills for the operator, its
    family (which the gate counts as unknown) and any operator compete, in this order where all else
    is equal. If none of them passes the gate, tests are relaxed in this order, and the reasons say
    so: signature, bottleneck, operator; never the architecture and the precision, so the answer is
    empty only if no skill may be used here at all. A skill whose resource leaves no headroom comes
    after all others.
    """
    gate = Gate(query)
    allowed = [
        (skill, strength, 0) for skill in skills if (strength := gate.strength(skill)) is not None
    ] or _nearest(skills, gate)
    # what a combination forbids keeps its place, so that the reasons can say what it left open
    barred = {
        skill.name: words for skill in skills if skill.forbidden and (words := gate.forbids(skill))
    }
    allowed += [
        (skill, strength, 0)
        for skill in skills
        if skill.name in barred and (strength := gate.strength(skill, heed=False)) is not None
    ]
    earned = known.posteriors([skill.name for skill, _, _ in allowed])
    candidates = []
    for skill, strength, relaxed in allowed:
        place = relaxed, int(_is_worthless(skill, query.diagnosis))
        fit = strength * gate.relevance(skill)
        candidates.append(_candidate(skill, fit, place, known.matches, earned.get(skill.name)))
    best_first = _best_first(candidates, query.diagnosis, known.signatures)
    offered = (entry for entry in best_first if known.is_offered(entry.skill))
    return tuple(
        Prescription(
            entry.skill.name,
            entry.score,
            (*_reasons(entry, gate.test(entry.skill), query.diagnosis), *displaced),
            claims=entry.skill.predictions(query.diagnosis.known),
            saves_ms=_saved_ms(entry.skill, query.diagnosis, entry.candidate.posterior),
        )
        for entry, displaced in _without_conflicts(offered, limit, barred)
    )


def _nearest(skills: Sequence[Skill], gate: Gate) -> list[tuple[Skill, float, int]]:
    """The skills for which the fewest tests must be given up, where none passes them all.

    Each comes with its strength, and with how many tests are given up.
    """
    allowed = [
        (skill, verdict.strength, verdict.relaxed)
        for skill in skills
        if not (verdict := gate.test(skill)).is_forbidden
    ]
    least = min((relaxed for _, _, relaxed in allowed), default=0)
    return [entry for entry in allowed if entry[2] == least]


def _candidate(
    skill: Skill,
    fit: float,
    place: tuple[int, int],
    matches: TextMatches,
    posterior: Posterior | None,
) -> _Candidate:
    similarity, text_rank = matches.similarity.get(skill.name), matches.text_rank.get(skill.name)
    most = _score(fit, greatest_likeness(similarity, text_rank), posterior)
    return _Candidate(skill, fit, similarity, text_rank, posterior, place, most)


def _score(fit: float, likeness: float, posterior: Posterior | None) -> float:
    earned = posterior.probability * posterior.credit if posterior else _UNTRIED
    return fit * (0.5 + likeness / 2) * earned


def _best_first(
    candidates: Sequence[_Candidate],
    diagnosis: Diagnosis,
    signatures: Callable[[Sequence[str]], Mapping[str, Mapping[str, float]]],
) -> Iterator[_Ranked]:
    """Candidates by place, score and name.

    Each is ordered by the most that its score can be until its score must be known, so that
    signatures are looked up for the first ones only.
    """
    heap: list[tuple[tuple[int, int], float, str, _Candidate, _Ranked | None]] = [
        (candidate.place, -candidate.most, candidate.skill.name, candidate, None)
        for candidate in candidates
    ]
    heapq.heapify(heap)
    while heap:
        batch = []
        while heap and heap[0][4] is None and len(batch) < _BATCH:
            batch.append(heapq.heappop(heap)[3])
        if not batch:  # the first of the heap is ranked, and nothing unranked could pass it
            yield heapq.heappop(heap)[4]  # type: ignore[misc]
            continue
        known = signatures([candidate.skill.name for candidate in batch])
        for candidate in batch:
            winning = known.get(candidate.skill.name)
            likeness = skill_likeness(
                candidate.similarity, candidate.text_rank, diagnosis.signature, winning
            )
            score = _score(candidate.fit, likeness.value or 0.0, candidate.posterior)
            ranked = _Ranked(candidate, score, likeness)
            entry = candidate.place, -score, candidate.skill.name, candidate, ranked
            heapq.heappush(heap, entry)


def _reasons(ranked: _Ranked, verdict: Verdict, diagnosis: Diagnosis) -> list[str]:
    """Why a skill is offered: its gates, its likeness, its record, its ceiling."""
    posterior = ranked.candidate.posterior
    reasons = [*verdict.reasons, *ranked.likeness.reasons]
    if verdict.relaxed:
        reasons.insert(
            0, f"no skill passes every gate; offered without regard to {verdict.relaxed_name}"
        )
    reasons.append(posterior.reason if posterior else "never tried")
    return reasons + _ceiling(ranked.skill, diagnosis, posterior)


def _is_worthless(skill: Skill, diagnosis: Diagnosis) -> bool:
    """Whether the resource a skill addresses leaves it nothing.

    An estimate does not tell: it takes a kernel to be as fast as the unit that is busiest.
    """
    if (
        diagnosis.estimated
        or diagnosis.headroom_ms is None
        or diagnosis.speed_of_light is None
        or diagnosis.speed_of_light < 1.0 - MIN_WORTH
    ):
        return False
    return _BEYOND_THE_BOUND.isdisjoint(skill.bottlenecks)


def _saved_ms(skill: Skill, diagnosis: Diagnosis, posterior: Posterior | None) -> float | None:
    """The time that a skill should save by its record, at most what there is to save.

    None where the bound is unknown or does not limit the skill, or nothing was earned yet.
    """
    if _BEYOND_THE_BOUND & set(skill.bottlenecks):
        return None
    promised_ms = _promised_ms(diagnosis, posterior)
    if promised_ms is None or diagnosis.headroom_ms is None:
        return None
    return min(promised_ms, diagnosis.headroom_ms)


def _promised_ms(diagnosis: Diagnosis, posterior: Posterior | None) -> float | None:
    """What a record alone promises to save, whatever there is to save.

    The time now is headroom / (1 - speed of light), for headroom = time - bound and speed of light
    = bound / time.
    """
    headroom_ms, speed_of_light = diagnosis.headroom_ms, diagnosis.speed_of_light
    if headroom_ms is None or speed_of_light is None or speed_of_light >= 1.0:
        return None
    if posterior is None or posterior.log_speedup <= 0:
        return None
    return (1.0 - math.exp(-posterior.log_speedup)) * headroom_ms / (1.0 - speed_of_light)


def _ceiling(skill: Skill, diagnosis: Diagnosis, posterior: Posterior | None) -> list[str]:
    """What a skill can save at most, in words; nothing is said where the bound is unknown."""
    headroom_ms, speed_of_light = diagnosis.headroom_ms, diagnosis.speed_of_light
    if headroom_ms is None or speed_of_light is None or _BEYOND_THE_BOUND & set(skill.bottlenecks):
        return []
    if _is_worthless(skill, diagnosis):
        return [
            (
                f"its ceiling is {headroom_ms:.3g} ms: the kernel runs at {speed_of_light:.1%} of "
                "the speed of light"
            )
        ]
    promised_ms = _promised_ms(diagnosis, posterior)
    if promised_ms is None:
        return [f"can save at most {headroom_ms:.3g} ms"]
    if promised_ms > headroom_ms:
        return [
            f"expected to save {headroom_ms:.3g} ms, its ceiling (its record alone would promise "
            f"{promised_ms:.3g} ms)"
        ]
    return [f"expected to save {promised_ms:.3g} ms of at most {headroom_ms:.3g} ms"]


def _without_conflicts(
    ranked: Iterable[_Ranked], limit: int, barred: Mapping[str, str]
) -> list[tuple[_Ranked, list[str]]]:
    """The best skills, leaving out each that is barred or conflicts with a better one.

    Each comes with reasons that name those it displaced.

    Args:
        barred: name -> what forbids it.
    """
    chosen: list[_Ranked] = []
    displaced: dict[str, list[str]] = {}
    left_out: list[str] = []
    for entry in ranked:
        if words := barred.get(entry.skill.name):
            left_out.append(f"offered instead of {entry.skill.name}: {words}")
            continue
        rival = next((other for other in chosen if _conflict(entry.skill, other.skill)), None)
        if rival is None:
            chosen.append(entry)
            displaced[entry.skill.name], left_out = left_out, []
            if len(chosen) == limit:
                break
        else:
            displaced.setdefault(rival.skill.name, []).append(
                f"offered instead of {entry.skill.name}, which it conflicts with"
            )
    return [(entry, displaced.get(entry.skill.name, [])) for entry in chosen]


def _conflict(first: Skill, second: Skill) -> bool:
    return second.name in first.conflicts or first.name in second.conflicts
