"""The corpus of kernels that are files: honest ones pass, dishonest ones are refused as they say.

What the source check must refuse is shown it alone; the rest takes a whole verdict, in the
interpreter, on the CPU.
"""

import re
from pathlib import Path

import pytest
from corpus.files import CorpusKernel, read_corpus
from corpus.judging import SharedWorkers, judge_once

from kmem.measure import examiner
from kmem.measure.source_check import check_source
from kmem.records import Measurement, Status

HONEST, DISHONEST = read_corpus("honest"), read_corpus("dishonest")


def named(kernels: list[CorpusKernel], by: str | None = None) -> list[object]:
    """Cases of a parametrised test: the kernels that `by` must refuse, all by default."""
    return [
        pytest.param(kernel, id=kernel.name) for kernel in kernels if by is None or by in kernel.by
    ]


def verdict(kernel: CorpusKernel, workers: SharedWorkers, place: Path) -> Measurement:
    """The whole verdict; after a refusal the worker is not used again."""
    try:
        return judge_once(
            kernel.problem.source,
            kernel.source,
            kernel.contract.purity,
            workers,
            place,
            precision=kernel.contract.precision,
        )
    finally:
        if kernel.by:
            workers.renew()


@pytest.mark.parametrize("kernel", named(HONEST))
def test_the_source_check_lets_an_honest_kernel_pass(kernel: CorpusKernel) -> None:
    found = check_source(kernel.source, problem_source=kernel.problem.source)
    assert [str(refusal) for refusal in found] == []


@pytest.mark.parametrize("kernel", named(DISHONEST, "source"))
def test_the_source_check_refuses(kernel: CorpusKernel) -> None:
    found = check_source(kernel.source, problem_source=kernel.problem.source)
    assert found, "nothing was refused"
    assert re.search(kernel.says, "\n".join(map(str, found)))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kernel", named(HONEST))
def test_an_honest_kernel_passes(
    kernel: CorpusKernel, workers: SharedWorkers, tmp_path: Path
) -> None:
    measurement = verdict(kernel, workers, tmp_path)
    assert (measurement.status, measurement.log) == (Status.PASSED, "")


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kernel", named(DISHONEST, "judge"))
def test_a_dishonest_kernel_is_refused(
    kernel: CorpusKernel, workers: SharedWorkers, tmp_path: Path
) -> None:
    measurement = verdict(kernel, workers, tmp_path)
    assert measurement.status is not Status.PASSED
    assert re.search(kernel.says, measurement.log), measurement.log


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kernel", named(DISHONEST, "worker"))
def test_what_the_source_check_might_miss_is_refused_by_what_it_does(
    kernel: CorpusKernel, workers: SharedWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "check_source", lambda source, problem_source: [])
    measurement = verdict(kernel, workers, tmp_path)
    assert measurement.status is not Status.PASSED
    assert re.search(kernel.says, measurement.log), measurement.log
