"""Judging the corpus: one worker for many candidates, in the interpreter or on a GPU."""

import os
from functools import cached_property
from pathlib import Path

import pytest

from kmem.devices import detect_device, named_target
from kmem.measure.judge import Judge
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Measurement, Precision, Problem, Purity, Workload


def common_cache(factory: pytest.TempPathFactory) -> Path:
    """One for all processes of pytest-xdist, whose directories lie in one; the locks are in it."""
    place = factory.getbasetemp()
    return (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "cache"


class SharedWorkers(WorkerPool):
    """Hands out one worker again and again.

    Isolation is tested elsewhere, and starting a process per case takes seconds.
    """

    def take(self, *, then_prepare: bool = True) -> WorkerProcess:
        self._workers = [worker for worker in self._workers if worker.alive]
        return (self._workers[0] if self._workers else self.start()).wait_ready()

    def prepare(self, *, profiles: bool = False) -> None:
        """One worker is enough."""

    def discard(self, worker: WorkerProcess, *, wait: bool = True) -> None:
        """Keep it."""

    def close(self) -> None:
        """Keep them until the module's tests end."""

    def renew(self) -> None:
        """Let the next candidate have another worker, forked from where this one was."""
        for worker in list(self._workers):
            WorkerPool.discard(self, worker)

    def end(self) -> None:
        WorkerPool.close(self)
        for worker in self._workers:
            worker.kill()
        self._workers = []


class FreshWorkers(WorkerPool):
    """Gives each verdict a worker that has seen no candidate; the next come up meanwhile.

    It goes from judge to judge, and a worker that only answered whether memory can be shared is
    used after all.
    """

    _AHEAD = 2

    def take(self, *, then_prepare: bool = True) -> WorkerProcess:
        self._workers = [worker for worker in self._workers if worker.alive]
        fresh = [worker for worker in self._workers if worker not in self._taken]
        while len(fresh) <= self._AHEAD:
            fresh.append(self.start())
        self._taken.append(fresh[0])
        return fresh[0].wait_ready()

    @cached_property
    def _taken(self) -> list[WorkerProcess]:
        return []

    def put_back(self, worker: WorkerProcess) -> None:
        self._taken.remove(worker)

    def prepare(self, *, profiles: bool = False) -> None:
        """`take` does."""

    def close(self) -> None:
        """Keep those that wait until the module's tests end."""

    def end(self) -> None:
        WorkerPool.close(self)


def judge_once(
    problem: str,
    source: str,
    purity: Purity,
    workers: WorkerPool,
    place: Path,
    *,
    gpu: bool = False,
    small: Workload | None = None,
    precision: Precision = Precision.MATCH,
    cache: Path | None = None,
) -> Measurement:
    """The whole verdict on one candidate of the corpus, without baselines.

    Args:
        cache: where compiled kernels and the GPU's locks lie; by default at the place.
        small: judge at this size too, as is done on a GPU.
    """
    device = detect_device() if gpu else named_target("h200")
    assert device is not None
    traced = TracedProblem(
        Problem("corpus", "<corpus>", problem),
        Contract(precision, purity),
        device,
        {"full": Workload("full")} | ({"small": small} if small else {}),
        {},
        None,
    )
    settings = JudgeSettings(seed=20, gpu=gpu, work_dir=place, cache_dir=cache or place / "cache")
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0, workers=workers) as judge:
        judge._resources.main, judge._resources.has_small = "full", small is not None
        return judge.verify(Kernel(source), ())
