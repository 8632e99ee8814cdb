"""The `static` profiler: what the compiler says about every launch of one forward.

Times are estimated (estimate.py). It needs no GPU.
"""

from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.pool import compile_kernels, default_cache_dir
from kmem.profile.compile.report import CompileReport, CompileStatus, last_line
from kmem.profile.compile.target_driver import compute_capability
from kmem.profile.derive import add_derived
from kmem.profile.estimate import estimate_launches
from kmem.records import Bound, Device, Kernel, Profile

TIMEOUT_S = 120.0


class StaticProfiler(Profiler):
    """Compiles for the target and reads the binary; figures are marked estimated."""

    name = "static"
    estimated = True

    def unavailable_reason(self) -> str | None:
        """None: it runs wherever Triton does."""
        return None

    def profile(self, kernel: Kernel, traced: TracedProblem, executor: Executor) -> Profile:
        """Compile and estimate every launch of one forward.

        Raises:
            ProfilerError: if the kernel does not compile.
        """
        compute_capability(traced.device.arch)
        (report,) = compile_kernels(
            [kernel],
            traced,
            processes=1,
            cache_dir=default_cache_dir(),
            timeout_s=TIMEOUT_S,
        )
        if report.status is not CompileStatus.OK:
            raise ProfilerError(
                f"The kernel does not compile for {traced.device.name}: {last_line(report)}"
            )
        return static_profile(report, traced.bound, traced.device)


def static_profile(report: CompileReport, bound: Bound | None, device: Device) -> Profile:
    """A profile from a compile report: each launch with its estimated time and what follows."""
    return Profile(
        report.kernel,
        StaticProfiler.name,
        device.name,
        True,
        add_derived(estimate_launches(report.launches, bound, device), bound, device),
    )
