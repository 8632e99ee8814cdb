"""The Python API: what `import kmem` costs, and what each name does."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kmem
from kmem.api import optimizing
from kmem.api.from_module import write_problem
from kmem.deploy.bucketed import Bucketed
from kmem.deploy.installing import install
from kmem.deploy.package import export_package
from kmem.errors import OutputError, ProblemError
from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem
from kmem.records import Baseline, Run, Timing
from kmem.run.report.result import Result
from kmem.run.state.progress import Event
from tests.shipped_runs import KERNEL, finished_run, run_without_kmem
from tests.test_deploy_apply import Norm

SOFTMAX = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.randn(48, 96)]
"""


class Block(torch.nn.Module):
    """A module with parameters, buffers, a container and an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
        self.register_buffer("shift", torch.arange(16.0), persistent=False)

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        ramp = torch.arange(16, device=x.device, dtype=x.dtype)
        return torch.nn.functional.gelu(self.layers(x)) * scale + self.shift * ramp


class Normalise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x)) * 0.5


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loose = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.loose


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after some code."""
    code += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_kmem_loads_no_module_of_it_and_nothing_installed() -> None:
    extra = loaded_by("import kmem; dir(kmem)") - loaded_by("pass")
    standard = {name for name in extra if name.partition(".")[0] in sys.stdlib_module_names}
    assert extra - standard == {"kmem"}


def test_names_are_loaded_when_they_are_asked_for() -> None:
    assert set(kmem.__all__) <= set(dir(kmem))
    assert all(getattr(kmem, name) is not None for name in kmem.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        kmem.optimise  # noqa: B018


@pytest.mark.parametrize("training", [False, True])
def test_a_module_becomes_a_problem_file_with_its_names_values_and_mode(
    training: bool, tmp_path: Path
) -> None:
    module = Block().train(training)
    x = torch.randn(5, 8)
    problem = load_problem(write_problem(module, (x, 0.5), tmp_path))
    executed = execute_problem(problem)
    written = build_model(executed, "cpu")
    assert written.state_dict().keys() == module.state_dict().keys()
    assert written.training is training
    assert build_inputs(executed, "cpu")[1] == 0.5
    written.load_state_dict(module.state_dict())
    written.get_buffer("shift").copy_(module.shift)
    torch.testing.assert_close(written(x, 0.5), module(x, 0.5))
    torch.testing.assert_close(written.state_dict(), module.state_dict())


def test_a_tensor_that_is_no_buffer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="loose.*register_buffer"):
        write_problem(Holder(), (torch.randn(4),), tmp_path)


def test_a_module_without_inputs_and_a_file_with_inputs_are_refused() -> None:
    with pytest.raises(ProblemError, match="inputs="):
        kmem.optimize(torch.nn.ReLU(), target="h200")
    with pytest.raises(ProblemError, match="leave inputs= out"):
        kmem.optimize("problem.py", inputs=(torch.ones(1),), target="h200")


def test_shapes_are_named_as_the_problem_has_them(tmp_path: Path) -> None:
    module = torch.nn.ReLU()
    with pytest.raises(ProblemError, match="no named sizes.*shapes="):
        kmem.optimize(module, shapes="batch=1,8", target="h200")
    with pytest.raises(ProblemError, match="names none"):
        kmem.optimize(module, shapes=[], target="h200")
    with pytest.raises(ProblemError, match="is a file: name its sizes"):
        kmem.optimize("problem.py", shapes=[(torch.ones(1),)], target="h200")


