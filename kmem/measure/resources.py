"""What one judge makes once and lends to its steps.

References, timed inputs, workers, seeds, and the lease on the GPU. Workers are of two kinds: a
fresh one for each candidate, whenever it is screened or verified; and clean ones for baselines,
which never see a candidate nor a cache that candidates write to.
"""

import gc
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

from kmem.devices import cuda_properties
from kmem.errors import RUN_AGAIN, ExecutorError
from kmem.host.lease import GpuLease, gpu_uuid
from kmem.measure.oracle.domain import find_refused, has_small_inputs, may_stop_gpu
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess
from kmem.measure.pool.shared_directory import SharedDirectory
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.timing.baseline import COMPILE_TIMEOUT_S, call_baseline, start_baseline
from kmem.measure.timing.gpu_clock import LoadedModule
from kmem.measure.timing.inputs import TimedInputs
from kmem.measure.worker.tensors import Placement
from kmem.problem.sizing.between import workloads_between
from kmem.problem.traced import TracedProblem
from kmem.records import Status, Workload

logger = logging.getLogger(__name__)


def open_lease(directory: Path, on_wait: Callable[[str], None]) -> GpuLease:
    """The lease of the visible GPU; see GpuLease.

    Raises ExecutorError: if its lock files cannot be made.
    """
    try:
        return GpuLease(directory, gpu_uuid(), on_wait, torch.cuda.empty_cache)
    except OSError as ex:
        raise ExecutorError(
            f"Cannot make a lock file in {directory}: {ex}; free space there or choose another "
            f"with KMEM_DB"
        ) from ex


