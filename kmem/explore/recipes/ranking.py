"""The settings of a site by their predicted time, worked out once for all sites that are alike.

A run asks for them when it opens, when it writes, and for each rewritten form of the problem, most
of whose sites are the same; a large space takes a tenth of a second. And a network repeats itself:
of ResNet101's 1,619 sites 340 differ in more than the names of their values.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeAlias

from kmem.recipes import Operand, Recipe, Settings, Site, Space
from kmem.records import Device

#: Settings of a space with their predicted times in ms, best first.
Ranked: TypeAlias = tuple[tuple[float, dict], ...]
#: What was ranked, for which device, by recipe and `alike`; forgotten at so many, which is more
#: than one run has.
_ranked: dict[tuple[Recipe, Hashable], tuple[Device, Space, Ranked]] = {}
_MOST_RANKED = 4096


def rank_once(recipe: Recipe, site: Site, device: Device) -> tuple[Space, Ranked]:
    """A site's space and its ranked settings; those of a site like it where one was ranked."""
    key = recipe, alike(site)
    try:
        kept = _ranked.get(key)
    except TypeError:  # what a stranger's recipe says about its site cannot be looked up
        return _rank(recipe, site, device)
    if kept is None or kept[0] != device:
        if len(_ranked) >= _MOST_RANKED:
            _ranked.clear()
        _ranked[key] = kept = (device, *_rank(recipe, site, device))
    return kept[1:]


def _rank(recipe: Recipe, site: Site, device: Device) -> tuple[Space, Ranked]:
    space = recipe.space(site, device)
    return space, rank_settings(recipe, site, space.settings(), device)


def rank_settings(
    recipe: Recipe, site: Site, settings: Sequence[Settings], device: Device
) -> Ranked:
    """Settings with their predicted times, best first; ties keep the order of the space."""
    return tuple(
        sorted(
            ((recipe.cost_ms(site, setting, device), dict(setting)) for setting in settings),
            key=lambda pair: pair[0],
        )
    )


def alike(site: Site) -> Hashable:
    """All that a site is but the names of its nodes and values, for which their places stand.

    What cannot be hashed in a site's detail makes this unhashable.
    """
    operands = (*site.inputs, *site.outputs)
    names = dict.fromkeys((site.name, *site.nodes, *(operand.name for operand in operands)))
    places = {name: ("\0", place) for place, name in enumerate(names)}  # no number of a detail's
    # the first batch norm of a graph is called batch_norm
    in_detail = {name: place for name, place in places.items() if name != site.operator}
    own = replace(site, name="", nodes=(), inputs=(), outputs=(), detail=None)
    return (
        own,
        tuple(places[name] for name in site.nodes),
        _nameless(operands, places),
        len(site.inputs),
        _nameless(site.detail, in_detail),
    )


def _nameless(value: object, places: Mapping[str, Hashable]) -> Hashable:
    if isinstance(value, str):
        return places.get(value, value)
    if isinstance(value, Operand):
        return places.get(value.name, value.name), value.spec, value.kept
    if is_dataclass(value):
        compared = (getattr(value, field.name) for field in fields(value) if field.compare)
        return type(value), *(_nameless(each, places) for each in compared)
    if isinstance(value, tuple | list):
        return type(value), *(_nameless(each, places) for each in value)
    if isinstance(value, Mapping):
        return tuple(_nameless(item, places) for item in value.items())
    return value
