"""What a package costs until its first call has returned: what is imported, and what is read."""

from collections.abc import Callable
from functools import cache as remember
from pathlib import Path

import pytest
import triton
from triton.runtime import cache

from kmem.deploy.package import export_package
from kmem.deploy.shipped import warm_start
from tests.shipped_runs import finished_run, run_without_kmem
from tests.test_codegen_emitted import CASES, PROBLEM, emitted

FIRST_CALL = """
import sys
import torch

before = set(sys.modules)
import package

for entry in package.ENTRIES:
    original = package.table.load_original(entry)
    model = original.Model()
    with torch.no_grad(), package.patch.apply(model, [entry]) as handle:
        model(*original.get_inputs())
        assert handle.status()[0].served == 1, handle
mine = {"package", "triton", *(name for name in sys.modules if name.startswith("kmem_"))}
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - mine))
print([name for name in set(sys.modules) - before if name.startswith("torch.")])
"""


def test_a_first_call_imports_neither_the_compiler_nor_its_algebra(tmp_path: Path) -> None:
    runs = []
    for skill in ("row-norm", "tile-matmul"):
        init, forward, shape = CASES[skill]
        problem = PROBLEM.format(size=24, init=init, forward=forward, shape=shape)
        run = finished_run(tmp_path / skill, problem=problem, kernel=emitted(skill).source)
        runs.append(run)
    package = export_package(runs, tmp_path / "package")
    done = run_without_kmem(package.directory, "-c", FIRST_CALL)
    assert done.returncode == 0, done.stderr
    for heavy in ("torch._dynamo", "torch._inductor", "sympy"):
        assert heavy not in done.stdout


class Files:
    """A Triton of two files, which counts how often they are read for its hash."""

    def __init__(self, root: Path) -> None:
        self.library = root / "_C" / "libtriton.so"
        self.read = 0
        for place in (self.library, root / "compiler" / "compiler.py"):
            place.parent.mkdir()
            place.write_text("code")

    def key(self) -> str:
        self.read += 1
        return f"the hash of {self.library.read_text()}"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(tmp_path)
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    return files


@pytest.fixture
def first_call(files: Files, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What a first call in a new process takes for Triton's hash of itself."""

    def call() -> str:
        own = remember(files.key)
        monkeypatch.setattr(cache, "triton_key", own)
        warm_start._digest_of_times.cache_clear()
        with warm_start.warm_start():
            found = cache.triton_key()
        assert cache.triton_key is own
        return found

    return call


def test_tritons_hash_of_itself_is_computed_once_for_all_processes(
    first_call: Callable[[], str], files: Files
) -> None:
    assert [first_call() for _ in range(3)] == ["the hash of code"] * 3
    assert files.read == 1


def test_another_triton_has_another_hash(first_call: Callable[[], str], files: Files) -> None:
    first_call()
    files.library.write_text("newer")
    assert first_call() == "the hash of newer"
    assert files.read == 2


def test_a_hash_that_was_cut_off_is_computed_again(
    first_call: Callable[[], str], files: Files, tmp_path: Path
) -> None:
    first_call()
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text()[4:])
    assert first_call() == "the hash of code"
    assert files.read == 2


def test_where_nothing_can_be_kept_a_first_call_works_as_without(
    first_call: Callable[[], str], files: Files, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert [first_call() for _ in range(2)] == ["the hash of code"] * 2
    assert files.read == 2
