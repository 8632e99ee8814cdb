"""`kmem skills try` for moves: which knobs of a problem's kernels each move changes, and how."""

from collections.abc import Mapping

import click

from kmem.cli.actions.try_recipe import print_graph, trace_to_try
from kmem.devices import named_target
from kmem.explore.recipes.cover import SiteOption, cover_graph, find_options
from kmem.moves import moved_settings
from kmem.problem.source.load import load_problem
from kmem.recipes import Settings
from kmem.skills import KnobMove, Skill, load_recipes


def try_moves(skill: Skill, library: Mapping[str, Skill], path: str, target: str) -> bool:
    """Tell where the moves of a skill lead on a problem; whether one of them changes anything.

    Args:
        library: whose recipes write the problem's kernels.

    Raises:
        ProblemError: if the problem breaks its contract, or has no small size.
    """
    problem, device = load_problem(path), named_target(target)
    traced = trace_to_try(problem, device)
    recipes, _ = load_recipes(library.values())
    options = find_options(traced.graphs, recipes, traced.contract, device)
    cover = cover_graph(traced.graph, options, traced.contract, device)
    print_graph(traced.graphs["full"], cover)
    is_moving = False
    for option in cover:
        base = option.ranked[0][1]
        click.echo(f"# ---- {option.recipe.name} at {option.site.name}: {_told(base)}")
        for move in skill.moves:
            led = _led(move, option, base)
            is_moving |= bool(led)
            click.echo(f"{move.change}: {_told(led, base) if led else 'leads nowhere'}")
    if not is_moving:
        click.echo(
            f"{skill.name} changes no knob of {problem.name}: compare its kmem-moves with the "
            "roles of `kmem skills vocabulary`",
            err=True,
        )
    return is_moving


def _led(move: KnobMove, option: SiteOption, base: Settings) -> Settings:
    """The nearest settings to which a move leads; empty if there are none."""
    ranked = [settings for _, settings in option.ranked]
    return next(iter(moved_settings(move, base, ranked, option.recipe.roles)), {})


def _told(settings: Settings, beside: Settings | None = None) -> str:
    """The knobs, or those that differ from others."""
    return ", ".join(
        f"{name} {value}" if beside is None else f"{name} {beside[name]} -> {value}"
        for name, value in sorted(settings.items())
        if beside is None or beside[name] != value
    )
