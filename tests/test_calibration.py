"""What was measured corrects the cost model's ranking, and only the order of settings.

It does so by nearness of knobs and of graphs.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.explore.recipes import calibration
from kmem.explore.recipes.calibration import (
    Calibrator,
    _telling,
    _usable,
    calibrate_option,
    own_experience,
)
from kmem.explore.recipes.cover import SiteOption, find_options
from kmem.learning.suite import resize_problem
from kmem.problem.graph import OpGraph, graph_sizes
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import (
    Attempt,
    Candidate,
    Contract,
    Experience,
    Kernel,
    Measurement,
    Move,
    SiteChoice,
    Status,
    Task,
    Timing,
)
from kmem.skills import load_recipe, load_skill

H200 = named_target("h200")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return trace_problem(
        execute_problem(
            resize_problem(load_problem(ROOT / "problems" / "softmax"), "s", {"COLUMNS": 8192})
        )
    )


@pytest.fixture(scope="module")
def option(graph: OpGraph) -> SiteOption:
    recipe = load_recipe(load_skill(ROOT / "skills" / "online-softmax"))
    return find_options({"full": graph}, {"online-softmax": recipe}, Contract(), H200)[0]


def knobs_at(option: SiteOption, rank: int) -> tuple:
    return tuple(sorted(option.ranked[rank][1].items()))


def measured(
    option: SiteOption,
    rank: int,
    residual: float,
    *,
    graph: str = "g",
    structure: str = "s",
    sizes: tuple[int, ...] = (1, 2),
):
    """The setting predicted at a rank, measured at e ** residual times what was predicted."""
    cost_ms, settings = option.ranked[rank]
    return Experience(
        option.recipe.name,
        tuple(sorted(settings.items())),
        cost_ms * math.exp(residual),
        cost_ms,
        graph,
        structure,
        sizes,
    )


def corrections(
    option: SiteOption, experience: list[Experience], graph: OpGraph
) -> dict[tuple, float]:
    """Log of corrected over predicted time, by knobs."""
    before = {tuple(sorted(settings.items())): cost_ms for cost_ms, settings in option.ranked}
    after = {
        tuple(sorted(settings.items())): cost_ms
        for cost_ms, settings in calibrate_option(option, experience, graph).ranked
    }
    return {knobs: math.log(after[knobs] / before[knobs]) for knobs in before}


def test_a_setting_that_was_better_elsewhere_than_predicted_moves_to_the_front(
    option: SiteOption, graph: OpGraph
) -> None:
    here = {"structure": graph.structure_hash, "sizes": graph_sizes(graph)}
    experience = [measured(option, -1, -0.7, **here), measured(option, 0, 0.7, **here)]
    moved = corrections(option, experience, graph)
    assert moved[knobs_at(option, -1)] < 0 < moved[knobs_at(option, 0)]
    ranked = [cost_ms for cost_ms, _ in calibrate_option(option, experience, graph).ranked]
    assert ranked == sorted(ranked)


def test_what_all_settings_of_a_graph_share_says_nothing(
    option: SiteOption, graph: OpGraph
) -> None:
    here = {"structure": graph.structure_hash, "sizes": graph_sizes(graph)}
    moved = corrections(option, [measured(option, rank, 1.5, **here) for rank in range(8)], graph)
    assert max(map(abs, moved.values())) < 0.05


def test_nearer_sizes_and_the_same_structure_say_more(option: SiteOption, graph: OpGraph) -> None:
    sizes = graph_sizes(graph)
    by_place = {}
    for name, structure, there in (
        ("same", graph.structure_hash, sizes),
        ("doubled", graph.structure_hash, tuple(2 * size for size in sizes)),
        ("far", graph.structure_hash, tuple(64 * size for size in sizes)),
        ("another", "another structure", (7,)),
    ):
        experience = [
            measured(option, 0, 0.7, structure=structure, sizes=there),
            measured(option, -1, -0.7, structure=structure, sizes=there),
        ]
        by_place[name] = corrections(option, experience, graph)[knobs_at(option, 0)]
    assert by_place["same"] > by_place["doubled"] > by_place["far"] > by_place["another"] > 0


def test_without_a_kept_prediction_the_one_made_here_stands_in(
    option: SiteOption, graph: OpGraph
) -> None:
    kept = [measured(option, 0, 0.7), measured(option, -1, -0.7)]
    lost = [replace(entry, predicted_ms=None) for entry in kept]
    assert calibrate_option(option, lost, graph) == calibrate_option(option, kept, graph)


def test_without_experience_of_its_recipe_a_ranking_stays(
    option: SiteOption, graph: OpGraph
) -> None:
    assert calibrate_option(option, (), graph) is option
    assert (
        calibrate_option(option, [replace(measured(option, 0, 1.0), recipe="another")], graph)
        is option
    )
    other_knobs = replace(measured(option, 0, 1.0), knobs=(("BLOCK", 7),))
    assert calibrate_option(option, [other_knobs], graph) is option
    illegal = replace(
        measured(option, 0, 1.0),
        knobs=tuple((name, 7) for name, _ in knobs_at(option, 0)),
        predicted_ms=None,
    )
    assert calibrate_option(option, [illegal], graph) is option


@pytest.mark.parametrize(
    ("latency_ms", "predicted_ms"),
    [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)],
)
def test_numbers_that_are_no_times_are_passed_over(
    option: SiteOption, graph: OpGraph, latency_ms: float, predicted_ms: float
) -> None:
    entry = replace(measured(option, 0, 0.0), latency_ms=latency_ms, predicted_ms=predicted_ms)
    assert calibrate_option(option, [entry], graph) is option


def test_a_graph_whose_sizes_were_not_kept_is_no_nearer_than_another(
    option: SiteOption, graph: OpGraph
) -> None:
    unknown, other = (
        [
            measured(option, 0, 0.7, structure=structure, sizes=()),
            measured(option, -1, -0.7, structure=structure, sizes=()),
        ]
        for structure in (graph.structure_hash, "another")
    )
    assert calibrate_option(option, unknown, graph) == calibrate_option(option, other, graph)
    both = [
        *unknown,
        measured(
            option, 1, 0.2, graph="g2", structure=graph.structure_hash, sizes=graph_sizes(graph)
        ),
    ]
    assert corrections(option, both, graph)[knobs_at(option, 0)] > 0


def test_a_run_learns_from_its_own_measurements(option: SiteOption, graph: OpGraph) -> None:
    attempt = attempt_at(option, 0, latency_ms=3.0, estimated_ms=1.5)
    (entry,) = own_experience(
        [attempt, replace(attempt, measurement=Measurement(Status.CRASHED, None, False))], graph
    )
    assert (entry.latency_ms, entry.predicted_ms, entry.graph, entry.sizes) == (
        3.0,
        1.5,
        graph.hash,
        graph_sizes(graph),
    )


def attempt_at(option: SiteOption, rank: int, *, latency_ms: float, estimated_ms: float) -> Attempt:
    choice = SiteChoice(
        option.site.name, option.site.operator, option.recipe.name, knobs_at(option, rank)
    )
    candidate = Candidate(
        Kernel("text", choices=(choice,)),
        Task(Move.SEED, option.recipe.name, None, 1, "test"),
        "recipes",
        estimated_ms,
    )
    timing = Timing(latency_ms, latency_ms, latency_ms, 1)
    return Attempt(0, candidate, Measurement(Status.PASSED, timing, False), None)


def test_thousands_of_measurements_are_weighed_by_those_that_tell_most(
    option: SiteOption, graph: OpGraph
) -> None:
    """Whole networks bring a recipe's few settings fifty times each, and graphs unlike this one."""
    here = {"structure": graph.structure_hash, "sizes": graph_sizes(graph)}
    own = [measured(option, rank, -0.7 if rank == 9 else 0.7, **here) for rank in range(10)]
    others = [
        measured(option, rank, 0.7 if rank == 9 else -0.7, graph=f"g{number}", structure="other")
        for number in range(60)
        for rank in range(10)
    ]
    alone = [measured(option, 0, 0.1, graph=f"alone{number}") for number in range(500)]
    known = _telling(_usable(option, [*others, *alone, *own * 50]), graph)
    assert len(known) == 256
    assert sum(entry.structure == graph.structure_hash for entry in known) == 10
    assert not any(entry.graph.startswith("alone") for entry in known)
    moved = corrections(option, [*others, *alone, *own * 50], graph)
    assert moved[knobs_at(option, 9)] < moved[knobs_at(option, 0)]


def test_what_was_measured_of_one_setting_several_times_counts_by_its_mean(
    option: SiteOption, graph: OpGraph
) -> None:
    twice = [measured(option, 0, 0.2), measured(option, 0, 0.6), measured(option, 5, 0.0)]
    once = [measured(option, 0, 0.4), measured(option, 5, 0.0)]
    assert corrections(option, twice, graph) == pytest.approx(corrections(option, once, graph))


def test_options_that_are_ranked_alike_are_calibrated_once(
    option: SiteOption, graph: OpGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def count(*given: object) -> SiteOption:
        asked.append(given)
        return calibrate_option(*given)

    monkeypatch.setattr(calibration, "calibrate_option", count)
    calibrator = Calibrator([measured(option, 3, -0.5), measured(option, 0, 0.5)], graph)
    twin = replace(option, site=replace(option.site, name="another"))
    first, second = calibrator.calibrate(option), calibrator.calibrate(twin)
    assert len(asked) == 1 and first.ranked is second.ranked
    assert second.site is twin.site and first.ranked != option.ranked
    assert Calibrator([], graph).calibrate(option) is option
