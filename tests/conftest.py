"""Shared fixtures and markers.

Every test has a home of its own. Kernels run in Triton's interpreter (but with `-m gpu`), and no
GPU is used unless a test is marked for one.
"""

import atexit
import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# read when torch is first imported; the cores are taken by the workers of pytest-xdist
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import warm
from hypothesis import HealthCheck, settings

# shells start background jobs of scripts with SIGINT ignored, as `kmem` finds it too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a slow machine is no fault
settings.register_profile("kmem", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kmem")

#: The files that take longest, in that order. They are begun first, so that no worker of
#: pytest-xdist is left with one when the others are done.
LONG_FILES = (
    "test_recipe_attention_masks.py",
    "test_recipe_attention_heads.py",
    "test_corpus.py",
    "test_recipe_chunked_scan.py",
    "test_newcomer.py",
    "test_recipe_trained_norm.py",
    "test_whole_training.py",
    "test_recipe_matmul_sm90.py",
    "test_recipe_rowwise_kernels.py",
    "test_recipe_walking.py",
    "test_recipe_attention.py",
    "test_recipe_few_channels.py",
    "test_whole_crew.py",
    "test_whole_compiled_rest.py",
    "test_real_campaign.py",
    "test_recipe_convolution_sm90.py",
    "test_campaign.py",
    "test_workload.py",
    "test_llm_run.py",
    "test_recipe_conv_transpose.py",
    "test_recipe_boxes.py",
    "test_cli_optimize.py",
    "test_api.py",
    "test_recipe_rowwise_compile.py",
    "test_landscape.py",
    "test_ports.py",
    "test_recipe_matmul.py",
    "test_recipe_convolution.py",
    "test_recording_elsewhere.py",
    "test_recipe_decoding.py",
    "test_whole_composed.py",
    "test_recipe_accuracy.py",
    "test_wide_offsets.py",
    "test_deploy_backend.py",
    "test_bench.py",
    "test_recipe_vendor_tails.py",
    "test_slices.py",
    "test_whole_models.py",
    "test_guide.py",
    "test_providers.py",
    "test_problems.py",
    "test_skill_examples.py",
    "test_recurrent_recipe.py",
    "test_widening.py",
    "test_prefetch.py",
    "test_recording_outlook.py",
    "test_whole_loops.py",
    "test_user_test.py",
    "test_compare_kernels.py",
    "test_rewrites.py",
    "test_profile_compile.py",
    "test_away.py",
    "test_judge_cli.py",
    "test_convolution_table.py",
    "test_run_rewritten.py",
    "test_retrieval_hits.py",
    "test_lifetimes.py",
    "test_worker.py",
    "test_readme.py",
    "test_ui_beside.py",
    "test_skill_library.py",
    "test_estimator.py",
    "test_optimize_away.py",
    "test_opened_joins.py",
    "test_waiting_programs.py",
    "test_recipe_vendor_conv.py",
)
#: So many cases of a parametrised test count for coverage.
TRACED_CASES = 3
_PLACES = {name: place for place, name in enumerate(LONG_FILES)}


def pytest_configure(config: pytest.Config) -> None:
    # images of containers forbid bytecode: then every worker of pytest-xdist rewrites the asserts
    # of all tests again, and every process that a test starts compiles kmem again
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gc.set_threshold(50_000)  # as in kmem/cli: Python's own 700 took a fifteenth of the time
    if config.option.markexpr != "gpu":  # there the judge's own kernels run as for users
        # read when triton is first imported; tests that compile do so in a subprocess without it
        os.environ["TRITON_INTERPRET"] = "1"
        # a run starts a compiler for each core, which imports torch for a handful of kernels
        os.environ.setdefault("KMEM_CORES", "1")
        # Inductor would compile five programs to see which vectors this CPU has: it writes loops
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported and collected stays to the end: no collection of garbage walks it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # what ends with the interpreter can be collected again; before, pytest collects five times
        atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _PLACES.get(item.path.name, len(_PLACES)))
    keep_first_cases(items)
    if sys.gettrace() is not None:
        trace_first_cases(items)
    gpu_items = [item for item in items if "gpu" in item.keywords]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


