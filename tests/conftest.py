"""Shared fixtures: an own home for every test, Triton's interpreter (but with `-m gpu`), and no GPU unless a test is marked for one."""

import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; the cores are taken by the workers of pytest-xdist

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("kmem", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a slow machine is no fault
settings.load_profile("kmem")

#: The files that take longest. They are begun first, so that no worker of pytest-xdist is left with one when the others are done.
LONG_FILES = (
    "test_bench.py",
    "test_cli_optimize.py",
    "test_evidence.py",
    "test_judge_cli.py",
    "test_judge_corpus.py",
    "test_landscape.py",
    "test_llm_run.py",
    "test_profile_compile.py",
    "test_recipe_convolution.py",
    "test_recipe_rowwise_kernels.py",
    "test_worker.py",
)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != "gpu":  # there the judge's own kernels run as for users
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported; tests that compile do so in a subprocess without it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
    gpu_items = [item for item in items if "gpu" in item.keywords]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True, scope="session")
def interpreter_without_coverage() -> Iterator[None]:
    """Triton's interpreter runs untraced: coverage's tracer made it twice as slow, and no line of kmem runs inside it."""
    if sys.gettrace() is None:
        yield
        return
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def run_untraced(executor: GridExecutor, *arguments: Any, **options: Any) -> None:
        tracer, frame = sys.gettrace(), sys._getframe()
        sys.settrace(None)
        try:
            run(executor, *arguments, **options)
        finally:
            sys.settrace(tracer)
            frame.f_trace = tracer  # it pairs calls with returns, so it must see this one's

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", run_untraced)
        yield


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's database, caches of kmem or configuration."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KMEM_DB", str(home / "kmem.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
