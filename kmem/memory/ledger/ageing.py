"""What outcomes count by the age of what made them: torch, Triton, and the recipe."""

import re
from collections.abc import Collection, Mapping

#: Outcomes of versions this many minor releases away count half (torch and Triton release about
#: four times a year); a major release counts as ten minor ones.
HALF_LIFE_RELEASES = 4.0
RELEASES_PER_MAJOR = 10
AGING_COMPONENTS = ("torch", "triton")
#: Outcomes of a recipe that has changed since count half, as those of a compiler a year older do.
#: An edit mostly mends one fault or adds one way, and leaves most kernels as they were: what was
#: learnt is a good guess still, but half as many outcomes of the new text must outweigh it. How
#: often it changed does not matter, for versions are hashes, which have no distance.
CHANGED_RECIPE = 0.5


def age_weight(versions: Mapping[str, str], now: Mapping[str, str]) -> float:
    """What outcomes of some versions count now: 1 for the same, half at HALF_LIFE_RELEASES away.

    Distances in minor releases are added over AGING_COMPONENTS; an unknown version is 0 away.
    """
    distance = 0.0
    for name in AGING_COMPONENTS:
        then, current = _release(versions.get(name, "")), _release(now.get(name, ""))
        if then is not None and current is not None:
            distance += abs(then - current)
    return 0.5 ** (distance / HALF_LIFE_RELEASES)


def recipe_weight(recipe: str, current: Collection[str]) -> float:
    """What outcomes of a recipe's version count now: 1 while it is in use, else CHANGED_RECIPE.

    Args:
        recipe: the version, a hash that no two recipes share; empty for kernels that none wrote.
        current: versions of the recipes in use; empty if nobody said, and then nothing ages.
    """
    return CHANGED_RECIPE if recipe and current and recipe not in current else 1.0


def _release(version: str) -> int | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return int(match[1]) * RELEASES_PER_MAJOR + int(match[2]) if match else None
