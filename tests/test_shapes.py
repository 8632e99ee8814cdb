"""`kmem optimize --shapes`: what names shapes, and the table that a range of them becomes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import kmem
from kmem.cli import cli
from kmem.errors import ProblemError
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.problem.sizing.shapes import label_of, problem_at, read_shapes
from kmem.problem.source.load import execute_problem, load_problem
from kmem.records import Problem, Run
from tests.shipped_runs import PROBLEM, finished_run

TEXT = """
import torch

BATCH, SEQ = 4, 256
WIDE: int = 96
EPS = 1e-5


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        return torch.relu(self.norm(x)) * 0.5


def get_inputs():
    return [torch.randn(BATCH * SEQ, WIDE)]


def get_init_inputs():
    return [WIDE]
"""


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    (tmp_path / "norm.py").write_text(TEXT)
    return load_problem(tmp_path / "norm.py")


def test_lists_and_ranges_combine_and_the_largest_comes_first(problem: Problem) -> None:
    shapes = read_shapes("batch=1,8 seq=100..600", problem)
    sizes = (600, 512, 256, 128, 100)
    assert shapes == tuple((("BATCH", b), ("SEQ", s)) for b in (8, 1) for s in sizes)
    assert label_of(shapes[0]) == "batch8_seq600"
    assert read_shapes("seq=64..64,64", problem) == ((("SEQ", 64),),)


def test_a_file_names_shapes_line_by_line(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "shapes").write_text("# served\nbatch=1 seq=7\n\nbatch=2 seq=9\nbatch=1 seq=7\n")
    assert len(read_shapes(str(tmp_path / "shapes"), problem)) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rows=3", "rows is no integer at the top.*batch, seq, wide"),
        ("batch=4 BATCH=5", "given twice"),
        ("eps=1", "eps is no integer"),
        ("batch=8..2", "the smaller one first"),
        ("batch", "is no size of a shape"),
        ("", "names no shape"),
        ("batch=1..1000000 seq=1..1000000", "at most 256"),
    ],
)
def test_what_is_no_shape_is_refused_with_the_remedy(text: str, why: str, problem: Problem) -> None:
    with pytest.raises(ProblemError, match=why):
        read_shapes(text, problem)


def test_the_problem_at_a_shape_has_its_sizes_and_nothing_else(
    problem: Problem, tmp_path: Path
) -> None:
    (tmp_path / "at.py").write_text(problem_at(problem, (("BATCH", 2), ("WIDE", 10))))
    module = execute_problem(load_problem(tmp_path / "at.py"))
    assert module.get_inputs()[0].shape == (512, 10)
    assert module.get_init_inputs() == [10]


def test_a_range_becomes_a_table_that_serves_each_of_its_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = []

    def find(run: Run, registry: Registry) -> SimpleNamespace:
        """A run that found a kernel, in a moment."""
        minutes.append(run.budget.minutes)
        source = run.problem.source
        found = finished_run(Path(run.out_dir), name=run.problem.name, problem=source)
        return SimpleNamespace(finished=SimpleNamespace(result=found.outcome))

    monkeypatch.setattr("kmem.cli.actions.shapes.carry_out", find)
    place, out = tmp_path / "norm.py", tmp_path / "out"
    place.write_text(f"ROWS = 6\n{PROBLEM}")
    words = ["optimize", str(place), "--shapes", "rows=3..4,40", "--target", "h200"]
    words += ["--minutes", "3", "--out", str(out), "--json"]
    done = CliRunner().invoke(cli, words, obj=collect(build_plugin_manager()))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert [row["shape"] for row in told["shapes"]] == [{"ROWS": n} for n in (40, 4, 3)]
    assert minutes == [1, 1, 1]
    model = execute_problem(load_problem(place)).Model(64, 1e-6)
    with torch.no_grad():
        handle = kmem.apply(model, kmem.load(told["package"]))
        for rows in (4, 40, 30, 40):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(model(x), type(model).forward(model, x))
    assert [each.served for each in handle.status()] == [2, 1, 0]
    assert handle.status()[0].passed_on == 1
