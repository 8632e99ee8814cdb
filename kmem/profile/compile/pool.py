"""Compile whole modules for a target without a GPU, in parallel.

Used to profile statically, to rank candidates before they are measured, to drop duplicates (same
PTX and grids), and to fill the Triton disk cache on all CPU cores so that the GPU never waits for a
compiler. The crash or hang of one module is that module's report. process.py owns one process;
process.py is what runs in it.
"""

import json
import math
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kmem.devices import cuda_properties
from kmem.host.cores import Cores
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.process import CompileProcess
from kmem.profile.compile.report import CompileReport, CompileStatus, read_report
from kmem.profile.compile.target_driver import compute_capability
from kmem.profile.description import describe_inputs
from kmem.records import Kernel


class CompileProcesses:
    """Long-lived compile processes for any problem; a context manager.

    Each is started when first needed and keeps what it imported; the one that was used last is
    asked first.
    """

    def __init__(
        self, count: int, cache_dir: Path, *, niceness: int = 0, cores: Cores | None = None
    ) -> None:
        """Prepare the processes; none runs yet.

        Args:
            cache_dir: Triton's cache.
            niceness: what the processes and their compilers add to this process's own, to leave the
                cores to others.
            cores: of which a process holds one while it compiles; by default those of the
                environment.
        """
        self.cores = cores or Cores()
        self._directory = tempfile.TemporaryDirectory(
            prefix="kmem-compile-", ignore_cleanup_errors=True
        )
        self.directory = Path(self._directory.name)
        self._members = [CompileProcess(self.directory, cache_dir, niceness) for _ in range(count)]
        self._idle: queue.LifoQueue[CompileProcess] = queue.LifoQueue()
        for process in self._members:
            self._idle.put(process)
        self._lending, self._lent = threading.Lock(), 0
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="kmem-compile")

    def __enter__(self) -> "CompileProcesses":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, also while threads wait for answers, as after an interrupt.

        Questions that were not begun are cancelled.
        """
        self.cores.end()
        for process in self._members:
            process.end()
        self._threads.shutdown(cancel_futures=True)
        for process in self._members:
            process.stop()
        self._directory.cleanup()

    def start(self, count: int) -> None:
        """Start `count` processes before the first question, for their imports take seconds."""
        for process in self._members[::-1][:count]:  # those that are asked first
            process.start()

    def submit(
        self, setup: str, source: str, timeout_s: float, deadline: float = math.inf
    ) -> "Future[dict[str, Any]]":
        """The answer of a process about one module of the problem of `setup`.

        Modules are compiled in order of submission.

        Args:
            timeout_s: for the module, from the moment that a process begins with it.
            deadline: of `cores.now` at which a module is given up that is not compiled by then.
        """
        try:
            return self._threads.submit(
                self._ask, setup, json.dumps({"source": source}), timeout_s, deadline
            )
        except RuntimeError as ex:  # closed meanwhile: the executor says so in no other way
            raise CancelledError from ex

    def _ask(self, setup: str, question: str, timeout_s: float, deadline: float) -> dict[str, Any]:
        process = self._idle.get()
        late = {"status": CompileStatus.LATE.value, "log": "its time was up", "seconds": 0.0}
        try:
            with self.cores.job():
                left_s = deadline - self.cores.now()
                if left_s <= 0:
                    return late
                answer = process.ask(setup, question, min(timeout_s, left_s), self._lend)
            is_cut_off = left_s < timeout_s and answer["seconds"] >= left_s
            return late if is_cut_off and answer["status"] == "failed" else answer
        finally:
            self._idle.put(process)

    @contextmanager
    def _lend(self, wanted: int) -> Iterator[int]:
        """Let a process use more cores: at most those of the processes that are idle just now."""
        with self._lending:
            count = max(0, min(wanted, self._idle.qsize() - self._lent))
            self._lent += count
        try:
            with self.cores.spare(count) as cores:
                yield cores
        finally:
            with self._lending:
                self._lent -= count


class CompilePool:
    """Compiles modules for one target; a context manager."""

    def __init__(
        self,
        traced: TracedProblem,
        *,
        processes: int | CompileProcesses,
        cache_dir: Path | None = None,
        read_binaries: bool = True,
    ) -> None:
        """Prepare the pool; nothing runs yet.

        Args:
            processes: how many to start and close with the pool, or some that others use too, which
                stay.
            cache_dir: Triton's cache, of processes that are started; default: Triton's own place.
            read_binaries: whether to disassemble what was compiled, which estimates need. It takes
                longer than compiling a small kernel.

        Raises:
            ProfilerError: if the target is not NVIDIA's.
        """
        compute_capability(traced.device.arch)
        self._device = traced.device
        self._own: CompileProcesses | None = None
        if isinstance(processes, CompileProcesses):
            self._processes = processes
        else:
            self._processes = self._own = CompileProcesses(
                max(1, processes), cache_dir or default_cache_dir()
            )
        device = asdict(traced.device)
        del device["peak_flops_per_s"]  # no kernel asks for it
        setup = {
            **describe_inputs(traced),
            "device": device,
            "properties": cuda_properties(traced.device),
            "directory": str(self._processes.directory),
            "read_binaries": read_binaries,
        }
        self._setup = json.dumps(setup)
        # what was begun ahead of the question, by source, in order; with its time limits
        self._begun: dict[str, tuple[Future[dict[str, Any]], float, float]] = {}
        # modules are begun while others are asked for
        self._submitting = threading.RLock()

    def __enter__(self) -> "CompilePool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the pool's own processes."""
        if self._own is not None:
            self._own.close()

    def begin(
        self, kernels: Sequence[Kernel], *, timeout_s: float, within_s: float = math.inf
    ) -> None:
        """Have modules compiled that `compile` will be asked for, after what it is asked for now.

        Args:
            timeout_s: for each kernel.
            within_s: for all of them.
        """
        deadline = self._processes.cores.now() + within_s
        with self._submitting:
            for kernel in kernels:
                if kernel.source not in self._begun:
                    answer = self._submit(kernel.source, timeout_s, deadline)
                    self._begun[kernel.source] = (answer, timeout_s, deadline)

    def _submit(self, source: str, timeout_s: float, deadline: float) -> "Future[dict[str, Any]]":
        return self._processes.submit(self._setup, source, timeout_s, deadline)

    def _submit_all(
        self, kernels: Sequence[Kernel], timeout_s: float, deadline: float
    ) -> "dict[Future[dict[str, Any]], int]":
        """The answers by the index of the kernel; what was begun and waits stands behind them."""
        answers = {}
        with self.postponed() as waiting:
            for index, kernel in enumerate(kernels):
                waiting.pop(kernel.source, None)
                answer, *_ = self._begun.pop(kernel.source, (None,))
                answers[answer or self._submit(kernel.source, timeout_s, deadline)] = index
        return answers

    @contextmanager
    def postponed(self) -> Iterator[dict[str, tuple[float, float]]]:
        """What was begun and still waits goes behind what is submitted in the block.

        Other pools of the same processes may submit there, too.

        Yields:
            The sources that go behind, with their time limits; the block may take some out.
        """
        with self._submitting:
            waiting = {
                source: (timeout_s, deadline)
                for source, (answer, timeout_s, deadline) in self._begun.items()
                if answer.cancel()
            }
            for source in waiting:
                del self._begun[source]
            yield waiting
            for source, limits in waiting.items():
                self._begun[source] = (self._submit(source, *limits), *limits)

    def compile(
        self,
        kernels: Sequence[Kernel],
        *,
        timeout_s: float,
        within_s: float = math.inf,
        on_done: Callable[[CompileReport], None] | None = None,
    ) -> list[CompileReport]:
        """Compile modules; reports in the order of `kernels`.

        Args:
            timeout_s: for each kernel; one that takes longer is reported as failed and its process
                replaced.
            within_s: for all of them; those not compiled by then are reported as late.
            on_done: called in this thread with each report as it comes.

        Raises:
            ProblemError: if the problem's inputs cannot be built on the meta device.
        """
        cores = self._processes.cores
        answers = self._submit_all(kernels, timeout_s, cores.now() + within_s)
        done: queue.SimpleQueue[Future[dict[str, Any]]] = queue.SimpleQueue()
        # not as_completed: it never hears of what is cancelled by a shutdown
        for answer in answers:
            answer.add_done_callback(done.put)
        reports: dict[int, CompileReport] = {}
        try:
            for _ in answers:
                with cores.lent():
                    answer = done.get()
                index = answers[answer]
                reports[index] = read_report(kernels[index].hash, answer.result(), self._device)
                if on_done is not None:
                    on_done(reports[index])
        finally:
            for answer in answers:  # where one raised, nobody waits for the others
                answer.cancel()
        return [reports[index] for index in range(len(kernels))]


def compile_kernels(
    kernels: Sequence[Kernel],
    traced: TracedProblem,
    *,
    processes: int,
    cache_dir: Path,
    timeout_s: float,
) -> list[CompileReport]:
    """Compile modules in a pool made for this call; see `CompilePool.compile`."""
    count = min(processes, max(1, len(kernels)))
    with CompilePool(traced, processes=count, cache_dir=cache_dir) as pool:
        return pool.compile(kernels, timeout_s=timeout_s)


def default_cache_dir() -> Path:
    """Where Triton keeps compiled kernels: TRITON_CACHE_DIR, else ~/.triton/cache.

    Source: cache_knobs of triton.knobs.
    """
    named = os.environ.get("TRITON_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("TRITON_HOME", Path.home())) / ".triton" / "cache"
