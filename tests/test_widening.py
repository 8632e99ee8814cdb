"""Sizes between the borders of a range: formulas, and a real winner that serves them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kmem
from kmem.codegen.module.constants import BEGIN, CONSTANT, END
from kmem.deploy.entries import Wide, describe_computation
from kmem.deploy.formulas import fit_texts
from kmem.deploy.installing import _kernels_between
from kmem.deploy.package import Package, export_package
from kmem.deploy.shipped import patch
from kmem.deploy.shipped.between import text_at
from kmem.deploy.widening import Ranged, Span, Widening, spans_of, write_again
from kmem.devices import named_target
from kmem.errors import CaseError
from kmem.measure.bundle import read_bundle
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.problem.sizing.shapes import SizeRange, problem_at, read_ranges, read_shapes
from kmem.problem.source.load import execute_problem, load_problem
from kmem.records import Contract, Precision, Problem, SiteChoice, Status
from kmem.run.evaluation.single import Case, Terms, judge_case
from kmem.run.report.result import Result
from kmem.run.setup.session import open_session
from tests.shipped_runs import KERNEL, finished_run, problem_source

TEXT = """
import torch

ROWS = 64


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs():
    return [torch.randn(ROWS, 256)]


def get_init_inputs():
    return [256]
"""


def texts(sizes: tuple[int, ...], write: str) -> dict[int, str]:
    return {
        size: eval(f"f{write!r}", {"s": size, "cdiv": lambda a, b: -(-a // b)}) for size in sizes
    }


@pytest.mark.parametrize(
    ("write", "fits"),
    [
        ("A = {s}; B = {3 * s - 7}", True),
        ("GRID = {cdiv(s, 64)} of constant(64)", True),
        ("GRID = {cdiv(s * 770, 1024)} of constant(1024), steps of 770", True),
        ("GRID = {cdiv(s * 770, 1024)} of constant(1024)", False),  # where is the 770 from?
        ("PADDED = {64 * cdiv(s, 64)}; GRID = {48 * cdiv(s, 1024)} of 64 and 1024", True),
        ("A = {s * s}", False),
        ("MEAN = {1 / s}", False),
        ("{'masked' if s > 500 else 'whole'}", False),
        ("KEEP = 1e-06 * {s}.5", False),
    ],
)
def test_a_number_gets_a_formula_that_holds_at_every_size_or_none(write: str, fits: bool) -> None:
    found = fit_texts(texts((129, 333, 777, 1001, 1999), write), {64, 1024})
    assert (found is not None) is fits
    if found is not None:
        every = texts(tuple(range(128, 2001)), write)
        assert all(text_at(found, size) == text for size, text in every.items())


def test_what_fits_in_two_ways_fits_in_none() -> None:
    grids = texts((3, 5, 9), "{cdiv(s, 8)} of 8, 64 and 9")
    assert fit_texts(grids, {8}) is not None
    assert fit_texts(grids, {8, 64}) is None  # 9 of 64 are the same at these sizes


def test_every_size_of_a_range_is_served_by_the_nearest_shape_alone() -> None:
    shapes = tuple((("BATCH", batch), ("SEQ", seq)) for batch in (1, 8) for seq in (300, 128, 100))
    asked = [SizeRange("SEQ", 100, 300)]
    served = [
        size
        for shape in shapes[:3]
        for span in spans_of(shape, shapes, asked)
        for size in range(span.low, span.high + 1)
    ]
    shared = [113, 195]
    assert sorted([*served, 100, 300]) == sorted([*range(100, 301), *shared])
    middle = spans_of(shapes[1], shapes, asked)
    assert middle == [Span(shapes[1], "SEQ", 113, 195)]
    assert spans_of(shapes[1], shapes, [SizeRange("SEQ", 130, 300)]) == []
    assert spans_of(shapes[1], shapes, []) == []


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect(build_plugin_manager())


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Ranged:
    place = tmp_path_factory.mktemp("norm")
    (place / "norm.py").write_text(TEXT)
    problem = load_problem(place / "norm.py")
    text = "rows=40..90,64"
    widening = Widening(problem, place, registry, lambda text: None)
    return Ranged(read_shapes(text, problem), read_ranges(text, problem), widening)


@pytest.fixture(scope="module")
def winner(ranged: Ranged, registry: Registry) -> Result:
    """A run on 64 rows whose winner a recipe wrote: two rows a tile, so that 64 need no mask."""
    problem, place = ranged.widening.problem, ranged.widening.directory
    knobs = {"ACCURACY": 0, "BK": 2, "BR": 256, "SPLIT": 1, "STRATEGY": "registers", "num_warps": 1}
    choice = SiteChoice("mean", "mean", "row-norm", tuple(knobs.items()))
    with Memory() as memory:
        session = open_session(problem, Contract(), named_target("h200"), False, registry, memory)
    kernel = write_again(session, (choice,))
    source = problem_at(problem, (("ROWS", 64),))
    return finished_run(
        place / "run", name="norm", problem=source, kernel=kernel.source, choices=kernel.choices
    )


def served_by(package: Package, model: torch.nn.Module, rows: int) -> int:
    """How many kernels serve a call, whose values are checked."""
    x = torch.randn(rows, 256 if rows > 20 else 64)
    with torch.no_grad(), kmem.apply(model, package) as handle:
        for _ in range(2):
            torch.testing.assert_close(model(x), type(model).forward(model, x))
        counts = [each.served for each in handle.status()]
    assert sum(counts) in (0, 2)
    return sum(counts) // 2


@pytest.mark.slow
@pytest.mark.usefixtures("shared_template")
def test_a_recipes_winner_serves_its_part_of_the_range_once_the_judge_has_passed_it(
    ranged: Ranged, winner: Result, tmp_path: Path
) -> None:
    told: list[str] = []
    asked = replace(ranged, widening=replace(ranged.widening, announce=told.append))
    (wide,) = asked.widen("rows64", winner)
    assert told == ["rows64 serves rows 51 to 75, judged at [51, 63, 75]"]
    assert "EVEN_K=False" in wide.kernel
    assert "EVEN_K=True" in winner.outcome.best.candidate.kernel.source
    package = export_package([winner], tmp_path / "package", between={winner.run.id: [wide]})
    model = execute_problem(ranged.widening.problem).Model(256)
    served = {rows: served_by(package, model, rows) for rows in (50, 51, 52, 63, 64, 74, 75, 76)}
    assert served == {rows: int(51 <= rows <= 75) for rows in served}
    (span,) = spans_of((("ROWS", 64),), ranged.shapes, ranged.ranges)
    # who installs the package has the same kernels judged at the same sizes
    (entry,) = package.entries
    bundle = read_bundle(entry.evidence)
    cases = list(_kernels_between(entry, bundle, gpu=False))
    assert [name for name, _, _ in cases] == [f"norm_at_rows{rows}" for rows in (51, 63, 75)]
    _, problem, kernel = cases[1]
    assert execute_problem(problem).get_inputs()[0].shape == (63, 256)
    case = Case(problem, kernel, Terms(Contract(), 0, (), tmp_path / "evidence"))
    judged, _ = judge_case(case, bundle.device, gpu=False, announce=lambda text: None)
    assert judged.status is Status.PASSED
    with pytest.raises(CaseError, match="at 51 the judge says"):
        sized = asked.widening._write(winner, span, 51)
        asked.widening._judge(winner, sized, 51, wide.kernel.replace("+ 1e-06", "+ 1e-01"))


BY_HAND = KERNEL.replace(
    "@triton.jit",
    f"""{BEGIN}ROWS = constant(6)
{END}

