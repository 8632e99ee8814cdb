"""All workers of one judge: started ahead of need, handed out fresh, ended for certain."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from kmem.measure.pool.process import WorkerProcess


class WorkerPool:
    """Starts workers for one device.

    With `keep_spare` a further worker is always coming up, for a start takes seconds that nobody
    should wait for.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        cache_dir: Path,
        *,
        keep_spare: bool,
        reads: Sequence[str] = (),
    ) -> None:
        """No worker is started yet.

        Args:
            directory: in which each worker gets a directory of its own.
            device: as torch names it.
            cache_dir: of compiled kernels.
            keep_spare: whether a further worker is to come up ahead of need.
            reads: where else candidates' workers may read: the problem's own project.
        """
        self._directory = directory
        self._device = device
        self._cache_dir = cache_dir
        self._keep_spare = keep_spare
        self._reads = reads
        self._spare: WorkerProcess | None = None
        self._clean_spares: list[WorkerProcess] = []
        self._workers: list[WorkerProcess] = []

    def prepare(self) -> None:
        """Start a spare now, so that it comes up while the caller does other things."""
        if self._spare is None:
            self._spare = self.start()

    def prepare_clean(self, count: int) -> None:
        """Start workers for baselines now; the next ones that are asked for are these."""
        self._clean_spares += [self._start(clean=True) for _ in range(count)]

    def start(self, *, clean: bool = False) -> WorkerProcess:
        """A worker that has seen nothing yet and may still be coming up.

        Args:
            clean: for a baseline: the worker will see no candidate, and its compiler caches are
                ones that no candidate's worker is given.
        """
        while clean and self._clean_spares:
            worker = self._clean_spares.pop(0)
            if worker.alive:
                return worker
        return self._start(clean=clean)

    def _start(self, *, clean: bool) -> WorkerProcess:
        self._directory.mkdir(parents=True, exist_ok=True)
        cache_dir = self._cache_dir / "baseline" if clean else self._cache_dir
        worker = WorkerProcess(
            Path(tempfile.mkdtemp(prefix="worker-", dir=self._directory)),
            self._device,
            cache_dir=cache_dir,
            hostile=not clean,
            reads=self._reads,
        )
        self._workers.append(worker)
        return worker

    def take(self, *, then_prepare: bool = True) -> WorkerProcess:
        """A worker that has seen no candidate, ready.

        Args:
            then_prepare: start the next spare, where spares are kept.
        """
        spare, self._spare = self._spare, None
        worker = spare if spare is not None and spare.alive else self.start()
        if self._keep_spare and then_prepare:
            self.prepare()
        return worker.wait_ready()

    def refill(self) -> None:
        """Start a spare again, where spares are kept, after one was taken without another."""
        if self._keep_spare:
            self.prepare()

    def put_back(self, worker: WorkerProcess) -> None:
        """Return a worker that has seen no candidate after all."""
        if self._spare is None:
            self._spare = worker
        else:
            self.discard(worker)

    def discard(self, worker: WorkerProcess) -> None:
        """End a worker; one that has been ended before is no error."""
        if worker in self._workers:
            worker.kill()
            self._workers.remove(worker)

    def close(self) -> None:
        """End all of them."""
        for worker in list(self._workers):
            self.discard(worker)
        self._spare, self._clean_spares = None, []
