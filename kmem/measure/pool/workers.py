"""All workers of one judge: started ahead of need, handed out fresh, ended for certain."""

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from kmem.measure.pool.process import WorkerProcess
from kmem.measure.pool.template import WorkerTemplate


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
        self._ending: list[WorkerProcess] = []  # nobody has waited for their end
        self._template: WorkerTemplate | None = None
        self._starting = threading.Lock()  # baselines are started in a thread of their own

    def prepare(self, *, profiles: bool = False) -> None:
        """Start a spare now, so that it comes up while the caller does other things.

        Args:
            profiles: with the GPU's profiler ready, as verifying needs it.
        """
        if self._spare is None:
            self._spare = self.start(profiles=profiles)

    def prepare_clean(self, count: int) -> None:
        """Start workers for baselines now; the next ones that are asked for are these."""
        self._clean_spares += [self._start(clean=True) for _ in range(count)]

    def start(self, *, clean: bool = False, profiles: bool = False) -> WorkerProcess:
        """A worker that has seen nothing yet and may still be coming up.

        Args:
            clean: for a baseline: the worker will see no candidate, and its compiler caches are
                ones that no candidate's worker is given.
            profiles: as `prepare`.
        """
        while clean and self._clean_spares:
            worker = self._clean_spares.pop(0)
            if worker.alive:
                return worker
        return self._start(clean=clean, profiles=profiles)

    def _start(self, *, clean: bool, profiles: bool = False) -> WorkerProcess:
        self._ending = [worker for worker in self._ending if worker.alive]
        self._directory.mkdir(parents=True, exist_ok=True)
        cache_dir = self._cache_dir / "baseline" if clean else self._cache_dir
        worker = WorkerProcess(
            Path(tempfile.mkdtemp(prefix="worker-", dir=self._directory)),
            self._device,
            cache_dir=cache_dir,
            hostile=not clean,
            reads=self._reads,
            template=None if clean else self._find_template(),
            profiles=profiles,
        )
        self._workers.append(worker)
        return worker

    def _find_template(self) -> WorkerTemplate:
        """What candidates' workers are forked from; another one if it has died."""
        with self._starting:
            if self._template is None or not self._template.alive:
                place = Path(tempfile.mkdtemp(prefix="template-", dir=self._directory))
                self._template = WorkerTemplate(place, self._device)
            return self._template

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
            self.prepare(profiles=True)

    def wait_for_spare(self) -> None:
        """Wait until no spare is coming up any more: that would show in what is timed."""
        if self._spare is not None and self._spare.alive:
            self._spare.wait_ready()

    def put_back(self, worker: WorkerProcess) -> None:
        """Return a worker that has seen no candidate after all."""
        if self._spare is None:
            self._spare = worker
        else:
            self.discard(worker)

    def discard(self, worker: WorkerProcess, *, wait: bool = True) -> None:
        """End a worker; one that has been ended before is no error.

        Args:
            wait: until it is gone, and with it its device memory.
        """
        if worker in self._workers:
            self._workers.remove(worker)
            worker.end()
            if wait:
                worker.wait()
            else:
                self._ending.append(worker)

    def close(self) -> None:
        """End all of them."""
        for worker in list(self._workers):
            self.discard(worker)
        for worker in self._ending:
            worker.wait()
        self._ending.clear()
        self._spare, self._clean_spares = None, []
        if self._template is not None:
            self._template.close()
            self._template = None