@triton.jit""",
).replace("rms_norm[(x.shape[0],)]", "rms_norm[(ROWS,)]")
BY_HAND = BY_HAND.replace(
    "import triton.language as tl\n", f"import triton.language as tl\n\n{CONSTANT}"
)
BY_HAND = BY_HAND.replace("import triton\n", "import triton\n_INTERPRETED = True\n")


def test_a_size_between_is_one_entry_more_from_its_first_call_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finished_run(tmp_path / "run", kernel=BY_HAND)
    written = {rows: Problem("rms_norm", "", problem_source(rows)) for rows in (3, 6, 9)}
    rows = {
        size: describe_computation(each, Precision.MATCH, "it")[1] for size, each in written.items()
    }
    shapes = {
        size: json.dumps({name: row[name] for name in ("inputs", "outputs", "calls")})
        for size, row in rows.items()
    }
    data = {
        "size": "ROWS",
        "low": 3,
        "high": 9,
        "place": (0, 0, 1, 0),
        "judged": [],
        "small_constants": [],
    }
    data |= {
        "shapes": fit_texts(shapes, ()),
        "constants": ["ROWS = constant(", (1, 0, 1, 1), ")\n"],
    }
    wide = {found.run.id: [Wide(data, BY_HAND)]}
    package = export_package([found], tmp_path / "package", between=wide)
    model = execute_problem(found.run.problem).Model(64, 1e-6)
    served = {rows: served_by(package, model, rows) for rows in (2, 3, 5, 6, 8, 9, 10)}
    assert served == {rows: int(3 <= rows <= 9) for rows in served}

    class Other(type(model)):
        """Computes the same at the size of the table alone."""

        def forward(self, x):
            return super().forward(x) if len(x) < 7 else x.clone()

    other = Other(64, 1e-6)
    assert [served_by(package, other, rows) for rows in (6, 7)] == [1, 0]
    with kmem.apply(model, package) as handle, torch.no_grad():
        model(torch.randn(5, 64))
        # what was made for a size is found by the one lookup
        monkeypatch.setattr(patch, "find_between", None)
        model(torch.randn(5, 64))
        assert [each.served for each in handle.status()] == [0, 2]
        assert handle.status()[1].entry == "rms_norm_at_rows5"
    monkeypatch.undo()
    # a file that was touched since it was judged is not run
    (file,) = (tmp_path / "package").glob("package/kernels/*_rows_*")
    file.write_text(BY_HAND.replace("x * scale", "x + scale"))
    assert served_by(package, model, 4) == 0


def test_a_kernel_that_no_recipe_writes_anew_serves_its_own_size(
    ranged: Ranged, tmp_path: Path
) -> None:
    told: list[str] = []
    widening = replace(ranged.widening, announce=told.append)
    by_hand = finished_run(tmp_path / "run", name="norm", problem=TEXT)
    assert replace(ranged, widening=widening).widen("rows64", by_hand) == []
    assert told == [
        "rows64 serves its own size alone: no recipe wrote its kernel, so nobody knows it at other "
        "sizes"
    ]
