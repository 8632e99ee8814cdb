"""Suites, sampling, the files of landscapes, recording that goes on, and simulated searches."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_landscapes import synthetic_landscape

from kmem.devices import named_target
from kmem.errors import LandscapeError, ProblemError
from kmem.explore.recipes.cover import find_options
from kmem.learning.landscape import Landscape, LandscapeDirectory, Point, judged
from kmem.learning.recording.compile import compiled_point
from kmem.learning.recording.request import Asked
from kmem.learning.recording.sampling import Sampling, leading_settings, sample_drafts
from kmem.learning.recording.schedule import Progress, record_landscapes
from kmem.learning.recording.screen import turn
from kmem.learning.recording.write import write_problem
from kmem.learning.simulate import RecordedEvaluator, open_recorded_session
from kmem.learning.suite import load_suite, resize_problem
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.recipes import Recipe
from kmem.records import (
    Attempt,
    Budget,
    Contract,
    Kernel,
    Measurement,
    Problem,
    Run,
    Status,
    Timing,
)
from kmem.run.loop import optimize
from kmem.run.setup.session import load_library
from kmem.serialize import to_json
from kmem.skills import Skill, load_recipe
from kmem.testing import trace_once

H200 = named_target("h200")
SOFTMAX = """import torch

ROWS, COLUMNS = 64, 4096  # rows of a batch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect(build_plugin_manager())


@pytest.fixture(scope="module")
def skills(registry: Registry) -> dict[str, Skill]:
    return load_library(registry)


@pytest.fixture(scope="module")
def recipes(skills: dict[str, Skill]) -> dict[str, Recipe]:
    return {
        name: recipe for name, skill in skills.items() if (recipe := load_recipe(skill)) is not None
    }


@pytest.fixture
def problem() -> Problem:
    return Problem("softmax", "softmax.py", SOFTMAX)


@pytest.fixture
def landscape(problem: Problem, recipes: dict[str, Recipe]) -> Landscape:
    return synthetic_landscape(problem, recipes, H200, settings=12)


# ---- suites


def test_a_problem_at_other_sizes_differs_in_its_constants_alone(problem: Problem) -> None:
    resized = resize_problem(problem, "wide", {"COLUMNS": 65536})
    assert resized.source == SOFTMAX.replace("4096", "65536")
    assert (resized.name, resized.path) == ("wide", "softmax.py")
    assert resized.hash != problem.hash


def test_a_constant_the_file_does_not_have_is_named(problem: Problem) -> None:
    with pytest.raises(
        ProblemError, match=r"softmax.py has no constant DEPTH; it has COLUMNS, ROWS"
    ):
        resize_problem(problem, "deep", {"DEPTH": 2})


