"""What one run works with, made once: device, workloads, traced graphs, bound, recipes, skills and
the identities memory needs.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

import kmem
from kmem.errors import ProblemError
from kmem.explore.recipes.cover import find_options
from kmem.memory.skills.standing import without_retracted
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.bound import graph_bound
from kmem.problem.graph import OpGraph
from kmem.problem.load import FULL, check_forward, execute_problem
from kmem.problem.naming import name_operators
from kmem.problem.trace import trace_problem
from kmem.problem.workload import derive_small_workload
from kmem.recipes import Recipe
from kmem.records import Bound, Contract, Device, Problem, Workload
from kmem.skills import Skill, load_recipe, load_skill


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that does not change during a run.

    `present` says that the device is here, so that times are measured.
    """

    problem: Problem
    contract: Contract
    device: Device
    present: bool
    workloads: Mapping[str, Workload]  # full, and small if one could be derived
    graphs: Mapping[str, OpGraph]
    bound: Bound | None
    skills: Mapping[str, Skill]
    recipes: Mapping[str, Recipe]
    operators: tuple[str, ...]
    writable: Mapping[str, float]  # executable skills that match, with the bytes of their sites
    notes: tuple[str, ...]

    @property
    def graph(self) -> OpGraph:
        return self.graphs["full"]


def open_session(
    problem: Problem,
    contract: Contract,
    device: Device,
    present: bool,
    registry: Registry,
    memory: Memory,
) -> Session:
    """Load skills, derive the small workload, trace and bound.

    Raises ProblemError: if the problem breaks the contract or its forward fails.
    """
    notes: list[str] = []
    workloads = {"full": FULL}
    full_module = execute_problem(problem, FULL)
    check_forward(full_module, contract.precision)
    try:
        workloads["small"] = derive_small_workload(problem)
    except ProblemError as ex:
        if not present:  # without a GPU there is nothing else to prove correctness on
            raise
        notes.append(str(ex))
    graphs = {
        name: trace_problem(execute_problem(problem, workload), contract.precision)
        for name, workload in workloads.items()
    }
    graph = graphs["full"]
    if graph.opaque_reason:
        notes.append(f"the forward is one opaque call: {graph.opaque_reason}")
    elif "small" in graphs and [node.target for node in graphs["small"].nodes] != [
        node.target for node in graph.nodes
    ]:
        del graphs["small"], workloads["small"]
        notes.append("the small workload runs other operators than the full one and is not used")
    skills = load_library(registry)
    memory.skills.sync(list(skills.values()))
    skills = without_retracted(memory, skills)
    recipes = {
        name: recipe for name, skill in skills.items() if (recipe := load_recipe(skill)) is not None
    }
    options = find_options(graphs, recipes, contract, device)
    writable: dict[str, float] = {}
    for option in options:
        writable[option.recipe.name] = writable.get(option.recipe.name, 0.0) + option.site.bytes
    parts = [(option.site.operator, option.site.nodes) for option in options]
    operators = name_operators(graph, parts, device, contract)
    bound = graph_bound(graph, device, contract)
    return Session(
        problem,
        contract,
        device,
        present,
        workloads,
        graphs,
        bound,
        skills,
        recipes,
        operators,
        writable,
        tuple(notes),
    )


def load_library(registry: Registry) -> dict[str, Skill]:
    """Every registered skill (those the user added are registered too), by name.

    Raises SkillError for a faulty one.
    """
    return {name: load_skill(path) for name, path in sorted(registry.skills.items())}


def versions() -> dict[str, str]:
    """What a measurement depends on besides the device: torch, Triton, Python, kmem, and the CUDA
    driver where there is one.
    """
    found = {name: metadata.version(name) for name in ("torch", "triton")}
    found |= {"kmem": kmem.__version__, "python": platform.python_version()}
    import torch

    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
    return found


def versions_key(found: Mapping[str, str]) -> str:
    """One string for a set of versions, for keys."""
    return json.dumps(dict(found), sort_keys=True)
