"""Bundles: what they hold, that they are repeated, and how a foreign or altered one is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corpus import problems
from corpus.honest import GUARDED, LIBRARY

from kmem.cli.by_hand.verify import verify
from kmem.devices import named_target
from kmem.errors import BundleError
from kmem.measure.bundle import FORMAT, Bundle, compare_bundles, read_bundle, write_bundle
from kmem.records import (
    Baseline,
    Contract,
    ErrorReport,
    Measurement,
    Problem,
    Status,
    Timing,
    content_hash,
)

pytestmark = pytest.mark.usefixtures("shared_template")

DEVICE = named_target("h200")
TIMING = Timing(1.0, 0.98, 1.02, 60, "compile", 2.0, 2.0, 1.96, 2.04)
VERSIONS = {"kmem": "0.2", "torch": "2.11", "triton": "3.6"}
MEASURED = Measurement(
    Status.PASSED,
    TIMING,
    False,
    (ErrorReport("drawn", 4, 1e-7, 1e-7, 1e-6),),
    ("algebraic",),
    "",
    0.01,
    VERSIONS,
)
BUNDLE = Bundle(
    format=FORMAT,
    problem=Problem("scale_relu", "p.py", problems.SCALE_RELU),
    problem_hash=content_hash(problems.SCALE_RELU),
    kernel_source=LIBRARY,
    kernel_hash=content_hash(LIBRARY),
    kernel_flags=("algebraic",),
    kernel_small_constants="",
    contract=Contract(),
    device=DEVICE,
    measured=True,
    seed=7,
    checkers=(),
    measurement=MEASURED,
    baselines=(Baseline("compile", Timing(2.0, 1.9, 2.1, 30), False),),
    samples_ms={"candidate": ((1.0, 1.01), (0.99, 1.0)), "compile": ((2.0, 2.0), (2.0, 2.1))},
    operators={"aten.mul.Tensor": 1},
    gpu_kernels=(("vectorized_elementwise_kernel", 12.5),),
    binaries={"softmax": "ab" * 32},
    command="kmem verify p.py k.py",
    created_at="2026-11-21T12:00:00+00:00",
)


def test_a_bundle_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle.json"
    write_bundle(path, BUNDLE)
    assert read_bundle(path) == BUNDLE
    assert os.listdir(path.parent) == ["bundle.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": FORMAT + 1},
            f"is an evidence bundle of format {FORMAT + 1}, this kmem reads format {FORMAT}",
        ),
        ({"format": None}, "is no evidence bundle: it names no format"),
        (
            {"kernel_source": LIBRARY + "\n"},
            "was altered: its kernel is not the one whose hash it gives",
        ),
        ({"problem_hash": "0" * 64}, "was altered: its problem is not the one whose hash it gives"),
        ({"seed": "seven"}, "is damaged: seed: Input should be a valid integer"),
        ({"device": {}}, "is damaged: device.name: Field required"),
    ],
)
def test_a_bundle_that_is_foreign_or_altered_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "bundle.json"
    write_bundle(path, BUNDLE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BundleError) as caught:
        read_bundle(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BundleError, match="Cannot write the evidence to .*; free space or choose another place"
    ):
        write_bundle(tmp_path / "file" / "bundle.json", BUNDLE)


def test_a_repetition_that_agrees_differs_in_nothing() -> None:
    assert compare_bundles(BUNDLE, MEASURED, DEVICE) == []


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (
            Measurement(
                Status.WRONG_VALUES, None, False, flags=("algebraic",), environment=VERSIONS
            ),
            ["verdict: passed recorded, wrong_values here"],
        ),
        (replace(MEASURED, flags=()), ["flags: algebraic recorded, none here"]),
        (
            replace(MEASURED, environment={**VERSIONS, "torch": "2.13"}),
            ["torch: 2.11 recorded, 2.13 here"],
        ),
        (
            replace(MEASURED, timing=replace(TIMING, ratio=1.9, ratio_low=1.88, ratio_high=1.92)),
            ["ratio: 2.000 (1.960 to 2.040) recorded, 1.900 (1.880 to 1.920) here"],
        ),
        (replace(MEASURED, timing=replace(TIMING, ratio=1.95, ratio_low=1.9, ratio_high=2.0)), []),
        (
            replace(MEASURED, timing=replace(TIMING, latency_ms=1.2)),
            ["latency: 1 ms (0.98 to 1.02) recorded, 1.2 ms here"],
        ),
        (
            replace(MEASURED, timing=replace(TIMING, reference="eager")),
            ["best baseline: compile recorded, eager here"],
        ),
    ],
)
def test_a_repetition_says_what_differs(here: Measurement, said: list[str]) -> None:
    assert [str(deviation) for deviation in compare_bundles(BUNDLE, here, DEVICE)] == said


def run(*arguments: str) -> Result:
    return CliRunner().invoke(verify, list(arguments))


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kmem verify` leaves for a kernel that passes."""
    place = tmp_path_factory.mktemp("evidence")
    (place / "p.py").write_text(problems.SCALE_RELU)
    (place / "k.py").write_text(GUARDED)
    result = run(
        str(place / "p.py"), str(place / "k.py"), "--seed", "11", "--evidence", str(place / "kept")
    )
    assert result.exit_code == 0, result.output
    (path,) = (place / "kept").iterdir()
    assert path.name == f"{content_hash(GUARDED)}.json"
    return path


@pytest.mark.slow
def test_an_accepted_kernel_leaves_its_bundle(bundle_path: Path) -> None:
    bundle = read_bundle(bundle_path)
    assert (bundle.problem.source, bundle.kernel_source, bundle.seed, bundle.measured) == (
        problems.SCALE_RELU,
        GUARDED,
        11,
        False,
    )
    assert bundle.measurement.flags == ("specialised",)
    assert bundle.measurement.environment.keys() == {"kmem", "python", "torch", "triton"}
    assert "aten.empty_like.default" in bundle.operators
    assert len({report.family for report in bundle.measurement.errors}) >= 10


@pytest.mark.slow
def test_a_bundle_is_repeated_with_the_same_verdict(bundle_path: Path) -> None:
    before = bundle_path.read_bytes()
    result = run(str(bundle_path), "--json")
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    assert again["deviations"] == []
    assert again["errors"] == json.loads(before)["measurement"]["errors"]  # same seeds, same inputs
    assert bundle_path.read_bytes() == before


def test_a_bundle_of_another_version_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"format": 99}')
    result = run(str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is an evidence bundle of format 99" in result.stderr


def test_a_problem_without_a_kernel_is_a_usage_error(tmp_path: Path) -> None:
    result = run(str(tmp_path / "p.py"))
    assert result.exit_code == 2
    assert "Missing argument 'KERNEL'" in result.stderr
