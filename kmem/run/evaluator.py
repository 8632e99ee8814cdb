"""Where a run's kernels are compiled, judged and profiled.

`Evaluator` is the contract, `LiveEvaluator` keeps it on this machine. An evaluator decides nothing
about the run and records nothing. All that the loop learns about kernels comes through this seam,
so an evaluator that answers from records (kmem/run/replay.py, kmem/learning/simulate.py) serves the
very same loop without a GPU.
"""

import math
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kmem.explore.recipes.evidence import MeasuredEstimates
from kmem.host.environment import own_cores
from kmem.host.lease import DIRECTORY_VARIABLE
from kmem.interfaces import Executor, Job, JobResult
from kmem.measure.judge import Judge
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.settings import JudgeSettings
from kmem.plugins import Registry
from kmem.profile.collect import collect_profile
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.profile.estimate import estimate_report_ms, library_part_ms
from kmem.profile.job import reference_kernel
from kmem.records import Attempt, Baseline, Kernel, Measurement, Profile, Run, Timing
from kmem.run.progress import Announce
from kmem.run.session import Session

_COMPILE_TIMEOUT_S = 60.0
#: Cores that compiling leaves to the processes that time the baselines meanwhile.
_CORES_FOR_TIMING = 2
#: Compile processes that come up before there is anything to compile: enough for a remembered
#: winner.
_COMPILERS_AHEAD = 2
#: Without a GPU the interpreter runs programs one by one, so of a round only the candidates with
#: the best estimates are proved.
_PROVED_PER_ROUND = 3
#: A batch is judged for at least so long, whatever is left of the run's minutes.
_LEAST_SCREENING_S = 20.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """What compiling made of kernels: those that failed, and those to be judged, in order.

    A kernel in neither is a duplicate of an earlier one of this run, or not worth judging.
    """

    failed: tuple[tuple[Kernel, str], ...]  # each with the compiler's log
    ready: tuple[Kernel, ...]


class Evaluator(ABC):
    """Compiles, judges and profiles the kernels of one run.

    One thread uses an evaluator, but another may ask for `baselines`; `close` ends everything that
    the evaluator started.
    """

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """What is left of the run's minutes, in seconds; negative once they are used up."""

    @abstractmethod
    def baselines(self) -> tuple[Baseline, ...]:
        """How fast the unmodified module is.

        Runs beside `admit`, in another thread, never beside the others.
        """

    @abstractmethod
    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Compile kernels for the device.

        A resumed run asks again about the same kernels in the same order; the answer must be the
        same.
        """

    @abstractmethod
    def screen(
        self, kernels: Sequence[Kernel], on_result: Callable[[int, Measurement], None]
    ) -> None:
        """Judge kernels that were admitted.

        Args:
            on_result: given the index of a kernel and its verdict, the moment that exists.
        """

    @abstractmethod
    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        """Everything the judge has, in a fresh process, against the best baseline."""

    @abstractmethod
    def profile(self, attempt: Attempt) -> Profile:
        """Profile one forward of a kernel that passed.

        Raises ProfilerError if that cannot be done here.
        """

    @abstractmethod
    def close(self) -> None:
        """End what was started."""


class _InTurn(Executor):
    """An executor whose jobs take turns with judges: it tells them where the GPU's lease lies."""

    def __init__(self, inner: Executor, locks: Path) -> None:
        self.name = inner.name
        self._inner = inner
        self._locks = locks

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        return self._inner.run(
            replace(job, environment={**job.environment, DIRECTORY_VARIABLE: str(self._locks)}),
            timeout_s=timeout_s,
        )


