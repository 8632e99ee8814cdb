"""Where a skill stands: bundled, added, of a plugin, a draft, verified by now, or retracted.

A standing is derived from the ledger each time it is asked for; nothing here is stored. A draft
(`kmem-status: draft`, written by `kmem skills distill`) is verified once recorded outcomes
reproduced it on MIN_PROBLEMS problems and under MIN_SEEDS seeds. It is a draft again as soon as one
of those outcomes is retracted, or its origin is no longer trusted. A skill is retracted by a record
in the table of retractions, which teams share like any other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from kmem.errors import SkillError
from kmem.memory.ledger.contributors import Contributors
from kmem.memory.ledger.outcomes import Ledger, Retraction
from kmem.memory.skills.library import skill_origin
from kmem.memory.skills.search import SkillHit
from kmem.memory.storage import Storage, Tables
from kmem.records import REDACTED, Move, Outcome, Status, content_hash
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
    """The speedup of the step that an outcome took, with its interval.

    Against its parent, from the 20th to the 80th percentile of its own time (an outcome keeps the
    parent's median alone); without a parent the judge's 95% interval against the best baseline.
    None unless the outcome passed and was timed against something.
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


class Standings(Tables):
    """`memory.standings`: where skills stand."""

    def __init__(self, storage: Storage, ledger: Ledger, contributors: Contributors) -> None:
        super().__init__(storage)
        self._ledger = ledger
        self._contributors = contributors

    def of(self, skill: Skill) -> SkillStanding:
        """Where a skill stands now."""
        retraction = self._retraction(skill)
        reproductions = self._reproductions(skill) if skill.status == DRAFT else ()
        if retraction is not None:
            return SkillStanding(Standing.RETRACTED, reproductions, retraction)
        if skill.status == DRAFT:
            problems, seeds = _variety(reproductions)
            is_verified = problems >= MIN_PROBLEMS and seeds >= MIN_SEEDS
            return SkillStanding(
                Standing.VERIFIED if is_verified else Standing.DRAFT, reproductions
            )
        return SkillStanding(Standing(skill_origin(skill.path, self._storage.path)))

    def of_each(self, skills: Iterable[Skill]) -> dict[str, SkillStanding]:
        """The standing of each skill, by name."""
        return {skill.name: self.of(skill) for skill in skills}

    def without_retracted(self, skills: Mapping[str, Skill]) -> dict[str, Skill]:
        """The skills that nobody retracted; a run uses no others."""
        return {name: skill for name, skill in skills.items() if self._retraction(skill) is None}

    def order_hits(
        self, skills: Mapping[str, Skill], hits: Iterable[SkillHit], limit: int
    ) -> list[SkillHit]:
        """The hits of a search as they are shown, at most `limit`.

        Retracted skills are left out; drafts come after all others and are labelled.
        """
        known = (hit for hit in hits if hit.name in skills)
        usable = [hit for hit in known if self._retraction(skills[hit.name]) is None]
        standings = self.of_each(
            skills[hit.name] for hit in usable if skills[hit.name].status == DRAFT
        )
        drafts = {
            name: standing.reason
            for name, standing in standings.items()
            if standing.standing is Standing.DRAFT
        }
        labelled = [
            replace(hit, reasons=(drafts[hit.name], *hit.reasons))
            for hit in usable
            if hit.name in drafts
        ]
        return [*(hit for hit in usable if hit.name not in drafts), *labelled][:limit]

    def retract(self, skill: Skill, reason: str) -> Retraction:
        """Record that a skill is no longer to be offered or used; its outcomes stay.

        Raises:
            SkillError: if no reason is given.
        """
        if not reason.strip():
            raise SkillError(f"Retracting '{skill.name}' needs a reason; say why with --reason")
        known = self._retraction(skill)
        if known is not None:
            return known
        retraction = Retraction(
            _retracted_hash(skill),
            reason,
            self._contributors.own_name,
            datetime.now(UTC).isoformat(timespec="microseconds"),
        )
        self._ledger.record_retraction(retraction)
        return retraction

    def _retraction(self, skill: Skill) -> Retraction | None:
        # most memories hold none, and the hash of a skill reads all its files
        if not self._storage.read("select 1 from retractions limit 1"):
            return None
        rows = self._storage.read(
            "select record, writer from retractions where outcome_hash = ? order by hash",
            [_retracted_hash(skill)],
        )
        if not rows:
            return None
        # an origin that is not trusted at all cannot take a skill away either
        trust = self._contributors.trust()
        return next(
            (
                from_json(Retraction, row["record"])
                for row in rows
                if trust.weight(str(row["writer"])) > 0
            ),
            None,
        )

    def _reproductions(self, skill: Skill) -> tuple[Reproduction, ...]:
        trust = self._contributors.trust()
        found = []
        for entry in self._ledger.entries(skill=skill.name, status=Status.PASSED):
            outcome = entry.outcome
            effect = effect_interval(outcome)
            # a remembered kernel that is still fast is no new success of what once made it so
            if outcome.move is Move.RECALL:
                continue
            if effect is not None and effect.low > 1.0 and trust.weight(entry.writer) > 0:
                found.append(
                    Reproduction(
                        entry.hash,
                        outcome.problem,
                        outcome.graph_hash,
                        outcome.seed,
                        outcome.device,
                        entry.writer,
                        effect,
                    )
                )
        return tuple(found)


def _retracted_hash(skill: Skill) -> str:
    """What a retraction of a skill names: the hash of its content, or of a draft's name.

    A draft's name is the fingerprint of a change, whoever distilled it.
    """
    return content_hash("draft", skill.name) if skill.status == DRAFT else skill.hash


def _variety(reproductions: Iterable[Reproduction]) -> tuple[int, int]:
    """How many problems and seeds there are.

    Which problem a redacted outcome was measured on is not known, so it adds none.
    """
    known = [each for each in reproductions if each.graph_hash != REDACTED]
    problems = {each.graph_hash for each in known}
    seeds = {each.seed for each in known if each.seed is not None}
    return len(problems), len(seeds)
