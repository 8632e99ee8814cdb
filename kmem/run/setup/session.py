"""What one run works with and never changes: the traced problem, the skills and their recipes."""

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata

import torch

import kmem
from kmem.errors import RecipeError
from kmem.explore.recipes.cover import find_options
from kmem.explore.recipes.rewriting import find_rewritten
from kmem.memory.ledger.experience import recall_measured
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.features.naming import name_operators
from kmem.problem.graph import graph_sizes
from kmem.problem.traced import TracedProblem
from kmem.recipes import Recipe
from kmem.records import Bound, Contract, Device, Kernel, MeasuredKernel, Problem
from kmem.rewrites import Rewrites, Rewritten
from kmem.run.setup.tracing import trace_for_run
from kmem.skills import Skill, load_recipes, load_rewrites, recipe_version
from kmem.skills import load_library as load_registered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """What a run works with; made once.

    `present` says that the device is here, so that times are measured. `operators` are those of the
    sites that recipes found ("opaque" if there are none); memory tells problems apart by them.
    """

    traced: TracedProblem
    present: bool
    skills: Mapping[str, Skill]
    recipes: Mapping[str, Recipe]
    operators: tuple[str, ...]
    writable: Mapping[str, float]  # executable skills that match, with the bytes of their sites
    notes: tuple[str, ...]  # what the user should know of the problem
    # the nodes of every site that a recipe can write, by recipe and site
    site_nodes: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    # of recipes and rewrites, by the name of their skill
    recipe_versions: Mapping[str, str] = field(default_factory=dict)
    rewrites: Rewrites = field(default_factory=Rewrites)
    # rewritten forms of the problem by the rewrite that is their direction, best first
    rewritten: Mapping[str, Rewritten] = field(default_factory=dict)
    measured: tuple[MeasuredKernel, ...] = ()  # what the ledger holds of this graph on this card

    @property
    def graph_key(self) -> GraphKey:
        """What memory is asked by about this problem's graph."""
        graph = self.traced.graph
        return GraphKey(
            graph.hash,
            graph.structure_hash,
            self.operators,
            graph_sizes(graph),
            self.traced.device.arch,
            self.traced.contract,
        )

    def least_bound(self, kernel: Kernel | None) -> Bound | None:
        """The bound of the problem, or that of the graph that a kernel was rewritten to if lower.

        What algebra takes away the problem's own bound still counts.
        """
        own = self.traced.bound
        form = self.rewrites.apply(self.traced, kernel.choices) if kernel else None
        if own is None or form is None or form.traced.bound is None:
            return own
        return min(own, form.traced.bound, key=lambda bound: bound.time_ms)


def open_session(
    problem: Problem,
    contract: Contract,
    device: Device,
    present: bool,
    registry: Registry,
    memory: Memory,
) -> Session:
    """Trace a problem, load the skills, and find what their recipes can write.

    Raises ProblemError, DeviceMemoryError: as `trace_for_run` does.
    """
    traced, notes = trace_for_run(problem, contract, device, needs_small=not present)
    device = traced.device
    skills = load_library(registry)
    memory.skills.sync(list(skills.values()))
    skills = memory.standings.without_retracted(skills)
    recipes, left_out = load_recipes(skills.values())
    options = []
    for name in sorted(recipes):
        try:
            options += find_options(traced.graphs, {name: recipes[name]}, contract, device)
        except RecipeError as ex:  # one skill's fault must not end the run
            left_out.append(f"Skill {name} is left out: {ex}; mend or remove {skills[name].path}")
            del recipes[name]
    rewrites, broken = _load_rewrites(traced, skills)
    left_out += broken
    skills = {
        name: skill
        for name, skill in skills.items()
        if (name in recipes or not skill.has_recipe) and (name in rewrites or not skill.has_rewrite)
    }
    for reason in left_out:
        logger.warning("Warning: %s", reason)
    writable: dict[str, float] = {}
    for option in options:
        writable[option.recipe.name] = writable.get(option.recipe.name, 0.0) + option.site.bytes
    parts = [(option.site.operator, option.site.nodes) for option in options]
    operators = name_operators(traced.graph, parts, device, contract)
    nodes = {(option.recipe.name, option.site.name): option.site.nodes for option in options}
    recipe_versions = {
        name: recipe_version(skill) for name, skill in skills.items() if skill.has_code
    }
    session = Session(
        traced,
        present,
        skills,
        recipes,
        operators,
        writable,
        (*notes, *left_out),
        site_nodes=nodes,
        recipe_versions=recipe_versions,
        rewrites=rewrites,
        rewritten=find_rewritten(traced, rewrites),
    )
    measured = recall_measured(memory.storage, session.graph_key, device.full_name)
    return replace(session, measured=measured)


def _load_rewrites(
    traced: TracedProblem, skills: Mapping[str, Skill]
) -> tuple[Rewrites, list[str]]:
    """The rewrites of the skills, those that fail on this problem left out, with the reasons."""
    loaded, left_out = load_rewrites(skills.values())
    rewrites = Rewrites(loaded)
    for name in sorted(loaded):
        try:
            find_rewritten(traced, rewrites, [name])
        except RecipeError as ex:  # one skill's fault must not end the run
            left_out.append(f"Skill {name} is left out: {ex}; mend or remove {skills[name].path}")
            del rewrites.loaded[name]
    return rewrites, left_out


def load_library(registry: Registry) -> dict[str, Skill]:
    """Every registered skill by name, those that the user added among them.

    A broken one is a warning and left out.
    """
    return load_registered(registry.skills)


def versions() -> dict[str, str]:
    """What a measurement depends on besides the device.

    The versions of torch, Triton, Python and kmem, and of CUDA where there is a GPU.
    """
    found = {name: metadata.version(name) for name in ("torch", "triton")}
    found |= {"kmem": kmem.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
    return found
