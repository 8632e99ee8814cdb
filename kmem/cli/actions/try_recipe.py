"""`kmem skills try`: what a recipe finds in a problem, what it writes, whether that is right."""

from functools import partial

import click

from kmem.cli.display.skills import print_table
from kmem.codegen.module.assemble import EmittedModule, assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.devices import detect_device, named_target
from kmem.errors import ProblemError
from kmem.explore.recipes.cover import SiteOption, find_options
from kmem.explore.recipes.writing import plan_site
from kmem.problem.graph import OpGraph
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.load import FULL, execute_problem, load_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Contract, Device, Measurement, Problem, Status, TensorSpec
from kmem.run.evaluation.single import Terms, judge_case, make_case
from kmem.skills import Skill, load_recipe


def try_recipe(skill: Skill, path: str, target: str) -> bool:
    """Try the recipe of a skill on a problem, telling each step; whether it matched and is right.

    Raises:
        ProblemError: if the problem breaks its contract, or has no small size.
        RecipeError: if the recipe raises, or writes no module.
    """
    recipe = load_recipe(skill)
    assert recipe is not None, "whoever calls asks for a skill with a recipe"
    problem, device = load_problem(path), named_target(target)
    traced = trace_to_try(problem, device)
    options = find_options(traced.graphs, {skill.name: recipe}, traced.contract, device)
    print_graph(traced.graphs["full"], options)
    if not options:
        click.echo(
            f"{skill.name} matches no part of {problem.name}: compare its `match` with the "
            "operators above",
            err=True,
        )
        return False
    _print_sites(options)
    module = _write(skill, traced, options)
    for option in options:
        _print_emission(option)
    return print_verdict(problem, module, traced, f"The recipe {skill.name}")


def print_verdict(
    problem: Problem, module: EmittedModule, traced: TracedProblem, name: str
) -> bool:
    """Judge a module and print what the judge says; whether it passed."""
    case = make_case(
        problem.path,
        module.source,
        Terms(traced.contract),
        name=name,
        small_constants=module.constants.get("small", ""),
    )
    present = detect_device()
    verdict, _ = judge_case(
        case,
        present or traced.device,
        gpu=present is not None,
        announce=partial(click.echo, err=True),
    )
    where = "on the GPU" if present else "in the Triton interpreter, at small sizes"
    click.echo(f"# ---- checked {where}: {verdict.status.value}")
    click.echo(_reasons(verdict))
    return verdict.status is Status.PASSED


def _reasons(verdict: Measurement) -> str:
    """How large the errors were, and what the judge says of a kernel that did not pass."""
    worst = max((each.relative_error for each in verdict.errors), default=None)
    lines = (
        [] if worst is None else [f"largest error {worst:.2g} over {len(verdict.errors)} checks"]
    )
    return "\n".join([*lines, *verdict.log.strip().splitlines()[-6:]])


def trace_to_try(problem: Problem, device: Device) -> TracedProblem:
    """A problem traced at its own and at small sizes. Raises ProblemError: if either fails."""
    contract = Contract()
    workloads = {"full": FULL, "small": derive_small_workload(problem)}
    graphs = {
        name: trace_problem(execute_problem(problem, workload), contract.precision)
        for name, workload in workloads.items()
    }
    reason = graphs["full"].opaque_reason
    if reason is not None:
        raise ProblemError(
            f"{problem.name} cannot be traced to single operators ({reason}), so no recipe can "
            "match it; take a forward without what is named"
        )
    return TracedProblem(problem, contract, device, workloads, graphs, None)


def print_graph(graph: OpGraph, options: list[SiteOption]) -> None:
    """Print the nodes of a graph, each with the site that covers it."""
    written = {name: option.site.name for option in options for name in option.site.nodes}
    print_table(
        ("node", "operator", "result", "site"),
        [
            (node.name, node.target, _describe(node.output), written.get(node.name, ""))
            for node in graph.nodes
        ],
    )


def _describe(output: TensorSpec | tuple[TensorSpec, ...] | None) -> str:
    if output is None:
        return ""
    specs = output if isinstance(output, tuple) else (output,)
    return ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs)


def _print_sites(options: list[SiteOption]) -> None:
    print_table(
        ("site", "operator", "reads", "MB", "settings", "best-ranked", "estimate"),
        [
            (
                option.site.name,
                option.site.operator,
                ", ".join(operand.name for operand in option.site.inputs),
                f"{option.site.bytes / 1e6:.4g}",
                str(len(option.ranked)),
                " ".join(f"{name}={value}" for name, value in option.ranked[0][1].items()),
                f"{option.best_ms:.4g} ms",
            )
            for option in options
        ],
    )


def _print_emission(option: SiteOption) -> None:
    emission = option.recipe.emit(option.site, option.ranked[0][1])
    click.echo(f"# ---- what it writes for {option.site.name}")
    for _, text in emission.kernels:
        click.echo(text.strip("\n"))
    click.echo(emission.launcher.strip("\n"))


def _write(skill: Skill, traced: TracedProblem, options: list[SiteOption]) -> EmittedModule:
    """The module with the recipe's best-ranked settings at all its sites, for every workload."""
    plans = [
        WorkloadPlan(
            name,
            graph,
            tuple(
                plan_site(graph, option, option.ranked[0][1], traced.contract) for option in options
            ),
        )
        for name, graph in traced.graphs.items()
    ]
    title = f"{traced.problem.name}: {skill.name}, tried"
    return assemble_module(title, traced.problem.source, plans)
