"""The author that writes by recipes, at knob settings chosen by cost model, memory and history.

Settings are ranked by the cost model, corrected by what was measured on other graphs and in this
run (calibration.py). A seed task takes a recipe's sites first and the best-ranked settings; a
recall task takes remembered knobs as they are, a climb task those of the next rung; a tune task
moves from the parent's knobs to legal neighbours and to well-ranked settings not tried yet, and a
fix by a skill's move goes where the skill says (moving.py). No site
stands below the rung that its accuracy was found to need. A task of a rewrite, and all that comes
of it, is written for the rewritten graph; what no site covers there is left to the library.
Everything is a pure function of the assignment and its seed.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from kmem.errors import RecipeError
from kmem.explore.recipes.calibration import Calibrator, own_experience
from kmem.explore.recipes.cover import (
    SiteOption,
    cover_graph,
    find_options,
    smaller_options,
)
from kmem.explore.recipes.moving import Written, open_move, propose_moves
from kmem.explore.recipes.proposing import (
    goes_on,
    inherited_choices,
    inherited_sites,
    propose_settings,
    raise_to_rung,
    start_settings,
)
from kmem.explore.recipes.writing import left_over_ms, total_ms, write_kernel
from kmem.interfaces import RECIPES, Assignment, Author, Direction, Situation
from kmem.problem.graph import OpGraph
from kmem.problem.traced import TracedProblem
from kmem.recipes import Recipe, Settings
from kmem.records import Candidate, Experience, Kernel, Move, SiteChoice, Task
from kmem.rewrites import Rewritten
from kmem.skills import Skill

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A candidate before it is written: settings by site, and what they are predicted to take.

    `whole_ms` counts what is left to the library, too.
    """

    settings: list[Settings]
    choices: tuple[SiteChoice, ...]
    predicted_ms: float
    whole_ms: float


