"""Check the times that users get without a GPU against measured ones, by rank.

    python tools/estimate_correlation.py [PATH...] [--problems DIR...] [--settings N]
        [--known | --without]

A PATH is an export of the ledger (`*.jsonl`) or a directory of recorded landscapes; by default all
that ships in db/evidence. Kernels are written again by today's recipes, compiled for the device and
estimated as `kmem optimize --target` does it after `kmem memory import db/evidence`, except that no
estimate knows the measured times it is compared with: evidence is what was measured of the problem
beside the settings that are compared (`--known`: those too, as a user has them; `--without`: none,
as with an empty memory). Compiling takes seconds a kernel, so of each problem
and set of recipes only `--settings` are taken: the fastest measured one, and others spread evenly
over the ranking down to the slowest. What the compiler said is kept in `--cache`, by the kernel's
text.

Printed are Spearman's rank correlations between estimated and measured times: within problems (the
mean over those with three settings or more), over all settings, and how often the set of recipes
that the estimates favour is the fastest one. Problems are found by name in problems/ and in DIR,
such as KernelBench/level1, and must trace to the graph that was measured.

On 2026-11-22, with KernelBench/level1, `--settings 3`, Triton 3.9 and the evidence of one H200: 634
settings of 148 problems, 0.73 within a problem (0.79 where settings differ by 20%), 0.98 over all,
the fastest recipe favoured on 43 of 46; with `--without` 0.67 (0.73), 0.96 and 44.
"""

import argparse
import json
import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_model_correlation import Measured, rank_correlation, read_measured

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.errors import KmemError, RecipeError
from kmem.explore.recipes.evidence import MeasuredEstimates
from kmem.learning.landscape import LandscapeDirectory
from kmem.problem.source.load import load_problem
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileStatus
from kmem.profile.estimate import estimate_kernel_ms, library_part_ms
from kmem.recipes import Recipe
from kmem.records import Contract, Device, Kernel, Launch, MeasuredKernel, Problem, SiteChoice
from kmem.serialize import from_data, to_data
from kmem.skills import load_recipe, load_skill

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300.0
#: Slowest over fastest setting of a problem from which their order is more than the noise of timing
#: and worth knowing.
TELLING = 1.2


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting of one problem: estimated and measured."""

    problem: str
    recipes: str
    estimated_ms: float
    measured_ms: float


class Compiled:
    """Launches by the hash of a kernel's text, kept in a file."""

    def __init__(self, file: Path, count: int) -> None:
        self._file = file
        self._known: dict[str, tuple[Launch, ...] | None] = {}
        self._processes = CompileProcesses(count, file.parent / "triton")
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                kept = entry["launches"]
                self._known[entry["kernel"]] = (
                    None if kept is None else tuple(from_data(Launch, each) for each in kept)
                )

    def close(self) -> None:
        self._processes.close()

    def launches(
        self, kernels: Sequence[Kernel], traced: TracedProblem
    ) -> list[tuple[Launch, ...] | None]:
        """The launches of each kernel, without times; None for one that does not compile."""
        new = [kernel for kernel in kernels if kernel.hash not in self._known]
        if new:
            with CompilePool(traced, processes=self._processes) as pool:
                reports = pool.compile(new, timeout_s=TIMEOUT_S)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._file, "a", encoding="utf-8") as file:
                for report in reports:
                    found = report.launches if report.status is CompileStatus.OK else None
                    self._known[report.kernel] = found
                    kept = None if found is None else [to_data(launch) for launch in found]
                    file.write(json.dumps({"kernel": report.kernel, "launches": kept}) + "\n")
        return [self._known[kernel.hash] for kernel in kernels]


