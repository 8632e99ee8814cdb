"""Moves of skills applied to the settings of recipes.

A move is text in a skill's `kmem-moves`: it changes the knobs of whatever recipe wrote a kernel by
their role (kmem.recipes.Role), so that old skills move new recipes and new skills old ones:

    tile down and warps up if registers_per_thread >= 168 then registers_per_thread <= 0.9x

It knows no recipe and no knob. Where a knob cannot go that way alone, the others follow it: a move
leads to the nearest legal settings. `kmem.testing.check_moves` holds a skill's moves to this.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kmem.recipes import Role, Settings
from kmem.records import Knob
from kmem.skills import KnobMove, Step

Roles = Mapping[str, tuple[Role, ...]]


def moved_settings(
    move: KnobMove, base: Settings, settings: Sequence[Settings], roles: Roles
) -> list[Settings]:
    """Those of the settings to which a move leads, the nearest first.

    In every step at least one knob of the role goes the step's way and none the other. The nearest
    changes the fewest knobs without such a role, then goes the fewest places; of equals the one
    that is named first.

    Args:
        settings: the legal ones of a site, best first.
        roles: of the knobs of the site's recipe.
    """
    led = list(_led(move, base, settings, roles))
    if len(led) < 2:
        return led
    moving = {name for step in move.steps for name, found in roles.items() if _role_of(step, found)}
    places = {name: _places(settings, name) for name in base}
    # sorting keeps equals as they stand
    return sorted(led, key=lambda setting: _distance(base, setting, moving, places))


def leads_somewhere(
    move: KnobMove, base: Settings, settings: Sequence[Settings], roles: Roles
) -> bool:
    """Whether there is a setting to which a move leads; the arguments are those of moved_settings.

    The first one answers; there may be thousands.
    """
    return next(_led(move, base, settings, roles), None) is not None


def _led(
    move: KnobMove, base: Settings, settings: Sequence[Settings], roles: Roles
) -> Iterator[Settings]:
    for setting in settings:
        if all(_goes(step, base, setting, roles) for step in move.steps):
            yield setting


def _role_of(step: Step, roles: Iterable[Role]) -> Role | None:
    return next((role for role in roles if role.name == step.role), None)


def _goes(step: Step, base: Settings, setting: Settings, roles: Roles) -> bool:
    """Whether a setting is further on a step's way than the base, in no knob less far."""
    is_further = False
    for name, found in roles.items():
        role = _role_of(step, found)
        if role is None or name not in base:
            continue
        before, after = role.grade(base[name]), role.grade(setting[name])
        if before is None or after is None or before == after:
            continue
        if (after > before) is not step.is_up:
            return False
        is_further = True
    return is_further


def _places(settings: Sequence[Settings], name: str) -> dict[Knob, int]:
    """The values that settings have for a knob, and the place of each in their order."""
    values = {setting[name] for setting in settings}
    ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
    return {value: place for place, value in enumerate(ordered)}


def _distance(
    base: Settings,
    setting: Settings,
    moving: Iterable[str],
    places: Mapping[str, Mapping[Knob, int]],
) -> tuple[int, int]:
    """How many other knobs a setting changes, and by how many places it moves in all."""
    changed = [name for name, value in setting.items() if base.get(name) != value]
    gone = 0
    for name in changed:
        known = places.get(name, {})
        before, after = known.get(base.get(name, ""), 0), known.get(setting[name], 0)
        gone += max(1, abs(after - before))
    return sum(name not in moving for name in changed), gone
