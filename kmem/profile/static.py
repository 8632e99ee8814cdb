"""The `static` profiler: what the compiler says about every launch of one forward.

Times are estimated (estimate.py). It needs no GPU.
"""

from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.profile.compile.pool import compile_kernels, default_cache_dir
from kmem.profile.compile.report import CompileReport, CompileStatus, last_line
from kmem.profile.compile.target_driver import compute_capability
from kmem.profile.estimate import estimate_launches
from kmem.profile.target import ProfileTarget
from kmem.records import Bound, Contract, Device, Kernel, Problem, Profile, Workload

TIMEOUT_S = 120.0


class StaticProfiler(Profiler):
    """Compiles for the target and reads the binary; figures are marked estimated."""

    name = "static"
    estimated = True

    def unavailable_reason(self) -> str | None:
        """None: it runs wherever Triton does."""
        return None

    def profile(
        self,
        kernel: Kernel,
        problem: Problem,
        workload: Workload,
        contract: Contract,
        device: Device,
        executor: Executor,
    ) -> Profile:
        """Compile and estimate every launch of one forward.

        Raises:
            ProfilerError: if the kernel does not compile.
        """
        compute_capability(device.arch)
        (report,) = compile_kernels(
            [kernel],
            ProfileTarget(problem, workload, contract, device),
            processes=1,
            cache_dir=default_cache_dir(),
            timeout_s=TIMEOUT_S,
        )
        if report.status is not CompileStatus.OK:
            raise ProfilerError(
                f"The kernel does not compile for {device.name}: {last_line(report)}"
            )
        return static_profile(report, trace_bound(problem, workload, contract, device), device)


def static_profile(report: CompileReport, bound: Bound | None, device: Device) -> Profile:
    """A profile from a compile report: each launch with its estimated time."""
    return Profile(
        report.kernel,
        StaticProfiler.name,
        device.name,
        True,
        estimate_launches(report.launches, bound, device),
    )


def trace_bound(
    problem: Problem, workload: Workload, contract: Contract, device: Device
) -> Bound | None:
    """The bound of a problem at a workload, traced anew; None if it cannot be traced."""
    # torch takes seconds to import, which registering this profiler must not cost.
    from kmem.problem.bound import graph_bound
    from kmem.problem.load import execute_problem
    from kmem.problem.trace import trace_problem

    graph = trace_problem(execute_problem(problem, workload), contract.precision)
    return graph_bound(graph, device, contract)
