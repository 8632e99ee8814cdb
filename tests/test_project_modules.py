"""A problem's own modules: found by its code alone, in every process, and never for torch."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.errors import ProblemError
from kmem.host.project_modules import imported_directories, project_directories, use_project
from kmem.measure.pool.process import WorkerFailure, WorkerProcess
from kmem.measure.worker.commands import Load
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.traced import untraced_problem
from kmem.profile.compile.pool import compile_kernels
from kmem.profile.compile.report import CompileStatus
from kmem.profile.job import reference_kernel
from kmem.records import Contract

PROBLEM = """
import torch
from {module} import scale

class Model(torch.nn.Module):
    def forward(self, x):
        from later import shift
        return x * scale + shift

def get_inputs():
    return [torch.rand(8)]
"""
#: What a person who writes kernels has lying about.
NAMES = ("queue", "random", "profile", "types", "cuda")


@pytest.fixture(autouse=True)
def no_project() -> Iterator[None]:
    yield
    use_project(())


def project(root: Path, scale: float, name: str = "helper") -> Path:
    """A problem in a project, that imports what lies beside it and at the project's root."""
    place = root / "models"
    place.mkdir(parents=True)
    (root / "pyproject.toml").write_text("", encoding="utf-8")
    (root / "later.py").write_text("from helper import one\nshift = one\n", encoding="utf-8")
    (place / "helper.py").write_text(f"scale = {scale}\none = 1.0\n", encoding="utf-8")
    for shadow in NAMES:
        (place / f"{shadow}.py").write_text("raise RuntimeError('a shadow')\n", encoding="utf-8")
    file = place / "problem_file.py"
    file.write_text(PROBLEM.format(module=name), encoding="utf-8")
    return file


def answer(file: Path) -> float:
    module = execute_problem(load_problem(file))
    import torch

    return float(module.Model()(torch.ones(1)))


def test_a_problem_imports_what_lies_beside_it_and_at_the_root_of_its_project(
    tmp_path: Path,
) -> None:
    file = project(tmp_path / "a", 2.0)
    assert project_directories(file) == (str(file.parent), str(file.parent.parent))
    assert answer(file) == 3.0
    assert "helper" in sys.modules and str(file.parent) not in sys.path


def test_modules_of_one_name_in_two_projects_are_not_mixed_up(tmp_path: Path) -> None:
    files = [project(tmp_path / name, scale) for name, scale in (("a", 2.0), ("b", 5.0))]
    assert [answer(file) for file in (*files, files[0])] == [3.0, 6.0, 3.0]


@pytest.mark.parametrize("name", NAMES)
def test_a_projects_file_never_stands_in_for_what_others_import(tmp_path: Path, name: str) -> None:
    execute_problem(load_problem(project(tmp_path, 2.0)))
    # as torch and triton do, from where they are installed
    installed = compile(f"import {name}", str(Path(os.__file__)), "exec")
    kept = sys.modules.pop(name, None)
    try:
        exec(installed, {})
    except ModuleNotFoundError:
        assert name == "cuda", "the standard library has the others"
    finally:
        if kept is not None:
            sys.modules[name] = kept


def test_a_module_that_lies_nowhere_and_a_relative_import_are_told_with_their_remedies(
    tmp_path: Path,
) -> None:
    file = project(tmp_path, 2.0, name="nowhere")
    with pytest.raises(ProblemError, match="nowhere, which is neither installed here nor lies"):
        execute_problem(load_problem(file))
    file.write_text(PROBLEM.format(module=".helper"), encoding="utf-8")
    with pytest.raises(ProblemError, match=r"write `from package.module import \.\.\.`"):
        execute_problem(load_problem(file))


@pytest.mark.slow
def test_the_judges_worker_finds_a_candidates_project(tmp_path: Path) -> None:
    file = project(tmp_path / "project", 2.0)
    worker = WorkerProcess(
        tmp_path / "worker",
        "cpu",
        cache_dir=tmp_path / "cache",
        reads=imported_directories(file.read_text(encoding="utf-8"), file),
    ).wait_ready()
    source = "import helper\nraise ValueError(helper.scale)\n"
    place = str(tmp_path / "candidate.py")
    try:
        directories = list(project_directories(file))
        load = Load("k", place, source, "ModelNew", [], [], training=True, project=directories)
        with pytest.raises(WorkerFailure, match=r"ValueError: 2\.0"):
            worker.request(load, timeout_s=20)
    finally:
        worker.kill()


@pytest.mark.slow
def test_compiling_finds_the_project_and_nothing_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(tmp_path / "project", 2.0)
    monkeypatch.chdir(file.parent)
    problem = load_problem(file)
    (report,) = compile_kernels(
        [reference_kernel(problem)],
        untraced_problem(problem, Contract(), named_target("h200")),
        processes=1,
        cache_dir=tmp_path / "triton",
        timeout_s=60,
    )
    assert report.status is CompileStatus.OK, report.log


@pytest.mark.slow
def test_kmem_starts_in_a_directory_with_modules_named_like_the_standard_librarys(
    tmp_path: Path,
) -> None:
    file = project(tmp_path, 2.0)
    (file.parent / "types.py").unlink()  # with that, Python itself does not start by -m
    done = subprocess.run(
        [sys.executable, "-m", "kmem", "plugins"],
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
