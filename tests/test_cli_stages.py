"""`kmem profile | kmem diagnose | kmem prescribe` and what `kmem skills search --ncu` reads."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kmem.cli.actions.stages import diagnose_profile, read_report_profile
from kmem.cli.by_hand.stages import diagnose, profile
from kmem.cli.display.diagnosis import describe_diagnosis
from kmem.cli.options.stages import DiagnoseOptions
from kmem.engines.local import LocalExecutor
from kmem.errors import KmemError, ProblemError, ProfilerError
from kmem.plugins import Registry
from kmem.profile.static import StaticProfiler
from kmem.records import Bottleneck, Diagnosis, Profile
from kmem.serialize import from_json, to_json

RECORDINGS = Path(__file__).parent / "recordings"
PROBLEM = """
import torch
ROWS, COLUMNS = 1024, 393216
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "softmax.py"
    file.write_text(PROBLEM)
    return file


@pytest.fixture
def registry() -> Registry:
    return Registry(profilers={"static": StaticProfiler()}, executors={"local": LocalExecutor()})


def report_diagnosis(name: str, problem: Path | None, target: str) -> Diagnosis:
    """What a recorded report of Nsight Compute shows."""
    options = DiagnoseOptions(None, problem, target, "match", None)
    return diagnose_profile(read_report_profile(RECORDINGS / name, target), options)


def test_a_report_is_diagnosed_as_one_json_line(problem: Path) -> None:
    argv = [
        "--ncu",
        str(RECORDINGS / "ncu_softmax.csv"),
        "--problem",
        str(problem),
        "--target",
        "h200",
        "--json",
    ]
    result = CliRunner().invoke(diagnose, argv)
    assert result.exit_code == 0, result.output
    found = from_json(Diagnosis, result.stdout)
    assert found.bottleneck is Bottleneck.REDUNDANT_TRAFFIC
    assert found.signature.values["traffic_ratio"] == pytest.approx(1.994, abs=0.001)
    assert {item.metric for item in found.evidence} >= {"traffic_ratio", "dram_throughput_pct"}


def test_the_details_page_of_another_target_is_diagnosed_without_a_problem() -> None:
    found = report_diagnosis("ncu_details_softmax.csv", None, "h100")
    assert found.bottleneck is Bottleneck.DRAM_BANDWIDTH and found.speed_of_light is None


def test_the_stages_pipe_json_lines(problem: Path, registry: Registry) -> None:
    profiled = CliRunner().invoke(
        profile,
        [str(problem), "--target", "h200", "--profiler", "static"],
        obj=registry,
        catch_exceptions=False,
    )
    assert profiled.exit_code == 0
    seen = from_json(Profile, profiled.stdout)
    assert seen.estimated and [launch.name for launch in seen.launches] == ["aten._softmax.default"]
    diagnosed = CliRunner().invoke(
        diagnose, ["--problem", str(problem)], input=profiled.stdout, catch_exceptions=False
    )
    found = from_json(Diagnosis, diagnosed.stdout)
    assert found.estimated and 0.3 < found.speed_of_light <= 1.0
    assert from_json(Diagnosis, to_json(found)) == found
    without_problem = CliRunner().invoke(diagnose, [], input=profiled.stdout)
    assert from_json(Diagnosis, without_problem.stdout) == found, "the profile carries the bound"


@pytest.mark.parametrize(
    ("argv", "text", "error", "message"),
    [
        (["--ncu", "no/such.csv"], "", ProfilerError, "No report at"),
        (
            ["--ncu", str(RECORDINGS / "ncu_softmax.csv"), "--problem", "no/such.py"],
            "",
            ProblemError,
            "No problem file",
        ),
        (
            ["--ncu", str(RECORDINGS / "ncu_softmax.csv"), "--target", "abacus"],
            "",
            KmemError,
            "abacus",
        ),
        ([], "not json\n", ProfilerError, "not a Profile as `kmem profile` prints it"),
        ([], '{"kernel": 1}\n', ProfilerError, "not a Profile"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(
    argv: list[str], text: str, error: type[KmemError], message: str
) -> None:
    result = CliRunner().invoke(diagnose, argv, input=text)
    assert isinstance(result.exception, error) and message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_an_empty_stdin_is_a_usage_error() -> None:
    result = CliRunner().invoke(diagnose, [], input="")
    assert result.exit_code == 2 and "kmem profile" in result.output


def test_a_diagnosis_for_people_has_evidence_headroom_and_what_else_it_may_be(
    problem: Path,
) -> None:
    text = describe_diagnosis(report_diagnosis("ncu_softmax.csv", problem, "h200"))
    assert text.startswith("redundant_traffic: ")
    assert (
        "traffic_ratio = 1.994 (>= 1.3)" in text
        and "headroom" in text
        and "also: dram_bandwidth" in text
    )