class EvaluatorProcesses:
    """The processes of one run's evaluator: compilers and the judge's workers. A context manager.

    With a GPU the processes start at once, before there is a session: their imports take as long as
    tracing the problem does, and otherwise the GPU would wait for both. Without a GPU processes
    start when they are first needed, because the interpreter takes minutes anyway.
    """

    def __init__(self, out_dir: Path, cache_dir: Path, *, present: bool) -> None:
        """Start the processes if there is a GPU.

        Args:
            out_dir: the run's directory.
            cache_dir: compiled kernels and locks, shared by all runs.
            present: whether there is a GPU to judge on.

        Raises:
            ExecutorError: if a process cannot be started.
            OSError: if out_dir cannot be written.
        """
        self.cache_dir = cache_dir
        cores, scratch = len(os.sched_getaffinity(0)), out_dir / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        self.workers = WorkerPool(
            Path(tempfile.mkdtemp(prefix="workers-", dir=scratch)),
            "cuda:0" if present else "cpu",
            cache_dir,
            keep_spare=present,
        )
        processes = own_cores() or (max(1, cores - _CORES_FOR_TIMING) if present else cores)
        self.compilers = CompileProcesses(processes, cache_dir / "triton")
        try:
            if present:
                self.workers.prepare()
                self.compilers.start(_COMPILERS_AHEAD)
        except BaseException:  # a started process must not outlive an interrupt or a full disk
            self.close()
            raise

    def __enter__(self) -> "EvaluatorProcesses":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; a second time does nothing."""
        self.workers.close()
        self.compilers.close()


class LiveEvaluator(Evaluator):
    """Compiles on all cores, judges in separate processes, profiles with the best profiler here."""

    def __init__(
        self,
        run: Run,
        session: Session,
        registry: Registry,
        processes: EvaluatorProcesses,
        announce: Announce,
    ) -> None:
        """Start the run's minutes and wait for room on the GPU.

        Args:
            processes: are used and not ended; the caller who started them ends them.
        """
        self._deadline = time.monotonic() + run.budget.minutes * 60
        # Seconds that were no part of the search and, while such a stretch lasts, the judge's time
        # at its start. One assignment sets both: the thread that times the baselines writes this
        # pair while others read it.
        self._apart: tuple[float, float | None] = 0.0, None
        self._session = session
        self._registry = registry
        self._announce = announce
        self._estimates: dict[str, float] = {}
        self._binaries: set[str] = set()
        measured = session.measured if run.memory_mode != "off" else ()
        self._measured = MeasuredEstimates(session.traced, session.recipes, measured)
        traced, out_dir = session.traced, Path(run.out_dir)
        self._pool = CompilePool(
            traced, processes=processes.compilers, read_binaries=not session.present
        )
        self._judge = Judge(
            traced,
            JudgeSettings(
                seed=run.seed,
                gpu=session.present,
                work_dir=out_dir / "scratch",
                cache_dir=processes.cache_dir,
                bundle_dir=out_dir / "evidence",
            ),
            estimate_ms=lambda kernel: self._estimates[kernel.hash],
            workers=processes.workers,
            on_event=lambda text: announce("measure", text),
        )
        self._judge.open()

    @property
    def seconds_left(self) -> float:
        # Neither waiting for another kmem to leave the GPU nor timing the module itself costs the
        # run any of its minutes.
        now = self._judge.own_time
        apart_s, since = self._apart
        return self._deadline + apart_s + (now - since if since is not None else 0.0) - now

    def baselines(self) -> tuple[Baseline, ...]:
        """Timed by the judge, or without a GPU estimated as any candidate is."""
        session = self._session
        if session.present:
            apart_s, since = self._apart[0], self._judge.own_time
            self._apart = apart_s, since
            try:
                return self._judge.baselines()
            finally:
                self._apart = apart_s + self._judge.own_time - since, None
        traced = session.traced
        self._announce("measure", "estimating the module itself")
        (report,) = self._pool.compile(
            [reference_kernel(traced.problem)], timeout_s=_COMPILE_TIMEOUT_S
        )
        time_ms = estimate_report_ms(report, traced)
        if not math.isfinite(time_ms):
            return ()
        return (Baseline("eager", Timing(time_ms, time_ms, time_ms, 0), estimated=True),)

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Compile on all cores.

        A module with the same binaries and grids as an earlier one is a duplicate.
        """
        self._announce("explore", f"compiling {len(kernels)} candidates")
        failed, ready = [], []
        reports = self._pool.compile(kernels, timeout_s=_COMPILE_TIMEOUT_S)
        for kernel, report in zip(kernels, reports, strict=True):
            if report.status is CompileStatus.FAILED:
                failed.append((kernel, report.log))
            elif report.ptx_hash is None or report.ptx_hash not in self._binaries:
                self._binaries.add(report.ptx_hash or kernel.hash)
                ready.append(kernel)
                if not self._session.present:
                    self._estimates[kernel.hash] = self._expect_ms(kernel, report)
        if not self._session.present:
            ready.sort(key=lambda kernel: self._estimates[kernel.hash])
            del ready[_PROVED_PER_ROUND:]
        return Admitted(tuple(failed), tuple(ready))

    def _expect_ms(self, kernel: Kernel, report: CompileReport) -> float:
        """The estimate of the compiled module, held to what its recipes are known to take."""
        traced = self._session.traced
        library_ms = library_part_ms(report.launches, traced.device)
        return self._measured.expect_ms(
            kernel.choices, estimate_report_ms(report, traced), library_ms
        )

    def screen(
        self, kernels: Sequence[Kernel], on_result: Callable[[int, Measurement], None]
    ) -> None:
        self._judge.screen(
            kernels, on_result, deadline_s=max(_LEAST_SCREENING_S, self.seconds_left)
        )

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        return self._judge.verify(kernel, baselines)

    def profile(self, attempt: Attempt) -> Profile:
        executor = _InTurn(self._registry.executors["local"], self._judge.locks)
        return collect_profile(
            attempt.candidate.kernel,
            self._session.traced,
            self._registry.profilers,
            executor,
            present=self._session.present,
        )

    def close(self) -> None:
        self._judge.close()
