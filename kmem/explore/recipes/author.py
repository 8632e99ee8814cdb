"""The author that writes by recipes, at knob settings chosen by cost model, memory and history.

Settings are ranked by the cost model, corrected by what was measured on other graphs and in this
run (calibration.py). A seed task takes a recipe's sites first and the best-ranked settings; a
recall task takes remembered knobs as they are, a climb task those of the next rung; a tune task
moves from the parent's knobs to legal neighbours and to well-ranked settings not tried yet. No site
stands below the rung that its accuracy was found to need. Everything is a pure function of the
assignment and its seed.
"""

import logging
import math
import random
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata

from kmem import __version__
from kmem.codegen.module import SitePlan, WorkloadPlan, assemble_module
from kmem.errors import RecipeError, foreign_code
from kmem.explore.recipes.calibration import calibrate_option, own_experience
from kmem.explore.recipes.cover import SiteOption, cover_graph, find_options
from kmem.interfaces import Assignment, Author, Direction, Situation
from kmem.problem.graph import OpGraph
from kmem.recipes import ACCURACY, Settings
from kmem.records import Candidate, Contract, Device, Kernel, Move, SiteChoice

logger = logging.getLogger(__name__)


class RecipeAuthor(Author):
    """Writes Triton by recipe; needs no key, no network and no GPU."""

    name = "recipes"

    def __init__(self) -> None:
        self._kept: tuple[Assignment, list[SiteOption]] | None = None
        self._told: set[str] = set()  # faults of recipes, so that each is one warning
        # Tasks are written side by side, but this is Python at work, which threads do not speed up;
        # and Python 3.11's parser, which assembling a module asks, fails in two threads at once.
        # Source: github.com/python/cpython/issues/106905.
        self._writing = threading.Lock()

    def propose(self, situation: Situation) -> list[Direction]:
        """Seeds in the first round; later tuning of the parent, what is offered, and the rest.

        The order is: skills in the parent, those offered, then every other one that matches.
        """
        in_parent = (
            [choice.recipe for choice in situation.parent.choices] if situation.parent else []
        )
        offered = [
            prescription.skill
            for prescription in situation.prescriptions
            if prescription.skill in situation.writable
        ]
        largest_first = sorted(
            situation.writable, key=lambda name: (-situation.writable[name], name)
        )
        directions = []
        for name in dict.fromkeys([*in_parent, *offered, *largest_first]):
            if name in in_parent:
                move, reason = Move.TUNE, f"move the knobs of {name} from the best so far"
            elif name in offered:
                move, reason = Move.FIX, f"{name} is prescribed for this bottleneck"
            elif situation.parent:
                move, reason = Move.SEED, f"{name} still has settings that may win"
            else:
                move = Move.SEED
                reason = f"{name} matches sites that move {situation.writable[name] / 1e6:.3g} MB"
            directions.append(Direction(self.name, move, name, reason))
        return directions

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Candidates for a task, best guess first.

        The list is empty if no recipe of the task's skill matches or nothing new is left.
        """
        with self._writing:
            return self._write(assignment)

    def _write(self, assignment: Assignment) -> list[Candidate]:
        graph = assignment.traced.graph
        cover = _cover(graph, self._options(assignment), assignment)
        if not cover:
            return []
        candidates: list[Candidate] = []
        seen = {attempt.candidate.kernel.choices for attempt in assignment.history}
        measured = [*assignment.experience, *own_experience(assignment.history, graph)]
        calibrated = [calibrate_option(option, measured, graph) for option in cover]
        for proposed in _proposals(calibrated, assignment):
            settings = [
                _raise_to_rung(option, setting, assignment)
                for option, setting in zip(cover, proposed, strict=True)
            ]
            choices = tuple(
                SiteChoice(
                    option.site.name,
                    option.site.operator,
                    option.recipe.name,
                    tuple(sorted(setting.items())),
                )
                for option, setting in zip(cover, settings, strict=True)
            )
            if choices in seen:
                continue
            seen.add(choices)
            try:
                kernel = write_kernel(assignment, cover, settings, choices)
            except RecipeError as ex:  # one skill's fault must not end the run
                if str(ex) not in self._told:
                    logger.warning("%s is passed over: %s", assignment.task.skill, ex)
                    self._told.add(str(ex))
                continue
            candidates.append(
                Candidate(
                    kernel,
                    assignment.task,
                    self.name,
                    _total_ms(cover, settings, assignment.traced.device),
                )
            )
            if len(candidates) >= assignment.task.samples:
                break
        return candidates

    def _options(self, assignment: Assignment) -> list[SiteOption]:
        """The ranked sites of the assignment's graphs, kept from the last task on the same graphs.

        All tasks of a run ask about the same graphs, and ranking a large space takes seconds.
        """
        if self._kept is None or not _ask_the_same(self._kept[0], assignment):
            traced = assignment.traced
            options = find_options(
                traced.graphs, assignment.recipes, traced.contract, traced.device
            )
            self._kept = (assignment, options)
        return self._kept[1]


def _ask_the_same(one: Assignment, other: Assignment) -> bool:
    # Identity, not equality: comparing graphs node by node would cost as much as it saves.
    return one.traced is other.traced and one.recipes is other.recipes


def _cover(
    graph: OpGraph, options: Sequence[SiteOption], assignment: Assignment
) -> list[SiteOption]:
    """The sites this task writes.

    Remembered or inherited choices keep their sites; the task's own skill goes first.
    """
    task, traced = assignment.task, assignment.traced
    inherited = task.choices or (assignment.parent.choices if assignment.parent else ())
    own = [
        (option.recipe.name, option.site.name)
        for option in options
        if option.recipe.name == task.skill
    ]
    kept = [(choice.recipe, choice.site) for choice in inherited]
    if task.move in (Move.RECALL, Move.CLIMB, Move.TUNE):
        # Knobs remembered from another module name its sites, not ours: then every site of the same
        # recipe takes them.
        recipes = {choice.recipe for choice in inherited}
        like = [
            (option.recipe.name, option.site.name)
            for option in options
            if option.recipe.name in recipes
        ]
        chosen = cover_graph(graph, options, traced.contract, traced.device, prefer=kept + like)
        return chosen if {option.recipe.name for option in chosen} & recipes else []
    if not own:
        return []
    return cover_graph(graph, options, traced.contract, traced.device, prefer=own + kept)


def _proposals(cover: Sequence[SiteOption], assignment: Assignment) -> Iterator[list[Settings]]:
    """Settings for all sites of a cover, best guess first."""
    task = assignment.task
    inherited = task.choices or (assignment.parent.choices if assignment.parent else ())
    base = [_start(option, inherited) for option in cover]
    generator = random.Random(f"{assignment.seed}:{task.move.value}:{task.skill}:{task.parent}")
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
    # Well-ranked settings, the same rank at every site of the task's skill at once, then a seeded
    # sample of the rest.
    depth = max(len(cover[place].ranked) for place in own)
    for rank in range(min(depth, task.samples)):
        settings = list(base)
        for place in own:
            best = cover[place].ranked[min(rank, len(cover[place].ranked) - 1)][1]
            settings[place] = _raise(cover[place], best, base[place])
        yield settings
    for _ in range(4 * task.samples):
        settings = list(base)
        for place in own:
            ranked = cover[place].ranked
            # Quadratic bias to the front of the ranking: the cost model is trusted, but not alone.
            drawn = ranked[int(len(ranked) * generator.random() ** 2)][1]
            settings[place] = _raise(cover[place], drawn, base[place])
        yield settings


def _start(option: SiteOption, inherited: Sequence[SiteChoice]) -> Settings:
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
    return _raise(option, nearest, wanted)


def _raise(option: SiteOption, setting: Settings, known: Settings) -> Settings:
    """A ranked setting on the rung of a known one, which had to be climbed to, if it is legal."""
    rung = known.get(ACCURACY)
    raised = option.space.on_rung(setting, rung if isinstance(rung, int) else None)
    return raised if option.space.allows(raised) else setting


def _raise_to_rung(option: SiteOption, setting: Settings, assignment: Assignment) -> Settings:
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


def _total_ms(cover: Sequence[SiteOption], settings: Sequence[Settings], device: Device) -> float:
    return sum(
        option.recipe.cost_ms(option.site, setting, device)
        for option, setting in zip(cover, settings, strict=True)
    )


def write_kernel(
    assignment: Assignment,
    cover: Sequence[SiteOption],
    settings: Sequence[Settings],
    choices: tuple[SiteChoice, ...],
) -> Kernel:
    """One module with these settings at its sites, for every workload."""
    plans, traced = [], assignment.traced
    for name, graph in traced.graphs.items():
        sites = tuple(
            plan_site(graph, option, setting, traced.contract)
            for option, setting in zip(cover, settings, strict=True)
        )
        plans.append(WorkloadPlan(name, graph, sites))
    title = f"{traced.problem.name}: " + ", ".join(
        f"{choice.recipe} at {choice.site}" for choice in choices
    )
    flags = sorted({flag for option in cover for flag in option.site.flags})
    estimated_ms = _total_ms(cover, settings, traced.device)
    provenance = (
        f"Written by kmem {__version__} for {traced.device.full_name}, precision "
        f"{traced.contract.precision.value}, with torch {metadata.version('torch')} and Triton "
        f"{metadata.version('triton')}; estimated at {estimated_ms:.3g} ms."
    )
    module = assemble_module(title, traced.problem.source, plans, provenance)
    return Kernel(
        module.source,
        parent=assignment.parent.hash if assignment.parent else None,
        choices=choices,
        flags=tuple(flags),
        small_constants=module.constants.get("small", ""),
    )


def plan_site(
    graph: OpGraph, option: SiteOption, setting: Settings, contract: Contract
) -> SitePlan:
    """What the recipe of an option writes for its site in one workload's graph.

    Raises RecipeError if the recipe's code raises anything.
    """
    # found: find_options leaves out a site that one of the workloads lacks
    site = next(
        site for site in option.recipe.match(graph, contract) if site.name == option.site.name
    )
    knobs = ", ".join(f"{name} {value}" for name, value in sorted(setting.items()))
    origin = f"{option.recipe.name} with {knobs}" if knobs else option.recipe.name
    with foreign_code(f"the recipe of {option.recipe.name}", RecipeError):
        emission = option.recipe.emit_like(site, setting, option.site)
    return SitePlan(site, emission, origin)
