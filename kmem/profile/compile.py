"""Compile whole modules for a target without a GPU, in parallel, each kernel's crash or hang its
own report.

Used to profile statically, to rank candidates before they are measured, to drop duplicates (same
PTX and grids), and to fill the Triton disk cache on all CPU cores so that the GPU never waits for a
compiler. The work is done in compile_worker.py.
"""

import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kmem.errors import ProblemError, ProfilerError
from kmem.host.environment import scrubbed_environment
from kmem.problem.traced import TracedProblem
from kmem.profile.occupancy import compute_occupancy
from kmem.profile.target_driver import compute_capability
from kmem.records import Device, Kernel, Launch

logger = logging.getLogger(__name__)

#: How long a worker may take to import torch and build the problem's inputs on meta.
START_TIMEOUT_S = 120.0


class CompileStatus(Enum):
    """Whether every kernel of a module compiled.

    NEEDS_VALUES: the forward looks at its data, so that only a GPU can tell.
    """

    OK = "ok"
    FAILED = "failed"
    NEEDS_VALUES = "needs_values"


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling one module found.

    `launches` are in order of execution, library operators included (metrics `static__library`);
    what is read out of the binaries (registers, instructions, occupancy) is among their metrics
    only if the pool was asked for it. `ptx_hash` is over the PTX, grids and scalars of all launches
    and over the library operators, so that equal hashes do the same; None unless status is OK;
    `library_ops` are the aten operators that would launch a kernel.
    """

    kernel: str  # hash
    status: CompileStatus
    log: str
    launches: tuple[Launch, ...]
    ptx_hash: str | None
    seconds: float
    library_ops: tuple[str, ...]


class CompileProcesses:
    """Long-lived compile processes for any problem; a context manager.

    Each is started when first needed and keeps what it imported; the one that was used last is
    asked first.
    """

    def __init__(self, count: int, cache_dir: Path, *, niceness: int = 0) -> None:
        """Nothing runs yet.

        Args: cache_dir: Triton's cache. niceness: what the processes and their compilers add to
            their own, to leave the cores to others.
        """
        self._directory = tempfile.TemporaryDirectory(
            prefix="kmem-compile-", ignore_cleanup_errors=True
        )
        self.directory = Path(self._directory.name)
        self._workers = [_Worker(self.directory, cache_dir, niceness) for _ in range(count)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="kmem-compile")

    def __enter__(self) -> "CompileProcesses":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, also while threads wait for answers (an interrupt); what was not begun
        is cancelled.
        """
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._directory.cleanup()

    def start(self, count: int) -> None:
        """Have `count` of them come up now, before the first question: what they import takes
        seconds.
        """
        for worker in self._workers[::-1][:count]:  # those that are asked first
            worker.start()

    def submit(self, setup: str, source: str, timeout_s: float) -> "Future[dict[str, Any]]":
        """The worker's answer about one module of the problem of `setup`, in order of submission."""
        try:
            return self._threads.submit(self._ask, setup, json.dumps({"source": source}), timeout_s)
        except RuntimeError as ex:  # closed meanwhile: the executor says so in no other way
            raise CancelledError from ex

    def _ask(self, setup: str, question: str, timeout_s: float) -> dict[str, Any]:
        worker = self._idle.get()
        try:
            return worker.ask(setup, question, timeout_s)
        finally:
            self._idle.put(worker)


class CompilePool:
    """Compiles modules of one problem at its full size; a context manager.

    Raises ProfilerError: if the target is not NVIDIA's. ProblemError: if the problem's inputs
    cannot be built on the meta device.
    """

    def __init__(
        self,
        traced: TracedProblem,
        *,
        processes: int | CompileProcesses,
        cache_dir: Path | None = None,
        read_binaries: bool = True,
    ) -> None:
        """Nothing runs yet.

        Args: processes: how many to start and close with the pool, or some that others use too,
            which stay. cache_dir: Triton's cache, of processes that are started; default: Triton's
            own place. read_binaries: whether to disassemble what was compiled, which estimates
            need. It takes longer than compiling a small kernel.
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
        setup = {
            "problem": asdict(traced.problem),
            "workload": asdict(traced.workload),
            "precision": traced.contract.precision.value,
            "device": {
                key: value
                for key, value in asdict(traced.device).items()
                if key != "peak_flops_per_s"
            },
            "directory": str(self._processes.directory),
            "read_binaries": read_binaries,
        }
        self._setup = json.dumps(setup)

    def __enter__(self) -> "CompilePool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the pool's own processes."""
        if self._own is not None:
            self._own.close()

    def compile(
        self,
        kernels: Sequence[Kernel],
        *,
        timeout_s: float,
        on_done: Callable[[CompileReport], None] | None = None,
    ) -> list[CompileReport]:
        """Compile modules; reports in the order of `kernels`.

        Args: timeout_s: for each kernel; one that takes longer is reported as failed and its
            process replaced. on_done: called in this thread with each report as it comes.
        """
        answers = {
            self._processes.submit(self._setup, kernel.source, timeout_s): index
            for index, kernel in enumerate(kernels)
        }
        done: queue.SimpleQueue[Future[dict[str, Any]]] = queue.SimpleQueue()
        # not as_completed: it never hears of what is cancelled by a shutdown
        for answer in answers:
            answer.add_done_callback(done.put)
        reports: dict[int, CompileReport] = {}
        try:
            for _ in answers:
                answer = done.get()
                index = answers[answer]
                reports[index] = _read_report(kernels[index].hash, answer.result(), self._device)
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
    on_done: Callable[[CompileReport], None] | None = None,
) -> list[CompileReport]:
    """Compile modules in a pool made for this call; see `CompilePool` (keep one to compile several
    rounds).
    """
    with CompilePool(
        traced, processes=min(processes, max(1, len(kernels))), cache_dir=cache_dir
    ) as pool:
        return pool.compile(kernels, timeout_s=timeout_s, on_done=on_done)


