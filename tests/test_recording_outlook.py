"""What of a suite is missing is told without a GPU, and a short recording goes wide first."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kmem.cli import cli
from kmem.devices import named_target
from kmem.learning.landscape import LandscapeDirectory, is_set_aside
from kmem.learning.recording.outlook import SECONDS_A_SETTING, by_turns, look_ahead
from kmem.learning.recording.request import Asked
from kmem.learning.recording.schedule import Progress, record_landscapes
from kmem.records import Contract, Problem

SUITE = Path(__file__).parent.parent / "problems" / "landscapes.json"
LANDSCAPES = Path(__file__).parent.parent / "db" / "evidence" / "landscapes"
TEXT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * FACTOR


def get_inputs():
    return [torch.rand(8, 256)]
"""


def problem(name: str, file: str, factor: float) -> Problem:
    return Problem(name, f"problems/{file}/problem.py", TEXT.replace("FACTOR", str(factor)))


SIZES = tuple(
    problem(f"{file}_{size}", file, size + number / 10)
    for number, file in enumerate(("one", "two", "three"))
    for size in (1, 2)
)
ASKED = Asked(
    named_target("h200"),
    present=False,
    contract=Contract(),
    settings=2,
    seed=0,
    minutes=1.0,
    jobs=1,
)


def test_classes_that_nobody_recorded_come_first() -> None:
    names = [each.name for each in by_turns(SIZES, recorded=["one"])]
    assert names == ["two_1", "three_1", "one_1", "two_2", "three_2", "one_2"]


def test_half_of_the_operator_classes_are_set_aside_by_name_alone() -> None:
    assert [is_set_aside(each) for each in ("matmul", "softmax")] == [False, True]
    later = [is_set_aside(each) for each in ("loss", "scan", "attention", "recurrent", "matvec")]
    assert {True, False} == set(later)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("minutes", [0.002])
def test_a_recording_ends_with_its_minutes_and_the_outlook_tells_what_is_left(
    tmp_path: Path, minutes: float
) -> None:
    record_landscapes(SIZES[:1], tmp_path, ASKED, lambda progress: None)
    told: list[Progress] = []
    began = time.monotonic()
    record_landscapes(SIZES, tmp_path, ASKED, told.append, within_minutes=minutes)
    assert time.monotonic() - began < 120, "what is under way is not waited for"
    assert told[-1].text == "the minutes are used up; what is judged is kept"
    outlooks = look_ahead(LandscapeDirectory(tmp_path), SIZES, ASKED)
    assert [(each.name, each.finished) for each in outlooks[:3]] == [
        ("one_1", True),
        ("two_1", False),
        ("three_1", False),
    ]
    done = outlooks[0]
    assert (done.graph_class, done.recorded, done.family) == ("one", 2, "pointwise")
    assert (done.set_aside, done.seconds_left) == (False, 0.0)
    assert outlooks[1].seconds_left == pytest.approx(2 * SECONDS_A_SETTING)
    other = look_ahead(LandscapeDirectory(tmp_path), SIZES, replace(ASKED, settings=3))
    assert not any(each.finished for each in other), "recorded otherwise than is asked for"


@pytest.mark.slow
def test_the_command_lists_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    arguments = ["bench", str(SUITE), "--only", "swish*", "--only", "mse*"]
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    for landscape in LANDSCAPES.glob("swish*"):
        shutil.copy(landscape, recorded)
    found = CliRunner().invoke(
        cli, [*arguments, "--record", str(recorded), "--list", "--target", "h200"]
    )
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "swish_8k\tswish\trecorded\tpointwise, fitted on"
    assert [line.split("\t")[:2] for line in lines[2:]] == [["mse_8k", "mse"], ["mse_32k", "mse"]]
    assert "2 of 4 landscapes are recorded, 1 of 2 graph classes" in found.stderr
    refused = CliRunner().invoke(cli, [*arguments, "--within", "8"])
    assert refused.exit_code == 2
    assert "go with --record DIR" in refused.stderr
    away = [*arguments, "--record", str(tmp_path), "--within", "8", "--gpus", "2"]
    assert CliRunner().invoke(cli, away).exit_code == 2
