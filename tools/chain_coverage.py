"""Into how many pieces recipes cut problems, what they leave to the library, and predicted times.

    python tools/chain_coverage.py PATH... [--purity library|triton] [--target h200] [--csv FILE]
        [--rewritten] [--write DIR]

A PATH is a problem's file or a directory of them, such as KernelBench/level2 or problems/. No GPU
is needed: problems are traced, matched and cut as `kmem optimize --target` does it with an empty
memory, each at the settings that cost models expect to be fastest. A line has the pieces (sites
that recipes write, and operators that compute and are left to the library), what is left, the
predicted time, the bound, and the seconds that it took. `--rewritten` cuts the best rewritten form
of each problem too; `--write` keeps the modules.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.counters import is_counter
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.errors import KmemError, ProblemError
from kmem.explore.recipes.cover import (
    SiteOption,
    cover_graph,
    find_options,
    smaller_options,
)
from kmem.explore.recipes.rewriting import find_rewritten
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.operators.table import find_operator
from kmem.problem.source.load import load_problem
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.recipes import Recipe
from kmem.records import Contract, Purity
from kmem.rewrites import Rewrites
from kmem.skills import load_recipe, load_rewrite, load_skill

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Cut:
    """What recipes make of one problem."""

    problem: str
    rewrites: str
    pieces: int
    sites: str
    left: str  # operators that compute and no site covers
    predicted_ms: float
    bound_ms: float
    seconds: float


def find_problems(paths: list[Path]) -> Iterator[Path]:
    """Files of problems, in the order of their names."""
    for path in paths:
        if path.is_file():
            yield path
            continue
        named = [file for file in path.glob("*.py") if not file.name.startswith("_")]
        yield from sorted([*named, *path.glob("*/problem.py")], key=_number)


def _number(file: Path) -> tuple[int, str]:
    first = file.stem.split("_")[0]
    return int(first) if first.isdigit() else 0, str(file)


def cut(
    name: str, traced: TracedProblem, recipes: dict[str, Recipe], rewrites: str = ""
) -> tuple[Cut, str]:
    """The cut of one problem, and the module that it is written as."""
    started = time.perf_counter()
    graph, contract, device = traced.graph, traced.contract, traced.device
    options = find_options(traced.graphs, recipes, contract, device)
    options += smaller_options(traced.graphs, recipes, contract, device, options)
    chosen = cover_graph(graph, options, contract, device)
    covered = {node for option in chosen for node in option.site.nodes}
    if chosen:  # a kernel moves counters along where others are launched
        covered |= {node.name for node in graph.nodes if is_counter(graph, node)}
    costs = node_costs_ms(graph, device, contract)
    left = [node for node in graph.nodes if node.name not in covered and costs[node.name] > 0]
    predicted_ms = sum(option.best_ms for option in chosen)
    predicted_ms += sum(costs[node.name] for node in left)
    plan = WorkloadPlan("full", graph, tuple(map(_plan, chosen)))
    source = assemble_module(name, traced.problem.source, [plan]).source
    found = Cut(
        name,
        rewrites,
        len(chosen) + len(left),
        " + ".join(f"{option.site.name}:{option.recipe.name}" for option in chosen),
        " ".join(_operator(node.target) for node in left),
        round(predicted_ms, 5),
        round(traced.bound.time_ms, 5) if traced.bound else 0.0,
        round(time.perf_counter() - started, 1),
    )
    return found, source


def _plan(option: SiteOption) -> SitePlan:
    settings = option.ranked[0][1]
    return SitePlan(option.site, option.recipe.emit(option.site, settings), option.recipe.name)


def _operator(target: str) -> str:
    operator = find_operator(target)
    return operator.name if operator is not None and operator.name != "layout" else target


def main() -> None:
    """Print a line for each problem, and totals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--purity", choices=[each.value for each in Purity], default="triton")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rewritten", action="store_true")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    contract, device = Contract(purity=Purity(asked.purity)), named_target(asked.target)
    skills = [load_skill(place) for place in sorted((ROOT / "skills").iterdir()) if place.is_dir()]
    recipes = {each.name: recipe for each in skills if (recipe := load_recipe(each)) is not None}
    loaded = {each.name: found for each in skills if (found := load_rewrite(each)) is not None}
    rows: list[Cut] = []
    for file in find_problems(asked.paths):
        name = file.parent.name if file.name == "problem.py" else file.stem
        try:
            forms = [("", trace_at_full_size(load_problem(file), contract, device))]
            if (reason := forms[0][1].graph.opaque_reason) is not None:
                raise ProblemError(f"its graph is not known: {reason}")
            if asked.rewritten:
                found = find_rewritten(forms[0][1], Rewrites(loaded))
                best = next(iter(found.values()), None)
                if best is not None:
                    forms.append((" ".join(step.recipe for step in best.steps), best.traced))
            for steps, traced in forms:
                row, source = cut(name, traced, recipes, steps)
                rows.append(row)
                print(
                    row.pieces,
                    row.problem,
                    row.sites,
                    f"[{row.left}]",
                    row.rewrites,
                    f"{row.predicted_ms:.4g} of {row.bound_ms:.4g} ms, {row.seconds} s",
                    flush=True,
                )
                if asked.write:
                    asked.write.mkdir(parents=True, exist_ok=True)
                    suffix = "_rewritten" if steps else ""
                    (asked.write / f"{name}{suffix}.py").write_text(source)
        except KmemError as ex:
            print(f"{name}: {ex}", file=sys.stderr, flush=True)
    print(
        f"{len(rows)} cuts, {sum(row.pieces for row in rows)} pieces, "
        f"{sum(bool(row.left) for row in rows)} with something left to the library, "
        f"{sum(row.predicted_ms for row in rows):.5g} ms predicted"
    )
    if asked.csv:
        with open(asked.csv, "w", newline="", encoding="utf-8") as text:
            writer = csv.DictWriter(text, [field.name for field in fields(Cut)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