class JudgeResources:
    """Everything here is made when first asked for.

    `close` ends the workers and removes shared memory.
    """

    def __init__(
        self,
        traced: TracedProblem,
        *,
        seed: int,
        directory: Path,
        workers: WorkerPool,
        lease: GpuLease | None,
        on_event: Callable[[str], None],
    ) -> None:
        """Nothing is made yet.

        Args:
            directory: for shared memory where the memory file system has no room.
            workers: closed with the resources.
            lease: None without a GPU.
            on_event: told in a few words what is being done.
        """
        self.traced = traced
        self.workers = workers
        self.lease = lease
        self.gpu = lease is not None
        self._seed = seed
        self._on_event = on_event
        self._device = torch.device("cuda:0" if self.gpu else "cpu")
        self._shared = SharedDirectory(directory)
        workloads = traced.workloads
        #: The workload that verdicts are about: the full one, but in the interpreter the small one
        #: if there is one.
        self.main = "full" if self.gpu or "small" not in workloads else "small"
        self.has_small = "small" in workloads and self.main != "small"
        self._workloads = dict(workloads)
        self._references: dict[str, Reference] = {}
        self._inputs: TimedInputs | None = None
        self._baseline_workers: dict[str, WorkerProcess] = {}
        # processes of baselines that are still to be loaded
        self._starting: dict[str, WorkerProcess] = {}
        self._ipc: bool | None = None
        self._refused: dict[str, str] = {}
        # baselines are timed in a thread of their own
        self._making, self._loading = threading.RLock(), threading.RLock()
        self._trying = threading.RLock()
        # whether it was asked on the CPU what the module raises for, and whether that is known
        self._is_asked = self._is_tried = False

    def close(self) -> None:
        self.workers.close()
        if self._inputs is not None:
            self._inputs.close()
        self._inputs = None
        while self._references:
            self._references.popitem()[1].close()
        self._shared.close()
        if self.lease is not None:
            self.lease.close()
            gc.collect()
            torch.cuda.empty_cache()  # this process may live on, and others wait for the memory

    def hold_gpu(self, purpose: str, *, exclusive: bool) -> AbstractContextManager[None]:
        """Hold the GPU, shared for checks or alone for timing; nothing to hold without one."""
        if self.lease is None:
            return nullcontext()
        return self.lease.hold(exclusive=exclusive, purpose=purpose)

    def hold_gpu_with_room(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the GPU alone, and have others give back the device memory that they merely keep."""
        assert self.lease is not None, "without a GPU nobody shares one"
        return self.lease.hold_with_room(purpose)

    def turn_to(self, purpose: str) -> None:
        """Say what the GPU is held for from now on: a bench tells where its time went."""
        if self.lease is not None:
            self.lease.turn_to(purpose)

    def seed_for(self, *purpose: str) -> int:
        """A seed for each purpose that cannot be guessed from another one."""
        digest = hashlib.sha256("/".join((str(self._seed), *purpose)).encode()).digest()
        return int.from_bytes(digest[:6], "big")

    # ---- the reference and its inputs

    def reference(self, workload: str | None = None) -> Reference:
        """The problem at one workload, by default the main one.

        Raises ProblemError and DeviceMemoryError.
        """
        workload = workload or self.main
        self.try_on_cpu()  # before: two that draw at once in one process get each other's numbers
        with self._making:
            if workload not in self._references:
                made = self._make_reference(
                    workload, self._placement(self._device, ipc=self._can_share_cuda())
                )
                self._references[workload] = made
                if not self.gpu:
                    made.target = cuda_properties(self.traced.device)
                else:
                    made.refused |= self._refused
                    made.is_tried = self._is_tried
            return self._references[workload]

    def workload(self, name: str) -> Workload:
        """The workload of a name."""
        return self._workloads[name]

    def between(self) -> Iterator[str]:
        """Names of workloads between the small one and the full, in the order to try them."""
        small = self.traced.workloads.get("small")
        if small is not None:
            for workload in workloads_between(self.traced.problem, small):
                self._workloads[workload.name] = workload
                yield workload.name

    def _placement(self, device: torch.device, *, ipc: bool) -> Placement:
        return Placement(device, self._shared.path, ipc)

    def _make_reference(self, workload: str, placement: Placement) -> Reference:
        return Reference(
            self.traced.problem,
            self._workloads[workload],
            self.traced.contract,
            placement,
            seed=self.seed_for("parameters", workload),
        )

    def try_on_cpu(self) -> None:
        """Find out once what the module raises for, before the GPU is asked.

        It may take seconds, in which others should have the GPU: call it without the lease.
        """
        with self._trying:
            if not self.gpu or self._is_asked:
                return
            graph = self.traced.graphs.get("full")
            if not may_stop_gpu(graph):
                self._is_tried = True
            elif self.has_small or has_small_inputs(graph):
                name = "small" if self.has_small else self.main
                on_cpu = self._placement(torch.device("cpu"), ipc=False)
                make = partial(self._make_reference, name, on_cpu)
                found = find_refused(make, self.seed_for)
                self._is_tried, self._refused = found is not None, found or {}
            self._is_asked = True

    def timed_inputs(self) -> TimedInputs:
        """Inputs of the main workload for timed calls."""
        with self._making:
            if self._inputs is None:
                self._inputs = TimedInputs(self.reference(), self.seed_for)
            return self._inputs

    def _can_share_cuda(self) -> bool:
        """Whether CUDA IPC works between this process and a worker; tried once."""
        if self._ipc is None:
            self._ipc = self.gpu and self._probe_ipc()
            if self.gpu and not self._ipc:
                self._on_event(
                    "CUDA IPC is refused here: inputs travel through shared memory on the host"
                )
        return self._ipc

    def _probe_ipc(self) -> bool:
        worker = self.workers.take()
        try:
            shared = SharedArguments(
                "probe",
                [torch.arange(8, device=self._device)],
                self._placement(self._device, ipc=True),
            )
            worker.attach(shared)
            worker.detach(shared)
        # torch reports a refused handle as a RuntimeError; in the worker it is fatal
        except (RuntimeError, WorkerLost) as ex:
            logger.info("CUDA IPC probe failed: %s", ex)
            self.workers.discard(worker)
            return False
        self.workers.put_back(worker)
        return True

    # ---- workers

    def keep_baseline_worker(self, name: str, worker: WorkerProcess) -> None:
        """Have a worker with this baseline loaded at hand for paired timing."""
        self._baseline_workers[name] = worker

    def prepare_baseline_worker(self, name: str) -> None:
        """Start a process for this baseline, if there is none.

        It comes up while a candidate is checked.
        """
        if not self._loading.acquire(blocking=False):
            return  # another thread is loading one
        try:
            if not any(
                name in workers and workers[name].alive
                for workers in (self._baseline_workers, self._starting)
            ):
                self._starting[name] = self.workers.start(clean=True)
        finally:
            self._loading.release()

    def baseline_worker(self, name: str, *, timeout_s: float = COMPILE_TIMEOUT_S) -> WorkerProcess:
        """A clean worker with this baseline loaded and compiled.

        So no time limit of a candidate is spent on compiling the competition.

        Args:
            timeout_s: for waiting until another thread has loaded one, for loading it, and for
                compiling it.

        Raises:
            ExecutorError: if a baseline that was timed before cannot be started again.
            WorkerLost: if a shorter time limit than usual was reached.
        """
        if not self._loading.acquire(timeout=timeout_s):
            raise WorkerLost(Status.TIMED_OUT, f"baseline {name} was not loaded in time")
        try:
            worker = self._baseline_workers.get(name)
            if worker is None or not worker.alive:
                self.prepare_baseline_worker(name)
                worker = self._starting.pop(name).wait_ready()
                inputs = self.timed_inputs()
                inputs.show(worker)
                inputs.refresh(worker)
                self._load_baseline(LoadedModule(worker, name), inputs.names(worker)[0], timeout_s)
                self._baseline_workers[name] = worker
            return worker
        finally:
            self._loading.release()

    def _load_baseline(self, baseline: LoadedModule, inputs: str, timeout_s: float) -> None:
        try:
            start_baseline(baseline, self.reference(), timeout_s=timeout_s)
            call_baseline(baseline, inputs, timeout_s=timeout_s)
        except (WorkerFailure, WorkerLost) as ex:
            if timeout_s < COMPILE_TIMEOUT_S and getattr(ex, "status", None) is Status.TIMED_OUT:
                raise
            raise ExecutorError(
                f"Baseline {baseline.key} ran before and fails now: {ex}; {RUN_AGAIN}"
            ) from ex
