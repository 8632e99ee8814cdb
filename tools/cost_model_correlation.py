"""Check cost models against measurements: predicted and measured times by rank.

    python tools/cost_model_correlation.py PATH... [--device h200]

A PATH is a directory of recorded landscapes (`kmem bench --record`) or an export of the ledger
(`*.jsonl`, such as those in db/evidence). For each recipe and problem it prints Spearman's rank
correlation between predicted and measured times over the settings that were measured (1: the model
puts them in their true order; 0: it knows nothing), how much slower the model's first choice is
than the fastest measured setting, and the factor by which predictions are off in the geometric
mean. Predictions are today's recipes', for problems that are found in problems/ and trace to the
graph that was measured. Worst recipes come first; fewer than four settings say nothing and are left
out.
"""

import argparse
import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.devices import named_target
from kmem.errors import KmemError
from kmem.learning.landscape import LandscapeDirectory
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.recipes import Recipe
from kmem.records import Contract, Device, Precision, Purity
from kmem.skills import load_recipe, load_skill

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 4
Choices = tuple[tuple[str, str, tuple[tuple[str, object], ...]], ...]  # recipe, site, knobs


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting of every site of a problem and its measured time."""

    problem: str
    graph_hash: str
    contract: Contract
    choices: Choices
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Check:
    """How well predictions order the settings of one problem that the same recipes wrote."""

    recipes: str
    problem: str
    settings: int
    correlation: float
    first_choice: float  # measured time of the setting predicted fastest, over the fastest measured
    factor: float  # predicted over measured


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank.

    NaN where one of the two is constant.
    """
    ranks = [_ranks(one), _ranks(other)]
    mean = (len(one) - 1) / 2
    first, second = ([rank - mean for rank in values] for values in ranks)
    spread = math.sqrt(sum(value**2 for value in first) * sum(value**2 for value in second))
    return sum(a * b for a, b in zip(first, second, strict=True)) / spread if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def read_measured(path: Path) -> Iterator[Measured]:
    """Every setting with a time, from a directory of landscapes or a ledger's export.

    The fastest of repeated ones comes last.
    """
    if path.is_dir():
        for landscape in LandscapeDirectory(path).read():
            header = landscape.header
            for choices, point in landscape.settings.items():
                if point.latency_ms is not None:
                    kept = tuple(
                        (choice.recipe, choice.site, tuple(choice.knobs)) for choice in choices
                    )
                    yield Measured(
                        header.problem.name,
                        header.graph_hash,
                        header.contract,
                        kept,
                        point.latency_ms,
                    )
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        outcome = json.loads(line).get("outcome")
        if outcome and outcome["latency_ms"] is not None and outcome["choices"]:
            contract = Contract(
                Precision(outcome["contract"]["precision"]), Purity(outcome["contract"]["purity"])
            )
            kept = tuple(
                (one["recipe"], one["site"], tuple(map(tuple, one["knobs"])))
                for one in outcome["choices"]
            )
            yield Measured(
                outcome["problem"], outcome["graph_hash"], contract, kept, outcome["latency_ms"]
            )


def predict_ms(
    graph: OpGraph, recipes: Mapping[str, Recipe], measured: Measured, device: Device
) -> float | None:
    """What today's recipes say of a setting.

    None where a recipe, its site or the setting no longer exists.
    """
    total = 0.0
    for name, place, knobs in measured.choices:
        sites = recipes[name].match(graph, measured.contract) if name in recipes else []
        site = next((site for site in sites if site.name == place), None)
        if site is None:
            return None
        space = recipes[name].space(site, device)
        settings = space.completed(dict(knobs))
        if not space.allows(settings):
            return None
        total += recipes[name].cost_ms(site, settings, device)
    return total


def check_models(
    measured: Sequence[Measured], recipes: Mapping[str, Recipe], device: Device
) -> list[Check]:
    """One check for each set of recipes and problem, worst first."""
    groups: dict[tuple[str, str, str], dict[Choices, Measured]] = defaultdict(dict)
    for entry in sorted(measured, key=lambda entry: -entry.latency_ms):
        groups[
            " + ".join(sorted({name for name, *_ in entry.choices})),
            entry.problem,
            entry.graph_hash,
        ][entry.choices] = entry
    checks = []
    for (names, problem, graph_hash), settings in groups.items():
        graph = _trace(problem, next(iter(settings.values())).contract)
        if graph is None or graph.hash != graph_hash:
            continue
        pairs = [
            (predict_ms(graph, recipes, entry, device), entry.latency_ms)
            for entry in settings.values()
        ]
        known = [
            (predicted, latency)
            for predicted, latency in pairs
            if predicted is not None and math.isfinite(predicted)
        ]
        if len(known) < FEWEST:
            continue
        predicted, latencies = zip(*known, strict=True)
        checks.append(
            Check(
                names,
                problem,
                len(known),
                rank_correlation(predicted, latencies),
                min(known)[1] / min(latencies),
                math.exp(sum(math.log(one / other) for one, other in known) / len(known)),
            )
        )
    return sorted(
        checks, key=lambda check: math.inf if math.isnan(check.correlation) else check.correlation
    )


def _trace(problem: str, contract: Contract) -> OpGraph | None:
    path = ROOT / "problems" / problem / "problem.py"
    return (
        trace_problem(execute_problem(load_problem(path)), contract.precision)
        if path.is_file()
        else None
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--device", default="h200")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    recipes = {
        path.parent.name: load_recipe(load_skill(path.parent))
        for path in sorted((ROOT / "skills").glob("*/recipe.py"))
    }
    try:
        checks = check_models(
            [entry for path in options.paths for entry in read_measured(path)],
            recipes,
            named_target(options.device),
        )
    except KmemError as ex:
        raise SystemExit(f"Error: {ex}") from ex
    print(f"{'recipe':48} {'problem':20} settings  correlation  first choice  predicted / measured")
    for check in checks:
        numbers = (
            f"{check.settings:8}  {check.correlation:11.2f}  {check.first_choice:12.2f}  "
            f"{check.factor:20.2f}"
        )
        print(f"{check.recipes:48} {check.problem:20} {numbers}")


if __name__ == "__main__":
    main()
