"""The job a GPU profiler gives its executor: the harness, the candidate, and what to run it at."""

import json
from pathlib import Path

from kmem.errors import DeviceMemoryError, ProfilerError
from kmem.interfaces import Job, JobResult
from kmem.problem.traced import TracedProblem
from kmem.profile.description import describe_inputs
from kmem.records import Kernel, Problem

#: What torch says when the device is full. Source: torch.OutOfMemoryError,
#: c10/cuda/CUDACachingAllocator.cpp.
_OUT_OF_MEMORY = "CUDA out of memory"


def reference_kernel(problem: Problem) -> Kernel:
    """The unmodified module as a kernel file, so that it can be profiled like any candidate."""
    return Kernel(f"{problem.source}\n\nModelNew = Model\n")


def harness_job(argv: tuple[str, ...], kernel: Kernel, traced: TracedProblem) -> Job:
    """A job that runs `argv` in a directory with the harness, the candidate and job.json."""
    files = {
        "harness.py": Path(__file__).with_name("harness.py").read_text(encoding="utf-8"),
        "candidate.py": kernel.source,
        "job.json": json.dumps(describe_inputs(traced)),
    }
    return Job(argv, files, {})


def check_result(result: JobResult, tool: str, timeout_s: float) -> None:
    """Raise what became of a profiling job that did not succeed.

    Raises:
        ProfilerError: if it failed or took too long; the last line of its output says why.
        DeviceMemoryError: if the device is full.
    """
    if result.exit_code == 0:
        return
    output = f"{result.stdout}\n{result.stderr}"
    if _OUT_OF_MEMORY in output:
        raise DeviceMemoryError(
            f"The device is out of memory while {tool} profiles; make the problem smaller or free "
            "the device"
        )
    if result.exit_code is None:
        raise ProfilerError(
            f"{tool} took longer than {timeout_s:g} s; profile with --profiler cupti or make the "
            "problem smaller"
        )
    lines = [line for line in output.splitlines() if line.strip()]
    raise ProfilerError(
        f"{tool} ended with exit code {result.exit_code}: {lines[-1] if lines else 'no output'}; "
        "run kmem doctor"
    )
