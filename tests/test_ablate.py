"""Arms of an ablation know what they may and nothing else, and its figures are exact.

The same command gives the same answer.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from synthetic_landscapes import synthetic_landscape

from kmem.cli import cli
from kmem.devices import named_target
from kmem.errors import LandscapeError
from kmem.learning.ablation import EACH, Setup, Trial, _Bench, ablate
from kmem.learning.arms import Arm, deal_results, oracle_outcome, shuffle_outcomes
from kmem.learning.comparison import compare_arms
from kmem.learning.landscape import Landscape, LandscapeDirectory
from kmem.learning.metrics import RunMetrics, run_metrics
from kmem.learning.suite import resize_problem
from kmem.memory.ledger.experience import recall_experience
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import load_problem
from kmem.recipes import Recipe
from kmem.records import (
    Attempt,
    Budget,
    Candidate,
    Experience,
    Kernel,
    Measurement,
    Move,
    Outcome,
    Status,
    Task,
    Timing,
)
from kmem.run.directory import RunDirectory
from kmem.run.setup.session import load_library
from kmem.serialize import to_json
from kmem.skills import load_recipe

H200 = named_target("h200")
PROBLEMS = Path(__file__).parent.parent / "problems"
SHORT = Budget(rounds=1, candidates_per_round=4)


@pytest.fixture(scope="module", autouse=True)
def no_embeddings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KMEM_EMBEDDING_MODEL", "none")
        yield


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    library = load_library(collect(build_plugin_manager()))
    return {
        name: recipe
        for name, skill in library.items()
        if (recipe := load_recipe(skill)) is not None
    }


@pytest.fixture(scope="module")
def landscapes(recipes: dict[str, Recipe]) -> tuple[Landscape, ...]:
    """Synthetic: two sizes each of a softmax and a pointwise chain."""
    made = []
    for name, columns in (("softmax", (1024, 2048)), ("swish", (1024, 4096))):
        problem = load_problem(PROBLEMS / name)
        for width in columns:
            sized = resize_problem(problem, f"{name}_{width}", {"ROWS": 4096, "COLUMNS": width})
            made.append(synthetic_landscape(sized, recipes, H200, settings=10))
    return tuple(made)


@pytest.fixture(scope="module")
def bench(landscapes: tuple[Landscape, ...], tmp_path_factory: pytest.TempPathFactory) -> _Bench:
    return _Bench(landscapes, Setup(tuple(Arm), 1, budget=SHORT), tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def left(bench: _Bench, landscapes: tuple[Landscape, ...]) -> dict:
    """What a search of each landscape without memory leaves."""
    return {place: bench.search(place, Arm.RW, 0, ())[1] for place in range(len(landscapes))}


# ---- what each arm knows


def test_memory_made_from_other_problems_never_holds_the_problem_itself(
    bench: _Bench, left: dict
) -> None:
    for place in left:
        own = {entry.outcome.graph_hash for entry in left[place]}
        for arm in (Arm.READ, Arm.PLACEBO, Arm.ORACLE):
            known = bench.recollect(place, arm, 0, left)
            assert known
            assert own.isdisjoint(entry.outcome.graph_hash for entry in known)
    assert bench.recollect(0, Arm.OFF, 0, left) == []


def test_a_class_left_out_is_unknown_to_memory(
    landscapes: tuple[Landscape, ...], left: dict, tmp_path: Path
) -> None:
    for left_out in (("softmax",), (EACH,)):
        without = _Bench(landscapes, Setup(tuple(Arm), 1, left_out, budget=SHORT), tmp_path)
        assert [without.is_target(place) for place in range(4)] == [
            True,
            True,
            left_out == (EACH,),
            left_out == (EACH,),
        ]
        for place in (0, 1):
            known = without.recollect(place, Arm.READ, 0, left)
            assert {operator for entry in known for operator in entry.outcome.operators} == {
                "pointwise"
            }
            assert without.recollect(place, Arm.ORACLE, 0, left) == []


def test_only_earlier_runs_are_known_where_memory_grows(bench: _Bench, left: dict) -> None:
    earlier = {2: left[2]}
    assert bench.recollect(0, Arm.RW, 0, {}) == []
    assert bench.recollect(0, Arm.RW, 0, earlier) == left[2]


def test_a_placebo_shares_nothing_with_what_was_measured(left: dict) -> None:
    outcomes = [entry.outcome for place in left for entry in left[place]]
    dealt = deal_results(outcomes, 0)

    def counted(found: list[Outcome], *names: str) -> list[tuple]:
        return sorted(tuple(str(getattr(each, name)) for name in names) for each in found)

    for names in (("graph_hash", "choices", "created_at"), ("status", "latency_ms", "ratio")):
        assert counted(dealt, *names) == counted(outcomes, *names), "as much of everything"
    graphs = {outcome.graph_hash for outcome in outcomes}
    times = {
        graph: {each.latency_ms for each in outcomes if each.graph_hash == graph}
        for graph in graphs
    }
    foreign = [each for each in dealt if each.latency_ms not in times[each.graph_hash]]
    assert len(foreign) > len(dealt) / 3, "no graph has its own times"
    assert deal_results(outcomes, 0) == dealt != deal_results(outcomes, 1)


def test_a_shuffled_memory_keeps_the_volume_and_loses_what_was_done(left: dict) -> None:
    outcomes = [entry.outcome for place in left for entry in left[place]]
    shuffled = shuffle_outcomes(outcomes, 0)
    assert len(shuffled) == len(outcomes)
    assert [outcome.latency_ms for outcome in shuffled] == [
        outcome.latency_ms for outcome in outcomes
    ]

    def deeds(found: list[Outcome]) -> list[tuple]:
        return sorted(
            (choice.recipe, choice.knobs) for outcome in found for choice in outcome.choices
        )

    assert deeds(shuffled) == deeds(outcomes)
    moved = sum(one.choices != other.choices for one, other in zip(outcomes, shuffled, strict=True))
    assert moved > len(outcomes) / 2
    names = {(one.skill, other.skill) for one, other in zip(outcomes, shuffled, strict=True)}
    assert len(names) == len({outcome.skill for outcome in outcomes})
    assert shuffle_outcomes(outcomes, 0) == shuffled != shuffle_outcomes(outcomes, 1)


def test_the_oracle_holds_the_best_recorded_setting_of_the_nearest_other_size(
    bench: _Bench, left: dict, landscapes: tuple[Landscape, ...]
) -> None:
    (entry,) = bench.recollect(0, Arm.ORACLE, 0, left)
    best = landscapes[1].best
    assert (entry.outcome.choices, entry.outcome.latency_ms) == (best.choices, best.latency_ms)
    assert entry.outcome.graph_hash == left[1][0].outcome.graph_hash
    assert entry.outcome == oracle_outcome(landscapes[1], left[1][0].outcome)


# ---- what a run cost


def attempt(number: int, latency_ms: float | None) -> Attempt:
    status = Status.PASSED if latency_ms else Status.BUILD_FAILED
    timing = Timing(latency_ms, latency_ms, latency_ms, 5) if latency_ms else None
    candidate = Candidate(
        Kernel(f"# {number} {latency_ms}"), Task(Move.SEED, "s", None, 1, ""), "recipes"
    )
    return Attempt(number, candidate, Measurement(status, timing, False), None)


def test_measurements_are_counted_to_the_first_kernel_near_the_best(
    landscapes: tuple[Landscape, ...],
) -> None:
    landscape = landscapes[0]
    best_ms, horizon = landscape.best.latency_ms, len(landscape.settings)
    run = [
        attempt(0, 4 * best_ms),
        attempt(0, None),
        attempt(0, 2 * best_ms),
        attempt(1, best_ms / 0.95),
        attempt(1, best_ms),
    ]
    found = run_metrics(run, landscape, rounds=3)
    assert (found.reached, found.to_target, found.rounds_to_target, found.measurements) == (
        True,
        3,
        2,
        4,
    )
    assert found.final_ms == best_ms
    assert math.isclose(found.area, (0.25 + 0.5 + 0.95 + (horizon - 3) * 1.0) / horizon)


def test_a_run_that_never_arrives_is_charged_for_the_whole_landscape(
    landscapes: tuple[Landscape, ...],
) -> None:
    landscape = landscapes[0]
    found = run_metrics([attempt(0, 2 * landscape.best.latency_ms)], landscape, rounds=3)
    assert (found.reached, found.to_target, found.rounds_to_target) == (
        False,
        len(landscape.settings),
        3,
    )
    assert run_metrics([], landscape, rounds=3).area == 0.0


# ---- arms compared


def trial(
    arm: Arm, problem: str, seed: int, to_target: int, final_ms: float = 1.0, rounds: int = 1
) -> Trial:
    return Trial(
        problem, "softmax", seed, arm, 0, RunMetrics(True, to_target, rounds, 0.5, final_ms, 10)
    )


def test_savings_are_shares_of_the_measurements_of_the_same_problems_and_seeds() -> None:
    trials = [trial(Arm.OFF, problem, seed, 10) for problem in "abc" for seed in range(4)]
    trials += [
        trial(Arm.READ, problem, seed, {"a": 2, "b": 4, "c": 6}[problem])
        for problem in "abc"
        for seed in range(4)
    ]
    off, read = compare_arms(trials)
    assert (off.saved.value, off.saved.low, off.saved.high) == (0.0, 0.0, 0.0)
    assert math.isclose(read.saved.value, 0.6)
    # problems are drawn, not runs
    assert math.isclose(read.saved.low, 0.4) and math.isclose(read.saved.high, 0.8)
    assert (read.to_target, read.final_speed.value, read.negative_transfer.value) == (4.0, 1.0, 0.0)


def test_negative_transfer_is_ending_slower_and_being_held_up_stands_beside_it() -> None:
    trials = [trial(Arm.OFF, problem, 0, 5) for problem in "abcd"]
    trials += [
        trial(Arm.READ, "a", 0, 5, final_ms=1.03),
        trial(Arm.READ, "b", 0, 9),
        trial(Arm.READ, "c", 0, 13, rounds=2),
    ]
    trials += [trial(Arm.READ, "d", 0, 1, final_ms=1.01)]
    read = compare_arms(trials)[1]
    assert (read.negative_transfer.value, read.more_measurements, read.later_rounds) == (
        0.25,
        0.5,
        0.25,
    )


def test_arms_without_pairs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="pair by pair"):
        compare_arms([trial(Arm.READ, "a", 0, 1)])
    with pytest.raises(ValueError, match="pair by pair"):
        compare_arms(
            [trial(Arm.OFF, "a", 0, 1), trial(Arm.READ, "a", 0, 1), trial(Arm.OFF, "a", 1, 1)]
        )


# ---- the whole


@pytest.mark.slow
def test_the_same_ablation_gives_the_same_trials_to_the_last_byte(
    landscapes: tuple[Landscape, ...],
) -> None:
    setup = Setup((Arm.OFF, Arm.READ, Arm.RW, Arm.PLACEBO), 1, budget=SHORT)
    one, two = (
        [to_json(entry) for entry in ablate(landscapes[:3], setup, lambda done, total: None)]
        for _ in range(2)
    )
    assert one == two
    assert len(one) == 3 * 4


def test_estimates_teach_nothing_and_a_class_nobody_has_is_named(
    landscapes: tuple[Landscape, ...],
) -> None:
    estimated = replace(landscapes[0], header=replace(landscapes[0].header, estimated=True))
    with pytest.raises(LandscapeError, match="softmax_1024 holds estimates"):
        ablate([estimated], Setup((Arm.OFF,), 1), lambda done, total: None)
    with pytest.raises(
        LandscapeError, match="No landscape is of class norm; there are pointwise, softmax"
    ):
        ablate(landscapes, Setup((Arm.OFF,), 1, ("norm",)), lambda done, total: None)


def test_the_table_is_data_and_a_pattern_that_matches_nothing_says_so(
    tmp_path: Path, landscapes: list[Landscape]
) -> None:
    suite = LandscapeDirectory(tmp_path / "suite")
    for landscape in landscapes[:2]:
        suite.begin(landscape.header)
        for point in landscape.points:
            suite.append(landscape.name, point)
        suite.pack(landscape.name)
    arguments = ["memory", "ablate", str(suite.root), "--arms", "off,read", "--seeds", "1"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    for heading in ("measurements", "negative transfer", "off", "read"):
        assert heading in result.stdout
    nothing = CliRunner().invoke(cli, [*arguments, "--only", "zzz"])
    assert nothing.exit_code == 1
    assert "None of the 2 landscapes in" in nothing.stderr
    assert "matches zzz" in nothing.stderr


def test_the_command_prints_one_json_object_and_leaves_trials_and_a_plot(
    landscapes: tuple[Landscape, ...], tmp_path: Path
) -> None:
    directory = LandscapeDirectory(tmp_path / "suite")
    whole, cut_off = landscapes[2:]
    for landscape, points in ((whole, whole.points), (cut_off, cut_off.points[:6])):
        directory.begin(landscape.header)
        for point in points:
            directory.append(landscape.name, point)
    directory.pack(whole.name)
    directory.begin(
        replace(cut_off.header, problem=replace(cut_off.header.problem, name="just_begun"))
    )
    arguments = [
        "memory",
        "ablate",
        str(tmp_path / "suite"),
        "--arms",
        "read",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    compared = json.loads(result.stdout)
    assert [entry["arm"] for entry in compared["arms"]] == ["off", "read"]
    assert compared["landscapes"] == {whole.name: len(whole.settings), cut_off.name: 5}
    assert (compared["recorded_in_part"], compared["left_out_as_empty"]) == (
        [cut_off.name],
        ["just_begun"],
    )
    assert (
        f"recorded in part, searched as if there were no other settings: {cut_off.name} (5)"
        in result.stderr
    )
    assert len((tmp_path / "out" / "trials.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "out" / "ablation.png").stat().st_size > 10_000
    result = CliRunner().invoke(cli, ["memory", "ablate", str(tmp_path / "suite"), "--arms", "on"])
    assert result.exit_code == 2
    assert "No arm is called on" in result.stderr


# ---- how memory enters the search


def test_experience_is_what_was_measured_on_other_graphs_with_its_prediction(
    left: dict, landscapes: tuple[Landscape, ...], tmp_path: Path
) -> None:
    own, sibling = left[0][0].outcome, left[1][0].outcome
    with Memory(tmp_path / "memory.db") as memory:
        memory.ledger.record_entries([entry for place in left for entry in left[place]])
        key = GraphKey(
            own.graph_hash,
            own.structure_hash,
            own.operators,
            own.sizes,
            own.arch,
            own.contract,
        )
        found = recall_experience(memory.storage, ["online-softmax", "fuse-pointwise-chain"], key)
    of_softmax = [entry for entry in found if entry.recipe == "online-softmax"]
    tried = {
        entry.outcome.choices[0].knobs: entry.outcome
        for entry in left[1]
        if entry.outcome.status is Status.PASSED
    }
    assert {entry.knobs: entry.predicted_ms for entry in of_softmax} == {
        knobs: outcome.predicted_ms for knobs, outcome in tried.items()
    }
    assert {(entry.graph, entry.structure, entry.sizes) for entry in of_softmax} == {
        (sibling.graph_hash, own.structure_hash, sibling.sizes)
    }
    assert all(entry.predicted_ms for entry in of_softmax)
    assert own.graph_hash not in {entry.graph for entry in found}


def test_what_a_run_knew_when_it_began_stays_in_its_directory(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    known = (
        Experience(
            "online-softmax",
            (("BK", 1), ("STRATEGY", "loop")),
            1.25,
            0.5,
            "graph",
            "structure",
            (4, 8),
        ),
        Experience("online-softmax", (), 1.0, None, "graph", "structure", ()),
    )
    assert directory.read_experience("run") is None
    directory.write_experience("run", known)
    assert directory.read_experience("run") == known
    directory.write_experience("other", ())
    assert directory.read_experience("other") == ()
