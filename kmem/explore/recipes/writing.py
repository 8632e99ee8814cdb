"""The module that recipes write at chosen settings, for every workload of a problem."""

from collections.abc import Sequence
from importlib import metadata

from kmem import __version__
from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.errors import RecipeError, foreign_code
from kmem.explore.recipes.cover import SiteOption
from kmem.interfaces import Assignment
from kmem.problem.costs.bound import library_ms
from kmem.problem.graph import OpGraph
from kmem.problem.traced import TracedProblem
from kmem.recipes import Settings
from kmem.records import Contract, Device, Kernel, SiteChoice


def total_ms(cover: Sequence[SiteOption], settings: Sequence[Settings], device: Device) -> float:
    """What the cost models say of a cover's sites, in ms."""
    return sum(
        option.recipe.cost_ms(option.site, setting, device)
        for option, setting in zip(cover, settings, strict=True)
    )


def left_over_ms(graph: OpGraph, cover: Sequence[SiteOption], traced: TracedProblem) -> float:
    """What the library is predicted to take for the nodes that a cover leaves to it, in ms."""
    written = {name for option in cover for name in option.site.nodes}
    return library_ms(graph, written, traced.device, traced.contract)


def write_kernel(
    assignment: Assignment,
    cover: Sequence[SiteOption],
    settings: Sequence[Settings],
    choices: tuple[SiteChoice, ...],
    flags: Sequence[str] = (),
) -> Kernel:
    """One module with these settings at its sites, for every workload.

    Args:
        assignment: its graphs are those that the sites are of.
        choices: the rewrites that made the graphs, then the sites'.
        flags: of the rewrites.
    """
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
    flags = sorted({*flags, *(flag for option in cover for flag in option.site.flags)})
    estimated_ms = total_ms(cover, settings, traced.device)
    provenance = (
        f"Written by kmem {__version__} for {traced.device.full_name}, precision "
        f"{traced.contract.precision.value}, with torch {metadata.version('torch')} and Triton "
        f"{metadata.version('triton')}; its recipes' cost models expect {estimated_ms:.3g} ms of "
        f"their kernels."
    )
    versions = {option.recipe.name: option.recipe.version for option in cover}
    listed = ", ".join(f"{name} (code {version})" for name, version in sorted(versions.items()))
    provenance += f" Kernels by {listed}; their knobs stand above them." if listed else ""
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
    site = option.site_in(graph, contract)
    knobs = ", ".join(f"{name} {value}" for name, value in sorted(setting.items()))
    origin = f"{option.recipe.name} with {knobs}" if knobs else option.recipe.name
    with foreign_code(f"the recipe of {option.recipe.name}", RecipeError):
        emission = option.recipe.emit_like(site, setting, option.site)
    return SitePlan(site, emission, origin)