def test_shapes_of_a_module_become_one_package_that_serves_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNEL.replace("def __init__(self, width, eps):", "def __init__(self):")
    kernel = kernel.replace("torch.rand(width)", "torch.rand(64)")
    kernel = kernel.replace("self.eps = eps", "self.eps = 1e-6")
    minutes = []

    def find(run: Run, *more: object) -> SimpleNamespace:
        minutes.append(run.budget.minutes)
        there, source = Path(run.out_dir), run.problem.source
        found = finished_run(there, name=run.problem.name, problem=source, kernel=kernel)
        return SimpleNamespace(finished=SimpleNamespace(result=found.outcome))

    monkeypatch.setattr(optimizing, "perform", find)
    norm, rows = Norm().eval(), [torch.randn(rows, 64) for rows in (6, 3, 6)]
    found = kmem.optimize(
        norm, shapes=[(x,) for x in rows], target="h200", minutes=4, out=tmp_path / "out"
    )
    assert minutes == [2, 2]
    assert [label for label, _ in found.results] == ["6x64_float32", "3x64_float32"]
    assert str(found).startswith("2 of 2 shapes have a kernel; 2.00x")
    assert found._repr_html_().count("<tr>") == 2
    with torch.no_grad(), kmem.apply(norm, found) as handle:
        for x in (*rows, torch.randn(4, 64)):
            torch.testing.assert_close(norm(x), Norm.forward(norm, x))
        assert [each.served for each in handle.status()] == [2, 1]
    baselines = (
        Baseline("eager", Timing(0.02, 0.02, 0.02, 1), True),
        Baseline("compile", Timing(0.01, 0.01, 0.01, 1), True),
    )
    (_, first), (label, last) = found.results
    nothing = replace(last.outcome, best=None, speedup=None, baselines=baselines)
    half = Bucketed(((label, first), (label, Result(last.run, nothing))), found.package)
    assert (half.speedup, half.worst_speedup) == (1.0, 0.5)
    assert kmem.load(tmp_path / "out" / "package").entries == found.package.entries


def test_a_setting_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="takes no minute; it takes rounds, minutes"):
        kmem.optimize("problem.py", minute=3)
    with pytest.raises(ValueError, match="match, tf32, bf16, not 'fp8'"):
        kmem.optimize("problem.py", precision="fp8")
    with pytest.raises(TypeError, match="takes no sead"):
        kmem.verify("problem.py", "kernel.py", sead=1)


def test_a_verdict_is_true_or_says_why_not(tmp_path: Path) -> None:
    problem, kernel = tmp_path / "softmax.py", tmp_path / "kernel.py"
    problem.write_text(SOFTMAX)
    kernel.write_text(SOFTMAX.replace("Model", "ModelNew").replace("dim=1", "dim=0"))
    verdict = kmem.verify(problem, kernel, target="h200")
    assert not verdict
    assert "wrong_values" in str(verdict)
    assert verdict.latency_ms is None
    assert "wrong_values" in verdict._repr_html_()


def test_skills_are_found_by_plain_words() -> None:
    hits = kmem.search_skills("softmax over long rows", limit=3)
    assert 0 < len(hits) <= 3
    assert any("softmax" in hit.name for hit in hits)


def test_loading_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds no finished run"):
        kmem.load(tmp_path)
    with pytest.raises(OutputError, match="neither a directory nor a run"):
        kmem.load("20000101")


@pytest.mark.slow
def test_a_module_is_optimised_loaded_applied_and_exported(tmp_path: Path) -> None:
    module, x = Normalise().eval(), torch.randn(40, 96)
    events: list[Event] = []
    result = kmem.optimize(
        module,
        (x,),
        target="h200",
        rounds=0,
        minutes=1,
        out=tmp_path / "run",
        progress=events.append,
    )
    assert {"recall", "explore", "measure"} <= {event.stage for event in events}
    assert result.is_faster
    assert result.estimated
    assert result.latency_ms < result.baselines_ms["eager"]
    assert str(result).startswith("normalise: Estimated")
    assert "<table>" in result._repr_html_()
    assert result.report.startswith("# normalise")
    again = kmem.load(tmp_path / "run")
    assert again.outcome == result.outcome == kmem.load(result.run.id).outcome
    with torch.no_grad():
        expected = module(x)
        with kmem.apply(module, again) as handle:
            torch.testing.assert_close(module(x), expected)
            assert [each.served for each in handle.status()] == [1], str(handle)
    package = export_package([result], tmp_path / "package")
    done = run_without_kmem(package.directory, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "4 passed" in done.stdout, done.stdout
    words = {"trust": True, "force": False, "announce": lambda text: None}
    assert install(str(package.directory), **words).package.name == "package"