def default_cache_dir() -> Path:
    """Where Triton keeps compiled kernels: TRITON_CACHE_DIR, else ~/.triton/cache.

    Source: triton/knobs.py, cache_knobs.
    """
    named = os.environ.get("TRITON_CACHE_DIR")
    return (
        Path(named)
        if named
        else Path(os.environ.get("TRITON_HOME", Path.home())) / ".triton" / "cache"
    )


class _Worker:
    """One compile process and its channel; started by the first question if not before, again after
    a crash or a hang, never after `end`.

    One thread asks; another may `end` it meanwhile.
    """

    def __init__(self, directory: Path, cache_dir: Path, niceness: int) -> None:
        self._directory = directory
        self._cache_dir = cache_dir
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._setup: str | None = None  # of the problem it is set up for
        self._errors: Path | None = None
        self._buffer = b""
        self._ended = False
        self._lock = threading.Lock()  # between making a process and ending for good

    def ask(self, setup: str, question: str, timeout_s: float) -> dict[str, Any]:
        """Send one line and wait for its answer; a crash or a hang is an answer with status failed."""
        if self._process is None:
            self.start()
        if setup != self._setup:
            self._set_up(setup)
        started = time.monotonic()
        answer = self._exchange(question, timeout_s)
        if answer is not None:
            return answer
        seconds = time.monotonic() - started
        reason = (
            f"compiling took longer than {timeout_s:g} s"
            if seconds >= timeout_s
            else "the compile process died"
        )
        log = f"{reason}\n{self._error_tail()}".strip()
        self.stop()
        return {"status": "failed", "log": log, "seconds": seconds}

    def start(self) -> None:
        """Start the process, which imports what it needs before it reads the first question.

        Raises ProfilerError: if it was ended.
        """
        environment = scrubbed_environment(
            {
                "TRITON_CACHE_DIR": str(self._cache_dir),
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONUNBUFFERED": "1",
            }
        )
        # the interpreter would run the kernels instead of compiling them
        environment.pop("TRITON_INTERPRET", None)
        environment["OMP_NUM_THREADS"] = "1"  # one process per core
        handle, name = tempfile.mkstemp(dir=self._directory, suffix=".stderr")
        self._errors, self._buffer = Path(name), b""
        with os.fdopen(handle, "wb") as errors, self._lock:
            if self._ended:
                raise ProfilerError("The compile processes were ended")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kmem.profile.compile_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        if self._niceness:
            os.setpriority(
                os.PRIO_PROCESS,
                self._process.pid,
                os.getpriority(os.PRIO_PROCESS, 0) + self._niceness,
            )

    def _set_up(self, setup: str) -> None:
        answer = self._exchange(setup, START_TIMEOUT_S)
        if answer is None or answer["status"] != "ready":
            log = answer["log"] if answer else self._error_tail()
            self.stop()
            raise ProblemError(
                f"The problem cannot be set up on the meta device: "
                f"{(log.strip().splitlines() or ['no message'])[-1]}; see kmem doctor"
            )
        self._setup = setup

    def _exchange(self, line: str, timeout_s: float) -> dict[str, Any] | None:
        process = self._process
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        deadline = time.monotonic() + timeout_s
        output = process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(output, 1 << 20) if ready else b""
            if not block:
                return None
            self._buffer += block
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(answer)

    def _error_tail(self) -> str:
        with self._errors.open("rb") as file:
            file.seek(max(0, self._errors.stat().st_size - 4000))
            return file.read().decode(errors="replace")

    def end(self) -> None:
        """Kill the process for good: who waits for its answer gets none.

        Its pipes stay open until `stop`, for they may be waited on.
        """
        with self._lock:
            self._ended = True
            if self._process is not None:
                _kill_group(self._process)

    def stop(self) -> None:
        """Kill the process and its children (ptxas); the next question starts another."""
        with self._lock:
            process = self._process
            self._process = None
            self._setup = None
        if process is None:
            return
        _kill_group(process)
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("compile process %d was already gone", process.pid)


def _read_report(kernel: str, answer: dict[str, Any], device: Device) -> CompileReport:
    launches = tuple(_read_launch(entry, device) for entry in answer.get("launches", ()))
    return CompileReport(
        kernel=kernel,
        status=CompileStatus(answer["status"]),
        log=answer["log"],
        launches=launches,
        ptx_hash=answer.get("ptx_hash"),
        seconds=answer["seconds"],
        library_ops=tuple(
            launch.name for launch in launches if "static__library" in launch.metrics
        ),
    )


def _read_launch(entry: dict[str, Any], device: Device) -> Launch:
    grid = tuple(entry["grid"]) if entry["grid"] else None
    block = tuple(entry["block"]) if entry["block"] else None
    launch = Launch(entry["name"], None, grid, block, entry["metrics"])
    # a library's kernel, or one whose binary was not read
    if "static__registers_per_thread" not in launch.metrics:
        return launch
    occupancy = compute_occupancy(
        device,
        warps_per_block=block[0] // device.warp_size,
        registers_per_thread=int(launch.metrics["static__registers_per_thread"]),
        shared_bytes_per_block=int(launch.metrics["static__shared_bytes_per_block"]),
    )
    figures = {
        "static__occupancy_pct": 100.0 * occupancy.ratio,
        "static__blocks_per_sm": float(occupancy.blocks_per_sm),
    }
    if occupancy.blocks_per_sm:
        figures["static__waves"] = (
            grid[0] * grid[1] * grid[2] / (occupancy.blocks_per_sm * device.sm_count)
        )
    return replace(launch, metrics={**launch.metrics, **figures})
