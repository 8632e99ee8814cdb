"""The `ncu` profiler: hardware counters of one forward's launches, by Nsight Compute.

Which of them are counted picking.py says.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import chain

from kmem.counters import NCU_COUNTERS
from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.traced import TracedProblem
from kmem.profile.job import check_result, harness_job
from kmem.profile.ncu_csv import parse_csv
from kmem.profile.picking import put_together, read_spans
from kmem.records import Kernel, Profile

#: What ncu prints where the driver keeps counters for root. Source:
#: developer.nvidia.com/ERR_NVGPUCTRPERM.
PERMISSION_ERROR = "ERR_NVGPUCTRPERM"
PERMISSION_REMEDY = (
    "ncu may not read GPU counters here (ERR_NVGPUCTRPERM); as root set "
    "NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or give the container "
    "SYS_ADMIN, or use --profiler cupti"
)
TIMEOUT_S = 300.0
#: Launches profiled of one forward; ncu runs each once per group of counters.
LAUNCH_LIMIT = 256
_PROBE = """
import torch
x = torch.ones(32, device="cuda")
torch.cuda.cudart().cudaProfilerStart()
x += 1
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def ncu_command(
    ncu: str,
    program: Sequence[str],
    *,
    counters: Sequence[str] = NCU_COUNTERS,
    launch_limit: int = LAUNCH_LIMIT,
    log: str | None = "out/ncu.csv",
) -> tuple[str, ...]:
    """The argv that profiles `program` and writes Nsight Compute's raw page as CSV.

    Only what runs between the program's cudaProfilerStart and Stop is profiled. Caches are flushed
    before every pass over a launch (ncu's default) and clocks are left alone, as in the judge's own
    timing. Source: Nsight Compute CLI documentation, Command Line Options.
    """
    options = {
        "--page": "raw",
        "--print-units": "base",
        "--metrics": ",".join(counters),
        "--profile-from-start": "off",
        "--clock-control": "none",
        "--cache-control": "all",
        "--replay-mode": "kernel",
        "--target-processes": "application-only",
        "--launch-count": str(launch_limit),
    }
    if log is not None:
        options["--log-file"] = log
    return (ncu, "--csv", *chain.from_iterable(options.items()), *program)


def _absent_reason() -> str | None:
    if shutil.which("ncu") is None:
        return (
            "ncu is not on PATH; install Nsight Compute (it comes with the CUDA toolkit) or use "
            "--profiler cupti"
        )
    import torch  # seconds that commands without a GPU should not pay

    if torch.cuda.is_available():
        return None
    return "no GPU is visible; use --profiler static with a --target"


@cache
def counters_unreadable_reason() -> str | None:
    """None if ncu can read counters on this machine, else one line with the remedy.

    Profiles one tiny kernel, once per process.
    """
    if (reason := _absent_reason()) is not None:
        return reason
    argv = ncu_command(
        "ncu",
        (sys.executable, "-P", "-c", _PROBE),
        counters=("sm__warps_active.avg.pct_of_peak_sustained_active",),
        launch_limit=1,
        log=None,
    )
    try:
        result = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            cwd=tempfile.gettempdir(),
        )
    except subprocess.TimeoutExpired:
        return (
            "ncu did not finish one tiny kernel in 120 s; update Nsight Compute or use "
            "--profiler cupti"
        )
    output = result.stdout + result.stderr
    if PERMISSION_ERROR in output:
        return PERMISSION_REMEDY
    if '"Kernel Name"' not in output:
        lines = [line for line in output.splitlines() if line.strip()]
        return (
            f"ncu does not work here: {lines[-1] if lines else 'no output'}; update Nsight "
            "Compute or use --profiler cupti"
        )
    return None


class NcuProfiler(Profiler):
    """Counts with Nsight Compute; needs an NVIDIA GPU and permission to read its counters."""

    name = "ncu"
    estimated = False

    def __init__(self) -> None:
        self._may_not: str | None = None  # read the counters: found out by profiling

    def unavailable_reason(self) -> str | None:
        """Why ncu cannot run here.

        Whether it may read the counters shows when it first profiles: trying costs as much (kmem
        doctor does).
        """
        return self._may_not or _absent_reason()

    def profile(self, kernel: Kernel, traced: TracedProblem, executor: Executor) -> Profile:
        """Profile one forward: its launches that hold most of the time, at most LAUNCH_LIMIT.

        Raises:
            ProfilerError: if ncu fails, with the remedy.
        """
        program = ("python", "harness.py", "ncu")
        job = harness_job(ncu_command("ncu", program), kernel, traced)
        result = executor.run(job, timeout_s=TIMEOUT_S)
        report = result.files.get("ncu.csv", b"").decode(errors="replace")
        if PERMISSION_ERROR in report + result.stdout + result.stderr:
            self._may_not = PERMISSION_REMEDY
            raise ProfilerError(PERMISSION_REMEDY)
        check_result(result, "ncu", TIMEOUT_S)
        launches = parse_csv(report.splitlines(), "ncu.csv")
        spans = result.files.get("spans.json")
        if spans is not None:
            launches = put_together(read_spans(spans.decode()), launches)
        return Profile(kernel.hash, self.name, traced.device.name, False, launches)
