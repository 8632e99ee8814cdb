"""Exports for FlashInfer-Bench: its own models read them, and reference and solution agree."""

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from kmem.cli import cli
from kmem.deploy.flashinfer import export_flashinfer
from kmem.errors import OutputError
from kmem.plugins import build_plugin_manager, collect
from kmem.run.report.result import Result
from tests.shipped_runs import PROBLEM, finished_run


def only(place: Path, pattern: str) -> dict[str, Any]:
    (found,) = place.glob(pattern)
    return json.loads(found.read_text())


def function(place: Path, text: str) -> Any:
    """The `run` of a file with this text."""
    place.write_text(text)
    return runpy.run_path(str(place))["run"]


def measured(result: Result) -> Result:
    return Result(result.run, replace(result.outcome, estimated=False))


def test_reference_and_solution_are_functions_of_inputs_and_state(tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert export_flashinfer([finished_run(tmp_path / "run")], out) == ("rms_norm",)
    definition = only(out, "definitions/kmem/rms_norm.json")
    solution = only(out, "solutions/kmem/rms_norm/*.json")
    assert definition["inputs"] == {
        "input0": {"shape": ["n6", "n64"], "dtype": "float32"},
        "state0": {"shape": ["n64"], "dtype": "float32"},
    }
    assert definition["axes"]["n6"] == {"type": "const", "value": 6}
    assert (solution["definition"], solution["spec"]["entry_point"]) == ("rms_norm", "main.py::run")
    (source,) = solution["sources"]
    x, weight = torch.randn(6, 64), torch.rand(64)
    expected = function(tmp_path / "reference.py", definition["reference"])(x, weight)
    torch.testing.assert_close(expected, torch.nn.functional.rms_norm(x, [64], weight, 1e-6))
    found = function(tmp_path / "main.py", source["content"])(x, weight)
    torch.testing.assert_close(found, expected)


def test_only_what_was_measured_has_a_trace(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    export_flashinfer([run], tmp_path / "estimated")
    assert not (tmp_path / "estimated" / "traces").exists()
    export_flashinfer([measured(run)], tmp_path / "measured")
    trace = only(tmp_path / "measured", "traces/kmem/rms_norm.jsonl")
    assert trace["evaluation"]["performance"]["speedup_factor"] == pytest.approx(2.0)
    assert trace["evaluation"]["environment"]["hardware"] == "NVIDIA_H200"
    assert trace["workload"] == only(tmp_path / "measured", "workloads/kmem/*.jsonl")["workload"]


def test_flashinfer_bench_reads_the_set(tmp_path: Path) -> None:
    bench = pytest.importorskip("flashinfer_bench.data", exc_type=ImportError)
    export_flashinfer([measured(finished_run(tmp_path / "run"))], tmp_path / "set")
    known = bench.TraceSet.from_path(str(tmp_path / "set"))
    assert list(known.definitions) == ["rms_norm"]
    assert known.solutions["rms_norm"][0].author == "kmem"
    assert known.traces["rms_norm"][0].is_successful()
    assert known.workloads["rms_norm"][0].is_workload_trace()


def test_the_command_writes_it_and_replaces_only_an_export(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    registry = collect(build_plugin_manager())
    words = ["export", str(tmp_path / "run"), "--to", str(tmp_path / "set")]
    words += ["--format", "flashinfer"]
    done = CliRunner().invoke(cli, words, obj=registry)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'set'}\n")
    assert "--force replaces it" in CliRunner().invoke(cli, words, obj=registry).output
    assert CliRunner().invoke(cli, [*words, "--force"], obj=registry).exit_code == 0
    named = CliRunner().invoke(cli, [*words, "--name", "x"], obj=registry)
    assert "takes no --name" in named.output


def test_a_dtype_that_the_schema_has_not_is_refused(tmp_path: Path) -> None:
    problem = PROBLEM.replace("torch.randn(ROWS, 64)", "torch.randn(6, 64).double()")
    with pytest.raises(OutputError, match="a tensor of float64; export it as package"):
        export_flashinfer([finished_run(tmp_path / "run", problem=problem)], tmp_path / "set")
