"""`kmem skills try` of a rewrite: where it applies, the graph it makes, whether that is equal."""

import click

from kmem.cli.actions.try_recipe import print_graph, print_verdict, trace_to_try
from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.devices import named_target
from kmem.explore.recipes.rewriting import predicted_ms
from kmem.problem.source.load import load_problem
from kmem.rewrites import Rewrites, Rewritten
from kmem.skills import Skill, load_rewrite


def try_rewrite(skill: Skill, path: str, target: str) -> bool:
    """Try the rewrite of a skill on a problem, telling each step; whether it applies and is equal.

    It is applied wherever it takes something off, one place after another. What it leaves is run
    by the library.

    Raises:
        ProblemError: if the problem breaks its contract, or has no small size.
        RecipeError: if the rewrite raises.
    """
    rewrite = load_rewrite(skill)
    assert rewrite is not None, "whoever calls asks for a skill with a rewrite"
    problem, device = load_problem(path), named_target(target)
    traced = trace_to_try(problem, device)
    print_graph(traced.graphs["full"], [])
    rewrites, rewritten = Rewrites({skill.name: rewrite}), Rewritten(traced, (), (), ())
    while further := rewrites.next_steps(rewritten, [skill.name]):
        cheapest = min(further, key=lambda each: predicted_ms(each.traced))
        if rewritten.steps and predicted_ms(cheapest.traced) >= predicted_ms(rewritten.traced):
            break
        rewritten = cheapest
    if not rewritten.steps:
        click.echo(
            f"{skill.name} applies nowhere in {problem.name}: compare its `rewritings` with the "
            "operators above",
            err=True,
        )
        return False
    for step, reason in zip(rewritten.steps, rewritten.reasons, strict=True):
        click.echo(f"# ---- rewritten at {step.site}: {reason}")
    print_graph(rewritten.traced.graphs["full"], [])
    before_ms, after_ms = predicted_ms(traced), predicted_ms(rewritten.traced)
    click.echo(f"# ---- predicted to take {after_ms:.4g} ms instead of {before_ms:.4g} ms")
    plans = [WorkloadPlan(name, graph, ()) for name, graph in rewritten.traced.graphs.items()]
    module = assemble_module(f"{problem.name}: {skill.name}, tried", problem.source, plans)
    return print_verdict(problem, module, traced, f"The rewrite {skill.name}")