class RecipeAuthor(Author):
    """Writes Triton by recipe; needs no key, no network and no GPU."""

    name = RECIPES

    def __init__(self) -> None:
        # by problem, as traced and in rewritten forms
        self._kept: dict[int, tuple[TracedProblem, Mapping[str, Recipe], list[SiteOption]]] = {}
        # by graph, with what it knows beside memory's experience
        self._calibrators: dict[
            int, tuple[OpGraph, Sequence[Experience], list[Experience], Calibrator]
        ] = {}
        # what recipes wrote of the kernel that was asked about last
        self._asked: tuple[str, int, TracedProblem, Written | None] | None = None
        # by problem, parent, choices and settings: first kernels of all tasks are asked for ahead
        self._texts: dict[tuple[int, str | None, tuple[SiteChoice, ...], str], Kernel] = {}
        self._told: set[str] = set()  # faults of recipes, so that each is one warning
        # Tasks are written side by side, but this is Python at work, which threads do not speed up;
        # and Python 3.11's parser, which assembling a module asks, fails in two threads at once.
        # Source: github.com/python/cpython/issues/106905.
        self._writing = threading.Lock()

    def propose(self, situation: Situation) -> list[Direction]:
        """Seeds in the first round; later tuning of the parent, what is offered, and the rest.

        The order is: skills in the parent, those offered, then every other one that matches.
        Rewritten forms of the problem come before the seeds, and after the parent's own skills.
        Moves of the skills that are prescribed come first of all: they answer the diagnosis.
        """
        chosen = situation.parent.choices if situation.parent else ()
        in_parent = [choice.recipe for choice in chosen if choice.recipe not in situation.rewrites]
        offered = [
            prescription.skill
            for prescription in situation.prescriptions
            if prescription.skill in situation.writable
        ]
        largest_first = sorted(
            situation.writable, key=lambda name: (-situation.writable[name], name)
        )
        directions: list[Direction] = []
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
        place = len(set(in_parent))
        moves = propose_moves(self.name, situation, lambda: self._find_written(situation))
        rewritten = self._propose_rewritten(situation)
        return [*moves, *directions[:place], *rewritten, *directions[place:]]

    def uses(self, skill: Skill, situation: Situation) -> bool:
        """Whether a skill acts without a model and would make another kernel of the parent."""
        if skill.moves:
            written = self._find_written(situation)
            return written is not None and open_move(skill, situation, written) is not None
        chosen = situation.parent.choices if situation.parent else ()
        if skill.name in situation.rewritten:
            steps = situation.rewrites.steps_of(chosen)
            return situation.rewritten[skill.name].steps != steps
        in_parent = {choice.recipe for choice in chosen}
        return skill.name in situation.writable and skill.name not in in_parent

    def _find_written(self, situation: Situation) -> Written | None:
        """What recipes wrote of the parent kernel; None if nothing, or nothing they write today.

        It is kept for the next question, for every skill asks.
        """
        parent, traced = situation.parent, situation.traced
        if parent is None or not parent.choices:
            return None
        if self._asked is None or self._asked[:2] != (parent.hash, id(traced)):
            # the problem is held, so that its id stays its own
            self._asked = parent.hash, id(traced), traced, self._read_written(situation, parent)
        return self._asked[3]

    def _read_written(self, situation: Situation, parent: Kernel) -> Written | None:
        known = {field.name: getattr(situation, field.name) for field in fields(Situation)}
        task = Task(Move.TUNE, "", parent.hash, 1, "")
        for form in _forms(about := Assignment(**known, task=task)):
            about = replace(about, traced=form.traced)
            cover = _cover(about.traced.graph, self._options(about), about)
            if cover:
                sites = inherited_sites(about)
                return Written(
                    cover, [start_settings(option, sites) for option in cover], form.steps
                )
        return None

    def _propose_rewritten(self, situation: Situation) -> list[Direction]:
        """The rewritten forms that the parent is not of."""
        parent = situation.parent
        steps = situation.rewrites.steps_of(parent.choices) if parent else ()
        offered = {prescription.skill for prescription in situation.prescriptions}
        return [
            Direction(
                self.name,
                Move.FIX if parent and name in offered else Move.SEED,
                name,
                "; ".join(form.reasons),
            )
            for name, form in situation.rewritten.items()
            if form.steps != steps
        ]

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Candidates for a task, best guess first.

        The list is empty if no recipe of the task's skill matches or nothing new is left.
        """
        with self._writing:
            return self._write(assignment)

    def foresee(self, assignment: Assignment) -> float | None:
        with self._writing:
            for form, cover, about in self._covers(assignment):
                return next((draft.whole_ms for draft in self._drafts(form, cover, about)), None)
        return None

    def _write(self, assignment: Assignment) -> list[Candidate]:
        for form, cover, about in self._covers(assignment):
            return self._write_on(form, cover, about)
        return []

    def _covers(
        self, assignment: Assignment
    ) -> Iterator[tuple[Rewritten, Sequence[SiteOption], Assignment]]:
        """The forms of the problem that have something to write, with it, the likeliest first.

        An assignment comes along whose problem is the form.
        """
        for form in _forms(assignment):
            about = replace(assignment, traced=form.traced)
            cover = _cover(about.traced.graph, self._options(about), about)
            if cover is not None:
                yield form, cover, about

    def _drafts(
        self, form: Rewritten, cover: Sequence[SiteOption], assignment: Assignment
    ) -> Iterator[_Draft]:
        """What could be written for one form of the problem and is new, best guess first."""
        graph = assignment.traced.graph
        seen = {attempt.candidate.kernel.choices for attempt in assignment.history}
        like = [
            attempt
            for attempt in assignment.history
            if assignment.rewrites.steps_of(attempt.candidate.kernel.choices) == form.steps
        ]
        calibrator = self._calibrator(assignment.experience, own_experience(like, graph), graph)
        left_ms = left_over_ms(graph, cover, assignment.traced)
        calibrated = [calibrator.calibrate(option) for option in cover]
        for proposed in propose_settings(calibrated, assignment):
            settings = [
                raise_to_rung(option, setting, assignment)
                for option, setting in zip(cover, proposed, strict=True)
            ]
            choices = Written(cover, settings, form.steps).choices(settings)
            if choices not in seen:
                seen.add(choices)
                predicted_ms = total_ms(cover, settings, assignment.traced.device)
                yield _Draft(settings, choices, predicted_ms, predicted_ms + left_ms)

    def _write_on(
        self, form: Rewritten, cover: Sequence[SiteOption], assignment: Assignment
    ) -> list[Candidate]:
        """Candidates for one form of the problem, which the assignment has in place of the own."""
        candidates: list[Candidate] = []
        parent = assignment.parent.hash if assignment.parent else None
        for draft in self._drafts(form, cover, assignment):
            # _kept holds what is traced; an emission may know the order of its knobs
            key = id(assignment.traced), parent, draft.choices, repr(draft.settings)
            try:
                kernel = self._texts.get(key) or write_kernel(
                    assignment, cover, draft.settings, draft.choices, form.flags
                )
            except RecipeError as ex:  # one skill's fault must not end the run
                if str(ex) not in self._told:
                    logger.warning("%s is passed over: %s", assignment.task.skill, ex)
                    self._told.add(str(ex))
                continue
            self._texts[key] = kernel
            estimated_ms = draft.predicted_ms if cover else None
            candidates.append(
                Candidate(kernel, assignment.task, self.name, estimated_ms, draft.whole_ms)
            )
            if len(candidates) >= assignment.task.samples:
                break
        return candidates

    def _calibrator(
        self, known: Sequence[Experience], own: list[Experience], graph: OpGraph
    ) -> Calibrator:
        """What corrects this graph's options, kept from the last task that knew as much."""
        kept = self._calibrators.get(id(graph))
        if kept is None or kept[0] is not graph or kept[1] is not known or kept[2] != own:
            kept = graph, known, own, Calibrator([*known, *own], graph)
            self._calibrators[id(graph)] = kept
        return kept[3]

    def _options(self, assignment: Situation) -> list[SiteOption]:
        """The ranked sites of the assignment's graphs, kept from the last task on the same graphs.

        All tasks of a run ask about the same graphs, and ranking a large space takes seconds.
        """
        traced, recipes = assignment.traced, assignment.recipes
        # Identity, not equality: comparing graphs node by node would cost as much as it saves.
        kept = self._kept.get(id(traced))
        if kept is None or kept[0] is not traced or kept[1] is not recipes:
            asked = traced.graphs, recipes, traced.contract, traced.device
            options = find_options(*asked)
            options += smaller_options(*asked, options)
            self._kept[id(traced)] = kept = traced, recipes, options
        return kept[2]


