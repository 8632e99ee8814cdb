"""What a kernel comes to when it is compiled for the target: for estimates, and for the judge.

Where there is no GPU the judge holds what is compiled to what the interpreter proved.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kmem.codegen.module.constants import source_at
from kmem.errors import ProfilerError
from kmem.measure.examine.compiled import CompiledForward
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.profile.estimate import estimate_report_ms
from kmem.profile.job import reference_kernel
from kmem.records import Baseline, Kernel, Measurement, Timing, Workload

_COMPILE_TIMEOUT_S = 120.0
#: How much of a compiler's message a verdict quotes.
_LOG_CHARACTERS = 1500
#: Key of a verdict's environment: how many Triton kernels one forward launches, without a GPU.
TRITON_LAUNCHES = "triton_launches"


class KernelCompiler:
    """Compiles kernels and the module beside them, each workload once; a context manager."""

    def __init__(
        self,
        traced: TracedProblem,
        announce: Callable[[str], None],
        *,
        cache_dir: Path | None = None,
        processes: CompileProcesses | None = None,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            announce: told why there is no estimate.
            cache_dir: of compiled kernels, for a process of its own.
            processes: to use instead; the caller ends them.
        """
        self._traced, self._announce = traced, announce
        self._cache_dir, self._given = cache_dir, processes
        self._processes = processes
        self._reports: dict[tuple[str, Workload], CompileReport] = {}
        self._triton_launches: int | None = None
        self.baselines: tuple[Baseline, ...] = ()

    def __enter__(self) -> "KernelCompiler":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._processes is not None and self._given is None:
            self._processes.close()

    def compile_at(self, kernel: Kernel, workload: Workload) -> CompiledForward:
        """What a kernel comes to at a workload. Raises ProfilerError, ProblemError."""
        report = self._report(kernel, workload)
        if report.status is not CompileStatus.OK:
            return CompiledForward(
                report.log.strip()[-_LOG_CHARACTERS:],
                needs_values=report.status is CompileStatus.NEEDS_VALUES,
            )
        own = [launch for launch in report.launches if "static__library" not in launch.metrics]
        return CompiledForward(
            kernels=report.first_kernels,
            again=tuple(launch.name for launch in own),
            products=report.products,
            described=report.described,
            described_again=report.described_again,
            operators=frozenset(report.vendor_ops),
            launches=len(report.launches),
        )

    def _report(self, kernel: Kernel, workload: Workload) -> CompileReport:
        key = kernel.hash, workload
        if key not in self._reports:
            if self._processes is None:
                self._processes = CompileProcesses(1, self._cache_dir)
            pool = CompilePool(
                replace(self._traced, workloads={"full": workload}),
                processes=self._processes,
                read_binaries=workload.name == "full",
            )
            at_size = Kernel(source_at(kernel, workload.name))
            (self._reports[key],) = pool.compile([at_size], timeout_s=_COMPILE_TIMEOUT_S)
        return self._reports[key]

    def estimate_ms(self, kernel: Kernel) -> float:
        """The static estimate at full size in ms; infinite where the compiler gives none."""
        try:
            report = self._report(kernel, self._traced.workload)
            eager = self._report(reference_kernel(self._traced.problem), self._traced.workload)
        except ProfilerError as ex:
            self._announce(f"No estimate: {ex}")
            return math.inf
        if report.status is CompileStatus.OK:
            self._triton_launches = len(report.launches) - len(report.vendor_ops)
        eager_ms = estimate_report_ms(eager, self._traced)
        if math.isfinite(eager_ms):
            timing = Timing(eager_ms, eager_ms, eager_ms, 0)
            self.baselines = (Baseline("eager", timing, estimated=True),)
        return estimate_report_ms(report, self._traced)

    def complete(self, measurement: Measurement) -> Measurement:
        """The verdict with how many Triton kernels the file launches, where that is known."""
        if self._triton_launches is None:
            return measurement
        known = {TRITON_LAUNCHES: str(self._triton_launches)}
        return replace(measurement, environment={**measurement.environment, **known})
