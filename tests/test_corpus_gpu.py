"""The corpus of kernels that are files, on a GPU: honest ones pass, dishonest ones are refused.

Quickest in several processes, and with what was judged wrong as a table in the end:

    COLUMNS=240 python -m pytest -m gpu -n 8 -q --tb=no -rf tests/test_corpus_gpu.py

They take turns on the GPU where a kernel is timed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus.files import CorpusKernel, read_corpus
from corpus.judging import FreshWorkers, SharedWorkers, common_cache, judge_once

from kmem.measure import examiner
from kmem.measure.pool.workers import WorkerPool
from kmem.records import Measurement, Status

pytestmark = pytest.mark.gpu

HONEST, DISHONEST = read_corpus("honest"), read_corpus("dishonest")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return common_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[SharedWorkers]:
    pool = SharedWorkers(tmp_path_factory.mktemp("shared"), "cuda:0", cache, keep_spare=False)
    yield pool
    pool.end()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[FreshWorkers]:
    pool = FreshWorkers(tmp_path_factory.mktemp("fresh"), "cuda:0", cache, keep_spare=False)
    yield pool
    pool.end()


def verdict(kernel: CorpusKernel, workers: WorkerPool, place: Path, cache: Path) -> Measurement:
    return judge_once(
        kernel.problem.source,
        kernel.source,
        kernel.contract.purity,
        workers,
        place,
        gpu=True,
        precision=kernel.contract.precision,
        cache=cache,
    )


def in_a_line(measurement: Measurement) -> str:
    return f"{measurement.status}: " + " ".join(measurement.log.split())


@pytest.mark.parametrize("kernel", [pytest.param(each, id=each.name) for each in HONEST])
def test_an_honest_kernel_passes(
    kernel: CorpusKernel, shared: SharedWorkers, tmp_path: Path, cache: Path
) -> None:
    measurement = verdict(kernel, shared, tmp_path, cache)
    if measurement.status is not Status.PASSED:
        pytest.fail(f"is honest, but {in_a_line(measurement)}")


@pytest.mark.parametrize(
    ("kernel", "by"),
    [
        pytest.param(each, by, id=f"{each.name}-{by}")
        for each in DISHONEST
        for by in each.by
        if by != "source"  # it needs no GPU
    ],
)
def test_a_dishonest_kernel_is_refused(  # noqa: PLR0913 - fixtures
    kernel: CorpusKernel,
    by: str,
    fresh: FreshWorkers,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if by == "worker":
        monkeypatch.setattr(examiner, "check_source", lambda source, problem_source: [])
    measurement = verdict(kernel, fresh, tmp_path, cache)
    if measurement.status is Status.PASSED:
        pytest.fail("is dishonest, but passed")
    if not re.search(kernel.says_on_gpu, measurement.log):
        pytest.fail(f"is refused for another reason: {in_a_line(measurement)}")