def choose_settings(measured: Sequence[Measured], count: int) -> list[Measured]:
    """Of each set of recipes the fastest setting and others down to the slowest, evenly."""
    groups: dict[str, dict[object, Measured]] = defaultdict(dict)
    for entry in sorted(measured, key=lambda entry: -entry.latency_ms):
        groups[recipes_of(entry)][entry.choices] = entry  # of repeated ones the fastest
    chosen = []
    for group in groups.values():
        ranked = sorted(group.values(), key=lambda entry: entry.latency_ms)
        last, steps = len(ranked) - 1, max(1, count - 1)
        chosen += [ranked[place] for place in sorted({last * i // steps for i in range(count)})]
    return chosen


def recipes_of(entry: Measured) -> str:
    return " + ".join(sorted({name for name, *_ in entry.choices}))


def choices_of(entry: Measured) -> tuple[SiteChoice, ...]:
    """The choices in the ledger's form, less the operator, which tells nothing more."""
    return tuple(
        SiteChoice(site, "", recipe, tuple(sorted(knobs))) for recipe, site, knobs in entry.choices
    )


def write_module(
    traced: TracedProblem, recipes: Mapping[str, Recipe], entry: Measured
) -> Kernel | None:
    """The module that was measured, as today's recipes write it; None if they do not any more."""
    plans = []
    for name, place, knobs in entry.choices:
        recipe = recipes.get(name)
        sites = recipe.match(traced.graph, entry.contract) if recipe is not None else []
        site = next((site for site in sites if site.name == place), None)
        if site is None:
            return None
        space = recipe.space(site, traced.device)
        settings = space.completed(dict(knobs))  # measured before its recipe had rungs
        if set(settings) != set(space.knobs) or not space.allows(settings):
            return None
        plans.append(SitePlan(site, recipe.emit(site, settings)))
    plan = WorkloadPlan("full", traced.graph, tuple(plans))
    try:
        return Kernel(assemble_module("estimate", traced.problem.source, [plan]).source)
    except RecipeError:  # a site of that name covers other nodes today
        return None


def read_problems(paths: Sequence[Path], places: Sequence[Path]) -> dict[str, list[Problem]]:
    """The problems that there are, by name; landscapes bring their own."""
    found: dict[str, list[Problem]] = defaultdict(list)
    for place in places:
        for file in sorted([*place.glob("*/problem.py"), *place.glob("*.py")]):
            problem = load_problem(file)
            found[problem.name].append(problem)
    for path in paths:
        for landscape in LandscapeDirectory(path).read() if path.is_dir() else ():
            found[landscape.header.problem.name].append(landscape.header.problem)
    return found


def compare(
    measured: Sequence[Measured],
    problems: Mapping[str, Sequence[Problem]],
    recipes: Mapping[str, Recipe],
    device: Device,
    compiled: Compiled,
    options: argparse.Namespace,
) -> Iterator[Compared]:
    """Estimates beside measured times, problem by problem."""
    groups: dict[tuple[str, str, Contract], list[Measured]] = defaultdict(list)
    for entry in measured:
        groups[entry.problem, entry.graph_hash, entry.contract].append(entry)
    for (name, graph_hash, contract), entries in sorted(groups.items(), key=lambda item: str(item)):
        traced = None
        for problem in problems.get(name, ()):
            traced = trace_at_full_size(problem, contract, device)
            if traced.graph.hash == graph_hash:
                break
        if traced is None or traced.graph.hash != graph_hash:
            logging.info("%s: not found, or another graph than was measured", name)
            continue
        chosen = choose_settings(entries, options.settings)
        pairs = [
            (entry, kernel)
            for entry in chosen
            if (kernel := write_module(traced, recipes, entry)) is not None
        ]
        unknown = set() if options.known else {entry.choices for entry in chosen}
        others = [
            MeasuredKernel(choices_of(entry), entry.latency_ms)
            for entry in sorted(entries, key=lambda entry: -entry.latency_ms)
            if entry.choices not in unknown and not options.without
        ]
        estimates = MeasuredEstimates(traced, recipes, others)
        launches = compiled.launches([kernel for _, kernel in pairs], traced)
        for (entry, _), found in zip(pairs, launches, strict=True):
            if found is None:
                continue
            estimated = estimates.expect_ms(
                choices_of(entry),
                estimate_kernel_ms(found, traced.bound, traced.device),
                library_part_ms(found, traced.device),
            )
            if math.isfinite(estimated):
                key = f"{name} {contract.precision.value}"
                yield Compared(key, recipes_of(entry), estimated, entry.latency_ms)


def summarise(compared: Sequence[Compared]) -> str:
    """The correlations, and how far estimates are off by recipe."""
    problems: dict[str, list[Compared]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for entry in compared:
        problems[entry.problem].append(entry)
        ratios[entry.recipes].append(math.log(entry.estimated_ms / entry.measured_ms))
    within = {}
    right, asked = 0, 0
    for name, entries in problems.items():
        if len(entries) >= 3:
            value = rank_correlation(
                [entry.estimated_ms for entry in entries], [entry.measured_ms for entry in entries]
            )
            # estimates that are all equal know nothing
            within[name] = 0.0 if math.isnan(value) else value
        if len({entry.recipes for entry in entries}) > 1:
            asked += 1
            favoured = min(entries, key=lambda entry: entry.estimated_ms).recipes
            right += favoured == min(entries, key=lambda entry: entry.measured_ms).recipes
    lines = [
        f"{name:60} {value:6.2f}" for name, value in sorted(within.items(), key=lambda i: i[1])
    ]
    lines += ["", f"{'recipes':60} settings  estimated / measured (factor to its scatter)"]
    for name, values in sorted(ratios.items()):
        spread = math.exp(statistics.pstdev(values))
        lines.append(
            f"{name:60} {len(values):8}  {math.exp(statistics.fmean(values)):8.2f} ({spread:.2f})"
        )
    apart = [
        value
        for name, value in within.items()
        if _spread([entry.measured_ms for entry in problems[name]]) >= TELLING
    ]
    overall = rank_correlation(
        [entry.estimated_ms for entry in compared], [entry.measured_ms for entry in compared]
    )
    lines += [
        "",
        f"{len(compared)} settings of {len(problems)} problems",
        f"rank correlation within a problem {_mean(within.values()):.3f} (mean of {len(within)})",
        f"  where settings differ by {TELLING - 1:.0%}   {_mean(apart):.3f} (mean of {len(apart)})",
        f"rank correlation over all         {overall:.3f}",
        f"fastest recipe favoured           {right} of {asked}",
    ]
    return "\n".join(lines)


def _spread(times_ms: Sequence[float]) -> float:
    return max(times_ms) / min(times_ms)


def _mean(values: Collection[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--problems", type=Path, nargs="*", default=[])
    parser.add_argument("--device", default="h200")
    parser.add_argument("--settings", type=int, default=3)
    evidence_used = parser.add_mutually_exclusive_group()
    evidence_used.add_argument("--known", action="store_true")
    evidence_used.add_argument("--without", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "estimates.jsonl")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("kmem").setLevel(logging.ERROR)
    evidence = ROOT / "db" / "evidence"
    paths = options.paths or [*sorted(evidence.glob("*.jsonl")), evidence / "landscapes"]
    recipes = {
        path.parent.name: load_recipe(load_skill(path.parent))
        for path in sorted((ROOT / "skills").glob("*/recipe.py"))
    }
    compiled = Compiled(options.cache, options.jobs)
    try:
        found = list(
            compare(
                [entry for path in paths for entry in read_measured(path)],
                read_problems(paths, [ROOT / "problems", *options.problems]),
                recipes,
                named_target(options.device),
                compiled,
                options,
            )
        )
    except KmemError as ex:
        raise SystemExit(f"Error: {ex}") from ex
    finally:
        compiled.close()
    print(summarise(found))


if __name__ == "__main__":
    main()
