"""Where a skill stands: bundled, added, of a plugin, a draft, verified by now, or retracted.

Derived from the ledger each time it is asked.

Nothing here is stored. A draft (`kmem-status: draft`, written by `kmem skills distill`) is verified
once recorded outcomes reproduced it on MIN_PROBLEMS problems and under MIN_SEEDS seeds; retracting
one of those outcomes, or trusting its origin no longer, makes it a draft again. A skill is
retracted by a record in the table of retractions, which teams share like any other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from kmem.errors import SkillError
from kmem.memory.ledger.outcomes import Retraction, ledger_entry
from kmem.memory.ledger.redaction import REDACTED
from kmem.memory.skills.library import skill_origin
from kmem.memory.skills.search import SkillHit
from kmem.memory.store import Memory
from kmem.records import Move, Outcome, Status, content_hash
from kmem.serialize import from_json
from kmem.skills import DRAFT, Skill

#: What a draft must have been reproduced on: one problem may be a coincidence, and so may one draw
#: of inputs and choices.
MIN_PROBLEMS = 2
MIN_SEEDS = 2


class Standing(Enum):
    """What a skill is to this memory."""

    BUNDLED = "bundled"
    PLUGIN = "plugin"
    ADDED = "added"
    DRAFT = "draft"
    VERIFIED = "verified"
    RETRACTED = "retracted"


@dataclass(frozen=True, slots=True)
class Interval:
    """A speedup (time before over time after) and how sure it is."""

    low: float
    value: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """One recorded outcome in which a draft helped."""

    outcome: str  # hash
    problem: str
    graph_hash: str
    seed: int | None
    device: str
    origin: str
    effect: Interval


@dataclass(frozen=True, slots=True)
class SkillStanding:
    """A skill's standing with what it rests on; `reproductions` are a draft's, oldest first."""

    standing: Standing
    reproductions: tuple[Reproduction, ...] = ()
    retraction: Retraction | None = None

    @property
    def reason(self) -> str:
        """The standing in one line."""
        if self.retraction is not None:
            return f"retracted: {self.retraction.reason}"
        if self.standing not in (Standing.DRAFT, Standing.VERIFIED):
            return self.standing.value
        problems, seeds = _variety(self.reproductions)
        return (
            f"{self.standing.value}: reproduced on {problems} of at least {MIN_PROBLEMS} problems, "
            f"under {seeds} of at least {MIN_SEEDS} seeds"
        )


def effect_interval(outcome: Outcome) -> Interval | None:
    """The speedup of the step an outcome took, with its interval; None unless it passed and was
    timed against something.

    Against its parent, from the 20th to the 80th percentile of its own time (an outcome keeps the
    parent's median alone); without a parent the judge's 95% interval against the best baseline.
    """
    if outcome.status is not Status.PASSED or not outcome.latency_ms:
        return None
    if outcome.parent_ms and outcome.latency_ms_p20 and outcome.latency_ms_p80:
        parent_ms = outcome.parent_ms
        return Interval(
            parent_ms / outcome.latency_ms_p80,
            parent_ms / outcome.latency_ms,
            parent_ms / outcome.latency_ms_p20,
        )
    if outcome.parent_ms is None and outcome.ratio and outcome.ratio_low and outcome.ratio_high:
        return Interval(outcome.ratio_low, outcome.ratio, outcome.ratio_high)
    return None


def skill_standings(memory: Memory, skills: Iterable[Skill]) -> dict[str, SkillStanding]:
    """The standing of each skill, by name."""
    return {skill.name: skill_standing(memory, skill) for skill in skills}


def skill_standing(memory: Memory, skill: Skill) -> SkillStanding:
    """Where a skill stands now."""
    retraction = _retraction(memory, skill)
    reproductions = _reproductions(memory, skill) if skill.status == DRAFT else ()
    if retraction is not None:
        return SkillStanding(Standing.RETRACTED, reproductions, retraction)
    if skill.status == DRAFT:
        problems, seeds = _variety(reproductions)
        is_verified = problems >= MIN_PROBLEMS and seeds >= MIN_SEEDS
        return SkillStanding(Standing.VERIFIED if is_verified else Standing.DRAFT, reproductions)
    return SkillStanding(Standing(skill_origin(skill.path, memory.path)))


def without_retracted(memory: Memory, skills: Mapping[str, Skill]) -> dict[str, Skill]:
    """The skills that nobody retracted; a run uses no others."""
    return {name: skill for name, skill in skills.items() if _retraction(memory, skill) is None}


def order_hits(
    memory: Memory, skills: Mapping[str, Skill], hits: Iterable[SkillHit], limit: int
) -> list[SkillHit]:
    """The hits of a search as they are shown: without retracted skills, drafts after all others and
    labelled, at most `limit`.
    """
    usable = [
        hit for hit in hits if hit.name in skills and _retraction(memory, skills[hit.name]) is None
    ]
    learnt = {
        hit.name: skill_standing(memory, skills[hit.name])
        for hit in usable
        if skills[hit.name].status == DRAFT
    }
    drafts = {
        name: standing.reason
        for name, standing in learnt.items()
        if standing.standing is Standing.DRAFT
    }
    labelled = [
        replace(hit, reasons=(drafts[hit.name], *hit.reasons))
        for hit in usable
        if hit.name in drafts
    ]
    return [*(hit for hit in usable if hit.name not in drafts), *labelled][:limit]


def retract_skill(memory: Memory, skill: Skill, reason: str) -> Retraction:
    """Record that a skill is no longer to be offered or used; its outcomes stay.

    Raises:
        SkillError: if no reason is given.
    """
    if not reason.strip():
        raise SkillError(f"Retracting '{skill.name}' needs a reason; say why with --reason")
    known = _retraction(memory, skill)
    if known is not None:
        return known
    retraction = Retraction(
        _subject(skill),
        reason,
        memory.contributors.own_name,
        datetime.now(UTC).isoformat(timespec="microseconds"),
    )
    memory.ledger.record_retraction(retraction)
    return retraction


def _subject(skill: Skill) -> str:
    """What a retraction of a skill names: its content, or a draft's name, which is the fingerprint
    of a change whoever distilled it.
    """
    return content_hash("draft", skill.name) if skill.status == DRAFT else skill.hash


def _retraction(memory: Memory, skill: Skill) -> Retraction | None:
    rows = memory.storage.read(
        "select record from retractions where outcome_hash = ? order by hash", [_subject(skill)]
    )
    if not rows:
        return None
    trust = memory.contributors.trust()  # who is not trusted at all cannot take a skill away either
    retractions = (from_json(Retraction, row["record"]) for row in rows)
    return next(
        (retraction for retraction in retractions if trust.weight(retraction.origin) > 0), None
    )


def _reproductions(memory: Memory, skill: Skill) -> tuple[Reproduction, ...]:
    trust = memory.contributors.trust()
    found = []
    for outcome in memory.ledger.outcomes(skill=skill.name, status=Status.PASSED):
        effect = effect_interval(outcome)
        # a remembered kernel that is still fast is no new success of what once made it so
        if outcome.move is Move.RECALL:
            continue
        if effect is not None and effect.low > 1.0 and trust.weight(outcome.origin) > 0:
            found.append(
                Reproduction(
                    ledger_entry(outcome).hash,
                    outcome.problem,
                    outcome.graph_hash,
                    outcome.seed,
                    outcome.device,
                    outcome.origin,
                    effect,
                )
            )
    return tuple(found)


def _variety(reproductions: Iterable[Reproduction]) -> tuple[int, int]:
    """How many problems and seeds there are; what a redacted outcome was measured on is not known,
    so it adds no problem.
    """
    known = [each for each in reproductions if each.graph_hash != REDACTED]
    return len({each.graph_hash for each in known}), len(
        {each.seed for each in known if each.seed is not None}
    )
