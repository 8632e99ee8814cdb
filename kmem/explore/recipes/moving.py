"""Moves of skills among the knobs of a kernel that recipes wrote: which are open, where they lead.

A move applies to one site at a time; the sites that take most time come first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kmem.explore.recipes.cover import SiteOption
from kmem.interfaces import Assignment, Direction, Situation
from kmem.moves import moved_settings
from kmem.recipes import Settings
from kmem.records import Move, SiteChoice
from kmem.skills import KnobMove, Skill


@dataclass(frozen=True, slots=True)
class Written:
    """What recipes wrote of a kernel: its sites, their settings, and the rewrites before them."""

    cover: Sequence[SiteOption]
    settings: Sequence[Settings]
    steps: tuple[SiteChoice, ...] = ()

    def choices(self, settings: Sequence[Settings]) -> tuple[SiteChoice, ...]:
        """The choices of a kernel with other settings at these sites."""
        sites = (
            option.choice(setting) for option, setting in zip(self.cover, settings, strict=True)
        )
        return (*self.steps, *sites)


def move_of(assignment: Assignment) -> KnobMove | None:
    """The move that a task is to make; None if it is a task of another kind."""
    task = assignment.task
    skill = assignment.skills.get(task.skill)
    if task.move is not Move.FIX or skill is None:
        return None
    return next((move for move in skill.moves if str(move) == task.instruction), None)


def move_sites(move: KnobMove, written: Written) -> Iterator[list[Settings]]:
    """Settings of all sites after a move at one of them: the nearest of every site, then the next.

    The rung that a site stands on stays, where it is legal there.
    """
    places = sorted(range(len(written.cover)), key=lambda place: -written.cover[place].best_ms)
    led = {place: _led(move, written.cover[place], written.settings[place]) for place in places}
    for rank in range(max(map(len, led.values()), default=0)):
        for place in places:
            if rank < len(led[place]):
                settings = list(written.settings)
                settings[place] = led[place][rank]
                yield settings


def _led(move: KnobMove, option: SiteOption, base: Settings) -> list[Settings]:
    ranked = [settings for _, settings in option.ranked]
    return [
        option.space.like_rung(settings, base)
        for settings in moved_settings(move, base, ranked, option.recipe.roles)
    ]


def open_move(skill: Skill, situation: Situation, written: Written) -> KnobMove | None:
    """The first move of a skill that suits the diagnosis and leads to a kernel not tried yet."""
    values: Mapping[str, float] = {}
    if situation.diagnosis is not None:
        values = situation.diagnosis.known
    tried = {attempt.candidate.kernel.choices for attempt in situation.history}
    for move in skill.moves:
        if move.suits(values) and any(
            written.choices(settings) not in tried for settings in move_sites(move, written)
        ):
            return move
    return None


def propose_moves(
    author: str, situation: Situation, find_written: Callable[[], Written | None]
) -> list[Direction]:
    """A direction for each prescribed skill with a move that is open for the parent kernel.

    Args:
        author: who would make it.
        find_written: what recipes wrote of the parent; asked only where a skill has moves.
    """
    named = (situation.skills.get(entry.skill) for entry in situation.prescriptions)
    offered = [skill for skill in named if skill is not None and skill.moves]
    if not offered or (written := find_written()) is None:
        return []
    directions = []
    for skill in offered:
        move = open_move(skill, situation, written)
        if move is not None:
            reason = f"{skill.name} is prescribed: {move.change}"
            directions.append(
                Direction(author, Move.FIX, skill.name, reason, move.claims, str(move))
            )
    return directions
