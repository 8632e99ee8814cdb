"""Where a run's kernels are compiled, judged and profiled.

`Evaluator` is the contract, `LiveEvaluator` keeps it on this machine. An evaluator decides nothing
about the run and records nothing. All that the loop learns about kernels comes through this seam,
so an evaluator that answers from records (kmem/run/replay.py, kmem/learning/simulate.py) serves the
very same loop without a GPU.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from kmem.codegen.module.constants import source_at
from kmem.explore.recipes.evidence import MeasuredEstimates
from kmem.host.lease import DIRECTORY_VARIABLE
from kmem.interfaces import Executor, Job, JobResult
from kmem.measure.competition import Awaited
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.plugins import Registry
from kmem.profile.collect import collect_profile
from kmem.profile.compile.pool import CompilePool
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.profile.estimate import estimate_report_ms, library_part_ms
from kmem.profile.job import reference_kernel
from kmem.records import Attempt, Baseline, Kernel, Measurement, Profile, Run, Status, Timing
from kmem.run.evaluation.compiling import KernelCompiler
from kmem.run.evaluation.processes import EvaluatorProcesses
from kmem.run.setup.session import Session
from kmem.run.state.progress import Announce

_COMPILE_TIMEOUT_S = 60.0
#: Without a GPU the interpreter runs programs one by one, so of a round only the candidates with
#: the best estimates are proved.
_PROVED_PER_ROUND = 3
#: Compiling or judging a batch is begun for at least so long, whatever is left of the minutes.
_LEAST_S = 2.0
#: Of a run's minutes so much is kept for the final verification: this part, at most so many
#: seconds, until one has shown how long it takes; then its time and some. A kernel that is screened
#: alone tells before: a network's verdict takes twice as long (ShuffleNet 15 and 32 s, H200,
#: 2026-11-28).
_RESERVED_PART, _RESERVED_S = 0.25, 15.0
_RESERVE_RATIO, _RESERVE_OFFSET_S = 1.5, 2.0
_SCREENINGS_PER_VERDICT = 2.0
#: What is under way on the GPU when the minutes end may take so much longer; then it is cut off.
#: The rest of the ten seconds that a run may take beyond its minutes is for its end and its report.
_GRACE_S = 6.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """What compiling made of kernels: those that failed, and those to be judged, in order.

    A kernel in neither is a duplicate of an earlier one of this run, or not worth judging.
    """

    failed: tuple[tuple[Kernel, str], ...]  # each with the compiler's log
    ready: tuple[Kernel, ...]


class Evaluator(ABC):
    """Compiles, judges and profiles the kernels of one run.

    One thread uses an evaluator, but meanwhile another asks for `baselines`, and a third one for
    kernels to `expect`; `close` ends everything that the evaluator started. One that never measures
    says so by `measures`: then nothing is left to be written beside.
    """

    measures: bool = True

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """What is left of the run's minutes, in seconds; negative once they are used up."""

    @property
    def reserve_s(self) -> float:
        """How many seconds of the run's minutes are to be kept for the final verification."""
        return 0.0

    def grant_s(self, seconds: float) -> None:
        """Add to the run's minutes what it waited for baselines in the end."""
        return

    def load_baseline(self, name: str) -> None:
        """Have a remembered baseline at hand for paired timing; asked in a thread beside others."""
        return

    @abstractmethod
    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        """Find out how fast the unmodified module is; asked once, in a thread beside the others.

        Args:
            names: of the baselines to time, in this order; others may be left out.
            limit_s: seconds from now; a baseline that is not timed by then is `timed_out`.
            on_found: given each baseline the moment it is known, also one that failed.
        """

    def expect(self, kernels: Sequence[Kernel]) -> None:
        """Begin to compile kernels that `admit` will be asked about, in about this order."""
        return

    @abstractmethod
    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Compile kernels for the device.

        A resumed run asks again about the same kernels in the same order; the answer must be the
        same.
        """

    @abstractmethod
    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        """Judge kernels that were admitted.

        Args:
            on_result: given the index of a kernel and its verdict, the moment that exists.
            by_recipes: hashes of those that recipes wrote in this process, and nobody else's.
        """

    @abstractmethod
    def verify(self, kernel: Kernel, baselines: Sequence[Baseline] | Awaited) -> Measurement:
        """Everything the judge has, in a fresh process, against the best baseline.

        Args:
            baselines: those that are awaited are asked for when the kernel is to be timed.
        """

    @abstractmethod
    def profile(self, attempt: Attempt) -> Profile:
        """Profile one forward of a kernel that passed.

        Raises ProfilerError if that cannot be done here.
        """

    @abstractmethod
    def close(self) -> None:
        """End what was started."""


class _InTurn(Executor):
    """An executor whose jobs take turns with judges: it tells them where the GPU's lease lies.

    None of them outlasts the search, whose end leaves time for the final verification.
    """

    def __init__(self, inner: Executor, locks: Path, at_most_s: Callable[[], float]) -> None:
        self.name = inner.name
        self._inner = inner
        self._locks = locks
        self._at_most_s = at_most_s

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        return self._inner.run(
            replace(job, environment={**job.environment, DIRECTORY_VARIABLE: str(self._locks)}),
            timeout_s=min(timeout_s, self._at_most_s()),
        )


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
        """Wait for room on the GPU; the run's minutes began with the processes.

        Args:
            processes: are used and not ended; the caller who started them ends them.
        """
        self._minutes_s = run.budget.minutes * 60
        self._deadline = processes.started_at + self._minutes_s
        self._cores = processes.cores
        self._was_asked = False  # to screen kernels
        self._longest_screening_s = 0.0  # of a kernel alone
        self._longest_verification_s: float | None = None
        self._granted_s = 0.0
        # Seconds that this run waited for its own baselines to leave the GPU and, while these are
        # timed, all that was waited until then. One assignment sets both: the thread that times the
        # baselines writes this pair while others read it.
        self._for_own: tuple[float, float | None] = 0.0, None
        self._session = session
        self._registry = registry
        self._announce = announce
        self._estimates: dict[str, float] = {}
        self._binaries: set[str] = set()
        measured = session.measured if run.memory_mode != "off" else ()
        self._measured = MeasuredEstimates(
            session.traced, session.recipes, measured, session.rewrites
        )
        traced, out_dir = session.traced, Path(run.out_dir)
        self._pool = CompilePool(
            traced, processes=processes.compilers, read_binaries=not session.present
        )
        self._small_pool: CompilePool | None = None
        if session.present and "small" in traced.workloads:
            small = replace(traced, workloads={"full": traced.workloads["small"]})
            self._small_pool = CompilePool(
                small, processes=processes.compilers, read_binaries=False
            )
        self._judge = Judge(
            traced,
            JudgeSettings(
                seed=run.seed,
                gpu=session.present,
                work_dir=out_dir / "scratch",
                cache_dir=processes.cache_dir,
                bundle_dir=out_dir / "evidence",
                test=run.test,
            ),
            estimate_ms=lambda kernel: self._estimates[kernel.hash],
            compile_at=KernelCompiler(
                traced, lambda text: announce("measure", text), processes=processes.compilers
            ).compile_at,
            workers=processes.workers,
            on_event=lambda text: announce("measure", text),
            # the interpreter's checks on the CPU take what they take
            seconds_left=self._seconds_to_cut_off if session.present else None,
        )
        self._judge.open()

    def _seconds_to_cut_off(self) -> float:
        return self.seconds_left + _GRACE_S

    @property
    def seconds_left(self) -> float:
        # Waiting for another kmem to leave the GPU costs the run none of its minutes; waiting for
        # its own baselines does, but for those that it waits for in the end. Nor does waiting for
        # the cores that other runs of a bench hold.
        waited_s = self._judge.waited_s
        own_s, since_s = self._for_own
        own_s += waited_s - since_s if since_s is not None else 0.0
        waited_s += self._cores.waited_s
        return self._deadline + self._granted_s + waited_s - own_s - time.monotonic()

    @property
    def reserve_s(self) -> float:
        if self._longest_verification_s is None:
            least_s = min(_RESERVED_S, _RESERVED_PART * self._minutes_s)
            wanted_s = max(least_s, _SCREENINGS_PER_VERDICT * self._longest_screening_s)
        else:
            wanted_s = _RESERVE_RATIO * self._longest_verification_s + _RESERVE_OFFSET_S
        return min(wanted_s, self._minutes_s / 2)

    def grant_s(self, seconds: float) -> None:
        self._granted_s += seconds

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        """Timed by the judge, or without a GPU estimated as any candidate is."""
        session = self._session
        if session.present:
            self._for_own = self._for_own[0], self._judge.waited_s
            try:
                self._judge.baselines(names, limit_s, on_found)
            finally:
                own_s, since_s = self._for_own
                self._for_own = own_s + self._judge.waited_s - (since_s or 0.0), None
            return
        traced = session.traced
        self._announce("measure", "estimating the module itself")
        (report,) = self._pool.compile(
            [reference_kernel(traced.problem)], timeout_s=_COMPILE_TIMEOUT_S
        )
        time_ms = estimate_report_ms(report, traced)
        if math.isfinite(time_ms):
            on_found(Baseline("eager", Timing(time_ms, time_ms, time_ms, 0), estimated=True))

    def load_baseline(self, name: str) -> None:
        self._judge.load_baseline(name)

    def expect(self, kernels: Sequence[Kernel]) -> None:
        """Compile on the cores that `admit` leaves; only with a GPU, which waits for compilers."""
        if self._session.present:
            self._pool.begin(kernels, timeout_s=_COMPILE_TIMEOUT_S, within_s=self._search_s())

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Compile on all cores.

        A module with the same binaries and grids as an earlier one is a duplicate.
        """
        self._announce("explore", f"compiling {len(kernels)} candidates")
        failed, ready = [], []
        reports = self._pool.compile(
            kernels, timeout_s=_COMPILE_TIMEOUT_S, within_s=self._search_s()
        )
        for kernel, report in zip(kernels, reports, strict=True):
            if report.status is CompileStatus.FAILED:
                failed.append((kernel, report.log))
            elif report.status is CompileStatus.LATE:
                continue
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
        form = self._session.rewrites.apply(self._session.traced, kernel.choices)
        traced = form.traced if form is not None else self._session.traced
        library_ms = library_part_ms(report.launches, traced.device)
        return self._measured.expect_ms(
            kernel.choices, estimate_report_ms(report, traced), library_ms
        )

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        # The first kernel of all comes alone and is verified next: that shows it every family.
        is_first, self._was_asked = not self._was_asked and len(kernels) == 1, True
        started = self._judge.own_time
        with self._core():
            left_s = self.seconds_left - self.reserve_s
            self._judge.screen(
                kernels,
                on_result,
                deadline_s=max(_LEAST_S, left_s),
                verified_next=is_first and self._session.present,
                by_recipes=by_recipes,
            )
        if len(kernels) == 1:
            took_s = self._judge.own_time - started
            self._longest_screening_s = max(self._longest_screening_s, took_s)

    def _core(self) -> AbstractContextManager[None]:
        """A core of the bench's for the interpreter; the work on a GPU goes by turns there."""
        return nullcontext() if self._session.present else self._cores.hold()

    def _search_s(self) -> float:
        """How long one step of the search may take, in seconds; no limit without a GPU."""
        if not self._session.present:
            return math.inf
        return max(_LEAST_S, self.seconds_left - self.reserve_s)

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline] | Awaited) -> Measurement:
        if self._small_pool is not None:  # the last check waits for it with the GPU in hand
            at_small = Kernel(source_at(kernel, "small"))
            with self._pool.postponed():
                self._small_pool.begin([at_small], timeout_s=_COMPILE_TIMEOUT_S)
        started = self._judge.own_time
        with self._core():
            verdict = self._judge.verify(kernel, baselines)
        took_s = self._judge.own_time - started
        if verdict.status is Status.PASSED:  # a refusal comes early: others take longer
            self._longest_verification_s = max(self._longest_verification_s or 0.0, took_s)
        return verdict

    def profile(self, attempt: Attempt) -> Profile:
        present = self._session.present
        executor = _InTurn(self._registry.executors["local"], self._judge.locks, self._search_s)
        return collect_profile(
            attempt.candidate.kernel,
            self._session.traced,
            self._registry.profilers,
            executor,
            present=present,
        )

    def close(self) -> None:
        self._judge.close()
