"""Settings for all sites of a cover, as a task asks for them: where it begins, where it goes next.

A seed begins with the best-ranked settings; what goes on from a kernel keeps its knobs, and moves
to neighbours, to where a skill's move says, or to the next rung.
"""

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial

from kmem.explore.recipes.cover import SiteOption
from kmem.explore.recipes.moving import Written, move_of, move_sites
from kmem.interfaces import Assignment
from kmem.recipes import ACCURACY, Settings
from kmem.records import Move, SiteChoice


def goes_on(assignment: Assignment) -> bool:
    """Whether a task keeps the sites of what it goes on from, and changes their knobs at most."""
    is_move = move_of(assignment) is not None
    return is_move or assignment.task.move in (Move.RECALL, Move.CLIMB, Move.TUNE)


def inherited_choices(assignment: Assignment) -> tuple[SiteChoice, ...]:
    """The choices that a task goes on from."""
    parent = assignment.parent
    return assignment.task.choices or (parent.choices if parent else ())


def inherited_sites(assignment: Assignment) -> tuple[SiteChoice, ...]:
    """Those of them that recipes made."""
    choices = inherited_choices(assignment)
    return tuple(choice for choice in choices if choice.recipe not in assignment.rewrites)


def propose_settings(
    cover: Sequence[SiteOption], assignment: Assignment
) -> Iterator[list[Settings]]:
    """Settings for all sites of a cover, best guess first."""
    if not cover:
        yield []
        return
    task = assignment.task
    inherited = inherited_sites(assignment)
    base = [start_settings(option, inherited) for option in cover]
    generator = random.Random(f"{assignment.seed}:{task.move.value}:{task.skill}:{task.parent}")
    if (move := move_of(assignment)) is not None:
        yield from move_sites(move, Written(cover, base))
        return
    if task.move in (Move.RECALL, Move.CLIMB, Move.TUNE):
        yield base
        if task.move is not Move.TUNE:
            return
    movable = sorted(range(len(cover)), key=lambda place: -cover[place].best_ms)
    own = [place for place in movable if cover[place].recipe.name == task.skill] or movable
    if task.move is Move.TUNE:
        near = []
        for place in own:
            near += [
                _replace(base, place, setting)
                for setting in cover[place].space.neighbours(base[place])
            ]
        generator.shuffle(near)
        near.sort(key=partial(_ranked_ms, cover))
        yield from near
    # Well-ranked settings that are told apart, the same rank at every site of the task's skill at
    # once, then a seeded sample of the rest.
    told_apart = {place: cover[place].told_apart() for place in own}
    depth = max(map(len, told_apart.values()))
    for rank in range(min(depth, task.samples)):
        settings = list(base)
        for place, ranked in told_apart.items():
            best = ranked[min(rank, len(ranked) - 1)]
            settings[place] = cover[place].space.like_rung(best, base[place])
        yield settings
    for _ in range(4 * task.samples):
        settings = list(base)
        for place in own:
            ranked = cover[place].ranked
            # Quadratic bias to the front of the ranking: the cost model is trusted, but not alone.
            drawn = ranked[int(len(ranked) * generator.random() ** 2)][1]
            settings[place] = cover[place].space.like_rung(drawn, base[place])
        yield settings


def start_settings(option: SiteOption, inherited: Sequence[SiteChoice]) -> Settings:
    """The settings of a site to start from: the inherited knobs if they are legal there.

    Knobs of the same recipe at another site stand in for those of the site. If the inherited knobs
    are not legal, the nearest legal ones on the same rung are taken; if nothing is inherited, the
    best-ranked ones.
    """
    same_recipe = [choice for choice in inherited if choice.recipe == option.recipe.name]
    if not same_recipe:
        return option.ranked[0][1]
    choice = next(
        (choice for choice in same_recipe if choice.site == option.site.name), same_recipe[0]
    )
    wanted, space = option.space.completed(dict(choice.knobs)), option.space
    if space.allows(wanted):
        return wanted
    nearest = min(
        (settings for _, settings in option.ranked),
        key=lambda settings: sum(settings.get(name) != value for name, value in wanted.items()),
    )
    return option.space.like_rung(nearest, wanted)


def raise_to_rung(option: SiteOption, setting: Settings, assignment: Assignment) -> Settings:
    """The setting on the rung that its site was found to need, or as near to it as the ladder goes.

    A setting that is there or above stays as it is.
    """
    needed = assignment.rungs.get((option.recipe.name, option.site.name), 0)
    device = assignment.traced.device
    while (rung := option.space.completed(setting).get(ACCURACY)) is not None and rung < needed:
        above = option.recipe.more_accurate(option.site, setting, device)
        if above is None:
            break
        setting = above
    return setting


def _ranked_ms(cover: Sequence[SiteOption], settings: Sequence[Settings]) -> float:
    """The predicted time of settings, corrected by what was measured.

    What is ranked stands on the lowest rung; neighbours share theirs, so their order is the same.
    """
    total_ms = 0.0
    for option, setting in zip(cover, settings, strict=True):
        lowest = option.space.on_rung(setting)
        total_ms += next((ms for ms, ranked in option.ranked if ranked == lowest), math.inf)
    return total_ms


def _replace(base: Sequence[Settings], place: int, setting: Settings) -> list[Settings]:
    return [*base[:place], setting, *base[place + 1 :]]