def _forms(assignment: Assignment) -> list[Rewritten]:
    """The forms of the problem that a task may be written for, the likeliest first.

    That is the form of the task's own rewrite, else that of what the task goes on from, else the
    problem as traced. None where a remembered rewrite does not apply any more.
    """
    task, rewrites = assignment.task, assignment.rewrites
    if task.skill in assignment.rewritten and task.move in (Move.SEED, Move.FIX):
        return [assignment.rewritten[task.skill]]
    as_traced = Rewritten(assignment.traced, (), (), ())
    form = rewrites.apply(assignment.traced, inherited_choices(assignment))
    if goes_on(assignment):
        return [] if form is None else [form]
    return [as_traced] if form is None or not form.steps else [form, as_traced]


def _cover(
    graph: OpGraph, options: Sequence[SiteOption], assignment: Assignment
) -> list[SiteOption] | None:
    """The sites this task writes; None if there is nothing for it to write.

    Remembered or inherited choices keep their sites; the task's own skill goes first. A rewritten
    graph may be left to the library as a whole.
    """
    task, traced = assignment.task, assignment.traced
    inherited = inherited_sites(assignment)
    own = [option.place for option in options if option.recipe.name == task.skill]
    kept = [(choice.recipe, choice.site, choice.members) for choice in inherited]
    if goes_on(assignment):
        # Knobs remembered from another module name its sites, not ours: then every site of the same
        # recipe takes them.
        recipes = {choice.recipe for choice in inherited}
        if not recipes:
            return [] if inherited_choices(assignment) else None
        like = [option.place for option in options if option.recipe.name in recipes]
        chosen = cover_graph(graph, options, traced.contract, traced.device, prefer=[kept, like])
        return chosen if {option.recipe.name for option in chosen} & recipes else None
    if task.skill in assignment.rewritten:
        return cover_graph(graph, options, traced.contract, traced.device)
    if not own:
        return None
    return cover_graph(graph, options, traced.contract, traced.device, prefer=[own, kept])