def test_a_suite_lists_one_file_at_several_sizes(tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(SOFTMAX)
    suite = tmp_path / "suite.json"
    entries = [
        {"name": "small", "problem": "softmax.py", "constants": {"ROWS": 2}},
        {"problem": "softmax.py"},
    ]
    suite.write_text(json.dumps({"problems": entries}))
    small, same = load_suite(suite)
    assert (small.name, same.name, same.source) == ("small", "softmax", SOFTMAX)
    assert "ROWS, COLUMNS = 2, 4096" in small.source
    suite.write_text(json.dumps({"problems": [entries[1], entries[1]]}))
    with pytest.raises(ProblemError, match="two problems softmax"):
        load_suite(suite)


def test_the_suite_that_ships_has_every_class_at_two_sizes_at_least() -> None:
    problems = load_suite(Path(__file__).parent.parent / "problems" / "landscapes.json")
    sizes = [problem.path for problem in problems]
    assert len(problems) >= 60
    assert len(set(sizes)) >= 25, "graph classes"
    assert all(sizes.count(path) >= 2 for path in sizes)
    assert len({problem.hash for problem in problems}) == len(problems)


# ---- which settings


def drafts_of(
    problem: Problem, recipes: dict[str, Recipe], count: int, elsewhere: tuple = ()
) -> list:
    graph = trace_once(problem)
    options = find_options({"full": graph}, recipes, Contract(), H200)
    return sample_drafts(graph, options, Contract(), H200, Sampling(count, 0, elsewhere))


def test_a_small_space_is_recorded_whole_and_a_large_one_to_the_count(
    problem: Problem, recipes: dict[str, Recipe]
) -> None:
    graph = trace_once(problem)
    everything = sum(
        len(option.ranked) for option in find_options({"full": graph}, recipes, Contract(), H200)
    )
    assert len(drafts_of(problem, recipes, 10_000)) == everything
    few = drafts_of(problem, recipes, 10)
    assert len({draft.choices for draft in few}) == 10
    assert [draft.choices for draft in few] == [
        draft.choices for draft in drafts_of(problem, recipes, 10)
    ]


def test_leaders_here_and_at_other_sizes_are_among_the_settings(
    problem: Problem, recipes: dict[str, Recipe]
) -> None:
    other = resize_problem(problem, "wide", {"COLUMNS": 8192})
    graphs = [trace_once(each) for each in (problem, other)]
    here, there = (
        leading_settings(find_options({"full": graph}, recipes, Contract(), H200), 10)
        for graph in graphs
    )
    (name,) = here
    legal_here = {draft.choices[0].knobs for draft in drafts_of(problem, recipes, 10_000)}
    chosen = {draft.choices[0].knobs for draft in drafts_of(problem, recipes, 10, (there,))}
    assert set(here[name][:3]) <= chosen
    wanted = [knobs for knobs in there[name] if knobs in legal_here][:2]
    assert wanted and set(wanted) <= chosen


# ---- files


def write(directory: LandscapeDirectory, landscape: Landscape) -> None:
    directory.begin(landscape.header)
    for point in landscape.points:
        directory.append(landscape.name, point)


def test_a_landscape_survives_its_files_exactly(landscape: Landscape, tmp_path: Path) -> None:
    directory = LandscapeDirectory(tmp_path)
    write(directory, landscape)
    assert directory.find("softmax") == landscape
    assert not directory.is_finished("softmax")
    packed = directory.pack("softmax")
    assert packed.name == "softmax.jsonl.xz"
    assert [file.name for file in tmp_path.iterdir()] == ["softmax.jsonl.xz"]
    assert directory.read() == (landscape,)
    assert directory.is_finished("softmax")


def test_a_line_that_was_being_written_when_the_recorder_died_is_left_out(
    landscape: Landscape, tmp_path: Path
) -> None:
    directory = LandscapeDirectory(tmp_path)
    write(directory, landscape)
    file = tmp_path / "softmax.jsonl"
    file.write_text(file.read_text()[:-40])
    assert directory.find("softmax") == replace(landscape, points=landscape.points[:-1])


def test_a_damaged_landscape_and_an_empty_directory_say_what_to_do(
    landscape: Landscape, tmp_path: Path
) -> None:
    directory = LandscapeDirectory(tmp_path)
    with pytest.raises(LandscapeError, match="record some with kmem bench SUITE --record"):
        directory.read()
    write(directory, landscape)
    directory.pack("softmax").write_bytes(b"not xz")
    with pytest.raises(LandscapeError, match="softmax.jsonl.xz cannot be read .*; record it again"):
        directory.read()


# ---- recording


@pytest.mark.slow
def test_recording_compiles_judges_and_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    source = SOFTMAX.replace("64, 4096", "8, 256").replace(
        "torch.softmax(x, dim=1)", "x * torch.sigmoid(x)"
    )
    problem = Problem("swish", "swish.py", source)
    asked = Asked(H200, present=False, contract=Contract(), settings=2, seed=0, minutes=1.0, jobs=1)
    written = write_problem(problem, (), asked, tmp_path, tmp_path / "scratch")
    assert [len(kernel.choices) for kernel, _ in written.kernels] == [0, 1, 1]
    assert written.known == {}
    # As a kill leaves it: one verdict is on the disk, of a time that measuring again would not
    # find.
    directory = LandscapeDirectory(tmp_path)
    report = CompileReport(written.kernels[1][0].hash, CompileStatus.OK, "", (), "ptx", 1.0, ())
    compiled = compiled_point(*written.kernels[1], report, None, asked)
    kept = judged(
        compiled, Measurement(Status.PASSED, Timing(123.0, 123.0, 123.0, 5), estimated=True)
    )
    directory.append("swish", kept)
    told: list[Progress] = []
    record_landscapes([problem], tmp_path, asked, told.append)
    assert [(progress.done, progress.total) for progress in told] == [(1, 2), (2, 2)]
    assert told[1].text.startswith("swish: 3 of 3 passed in")
    whole = directory.find("swish")
    assert directory.is_finished("swish")
    assert whole.header.estimated
    assert {point.choices for point in whole.points} == {
        kernel.choices for kernel, _ in written.kernels
    }
    assert [point.status for point in whole.points] == [Status.PASSED] * 3
    assert whole.settings[kept.choices] == kept
    assert whole.best.latency_ms < 1.0
    assert whole.eager.latency_ms < 1.0


def test_a_recording_that_is_cut_off_leaves_the_same_sample_at_every_size(
    landscape: Landscape,
) -> None:
    points = landscape.points
    order = sorted(points, key=lambda point: turn(point, 0))
    assert not order[0].choices
    # not the leaders first
    assert [point.choices for point in order[1:]] != [point.choices for point in points[1:]]
    elsewhere = [
        replace(
            point,
            source_hash="other",
            choices=tuple(replace(choice, site="other") for choice in point.choices),
        )
        for point in points
    ]
    there = sorted(elsewhere, key=lambda point: turn(point, 0))
    assert [[choice.knobs for choice in point.choices] for point in there] == [
        [choice.knobs for choice in point.choices] for point in order
    ]


# ---- simulated searches


def simulated(
    landscape: Landscape, skills: dict[str, Skill], registry: Registry, home: Path, seed: int = 0
) -> list[Attempt]:
    session = open_recorded_session(landscape, skills)
    with Memory(home / "memory.db") as memory:
        memory.skills.sync(list(skills.values()))
        run = Run(
            "r",
            session.traced.problem,
            "h200",
            session.traced.contract,
            Budget(rounds=2),
            "rw",
            seed,
            str(home / "run"),
            "2026-01-01",
        )
        memory.runs.start(run)
        optimize(
            run,
            session,
            memory,
            registry,
            lambda event: None,
            open_evaluator=lambda announce: RecordedEvaluator(landscape, session),
        )
        return memory.runs.attempts("r")


def test_a_simulated_search_sees_recorded_times_and_starts_no_process(
    landscape: Landscape,
    skills: dict[str, Skill],
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a simulated search starts nothing")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    attempts = simulated(landscape, skills, registry, tmp_path)
    assert attempts
    for attempt in attempts:
        point = landscape.settings[attempt.candidate.kernel.choices]
        assert (attempt.measurement.status, attempt.measurement.timing) == (
            point.status,
            point.timing,
        )
        assert not attempt.measurement.estimated


def test_the_same_search_simulated_is_the_same_to_the_last_byte(
    landscape: Landscape,
    skills: dict[str, Skill],
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    homes = [tmp_path / "one", tmp_path / "two"]
    one, two = (
        [to_json(attempt) for attempt in simulated(landscape, skills, registry, home)]
        for home in homes
    )
    assert one == two


def test_binaries_that_are_alike_are_judged_once_and_failures_to_compile_are_no_measurement(
    landscape: Landscape, skills: dict[str, Skill]
) -> None:
    points: list[Point] = list(landscape.points)
    points[2] = replace(points[2], ptx_hash=points[1].ptx_hash)
    points[3] = replace(
        points[3],
        compile_status=CompileStatus.FAILED,
        status=Status.BUILD_FAILED,
        timing=None,
        log="ptxas: no",
    )
    changed = replace(landscape, points=tuple(points))
    session = open_recorded_session(changed, skills)
    evaluator = RecordedEvaluator(changed, session)
    kernels = [
        Kernel(f"# {place}", choices=point.choices) for place, point in enumerate(points[1:5])
    ]
    admitted = evaluator.admit(kernels)
    assert admitted.failed == ((kernels[2], "ptxas: no"),)
    assert admitted.ready == (kernels[0], kernels[3])


def test_a_landscape_of_another_graph_is_refused(
    landscape: Landscape, skills: dict[str, Skill]
) -> None:
    other = landscape.header.problem.source.replace("torch.softmax(x, dim=1)", "x + 1")
    changed = replace(
        landscape, header=replace(landscape.header, problem=Problem("softmax", "softmax.py", other))
    )
    with pytest.raises(LandscapeError, match="traces to another graph"):
        open_recorded_session(changed, skills)