def keep_first_cases(items: Sequence[pytest.Item]) -> None:
    """Take the marker off the first N cases of a test marked `slow(after=N)`."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("slow")
        if marker is None or "after" not in marker.kwargs:
            continue
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] <= marker.kwargs["after"]:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]


def trace_first_cases(items: Sequence[pytest.Item]) -> None:
    """Under coverage, leave all but the first cases of a parametrised test untraced.

    They all run, a third quicker; the lines of a later case count if another test runs them.
    """
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > TRACED_CASES and isinstance(item, pytest.Function):
            item.obj = untraced(item.obj)


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter as workers have it: half the time, and nothing else changes."""
    from kmem.measure.worker.patching import patch_once_a_launch

    undo = patch_once_a_launch()
    yield
    undo()


@pytest.fixture(autouse=True, scope="session")
def quick_coverage(quick_interpreter: None) -> Iterator[None]:
    """Under coverage, Triton's interpreter and torch.export are not traced: half of their time."""
    if sys.gettrace() is None:
        yield
        return
    import torch
    from triton.runtime import interpreter

    with pytest.MonkeyPatch.context() as patch:
        launch = interpreter.GridExecutor.__call__
        patch.setattr(interpreter.GridExecutor, "__call__", untraced(launch))
        patch.setattr(torch.export, "export", untraced(torch.export.export))
        yield


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without coverage's tracer: for code of other packages, which calls no kmem."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        tracer, frame = sys.gettrace(), sys._getframe()
        sys.settrace(None)
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(tracer)
            frame.f_trace = tracer  # it pairs calls with returns, so it must see this one's

    return run


@pytest.fixture(autouse=True, scope="session")
def quick_embeddings() -> Iterator[None]:
    """What was embedded once is known to all tests: the library's descriptions take seconds."""
    from kmem.memory.skills.embeddings import MiniLmEmbedder

    embed = MiniLmEmbedder.__call__
    known: dict[tuple[Path, str], Any] = {}

    def remember(self: MiniLmEmbedder, texts: list[str]) -> Any:
        import numpy as np

        keys = [(self._directory, text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in known))
        if new:
            known.update(zip(new, embed(self, [text for _, text in new]), strict=True))
        return np.stack([known[key] for key in keys])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MiniLmEmbedder, "__call__", remember)
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_processes(pytestconfig: pytest.Config) -> Iterator[None]:
    """Templates of workers and compile processes are forked, for to start one takes two seconds."""
    if pytestconfig.option.markexpr == "gpu":
        yield
        return
    with warm.started_warm():
        yield
    warm.end_sources()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One worker for all verdicts of a file (corpus.judging.SharedWorkers), in the interpreter."""
    from corpus.judging import SharedWorkers  # it loads the judge

    place = tmp_path_factory.mktemp("workers")
    pool = SharedWorkers(place, "cpu", place / "cache", keep_spare=False)
    yield pool
    pool.end()


@pytest.fixture(scope="module")
def cold_processes() -> Iterator[None]:
    """For tests of what such processes are: from here to the end of the file each is a new one."""
    with warm.started_cold():
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_database() -> Iterator[None]:
    """No commit waits for the disk, which takes milliseconds: what is killed keeps its commits."""
    from kmem.memory.storage import Storage

    prepare = Storage._prepare

    def prepare_quickly(self: Storage, lock_timeout_s: float) -> None:
        self.db.execute("pragma synchronous = off")
        prepare(self, lock_timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "_prepare", prepare_quickly)
        yield


@pytest.fixture(scope="module")
def standing_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Makes templates of workers: on the CPU one, which stands until the tests of a file end."""
    from kmem.measure.pool.template import WorkerTemplate

    class Standing(WorkerTemplate):
        def close(self) -> None:
            """Pools come and go."""

    standing: list[Standing] = []

    def make(directory: Path, device: str) -> WorkerTemplate:
        if device != "cpu":
            return WorkerTemplate(directory, device)
        if not standing or not standing[-1].alive:
            standing.append(Standing(tmp_path_factory.mktemp("template"), device))
        return standing[-1]

    yield make
    for template in standing:
        WorkerTemplate.close(template)


@pytest.fixture
def shared_template(standing_template: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked from one process for all tests of a file; it sees no candidate.

    To start one takes a tenth of a second, and what starts and ends when is tested elsewhere.
    """
    monkeypatch.setattr("kmem.measure.pool.workers.WorkerTemplate", standing_template)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's database, caches of kmem or configuration."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KMEM_DB", str(home / "kmem.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.delenv("KMEM_CONTRIBUTOR", raising=False)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
