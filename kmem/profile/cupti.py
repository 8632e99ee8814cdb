"""The `cupti` profiler: kernels and their times from torch.profiler.

Resources come from the trace and the compiled binaries, and what follows of both from derive.py.
For GPUs whose counters the user may not read. What neither tells stays unknown.
"""

import json
import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.pool import compile_kernels, default_cache_dir
from kmem.profile.compile.report import CompileStatus
from kmem.profile.derive import add_derived
from kmem.profile.job import check_result, harness_job
from kmem.records import Kernel, Launch, Profile

logger = logging.getLogger(__name__)

TIMEOUT_S = 180.0
#: Fields of a kernel event and the counters they become. Source: libkineto/src/output_json.cpp,
#: handleActivity for CUDA kernels.
_FIELDS = {
    "registers per thread": "cupti__registers_per_thread",
    "shared memory": "cupti__shared_bytes_per_block",
    "est. achieved occupancy %": "cupti__achieved_occupancy_pct",
    "blocks per SM": "cupti__blocks_per_sm",
    "warps per SM": "cupti__warps_per_sm",
}


class CuptiProfiler(Profiler):
    """Times every kernel with torch.profiler; needs an NVIDIA GPU and no permissions."""

    name = "cupti"
    estimated = False

    def unavailable_reason(self) -> str | None:
        """None if a GPU is visible."""
        import torch  # seconds that commands without a GPU should not pay

        if torch.cuda.is_available():
            return None
        return "no GPU is visible; use --profiler static with a --target"

    def profile(self, kernel: Kernel, traced: TracedProblem, executor: Executor) -> Profile:
        """Profile every launch of one forward.

        Raises:
            ProfilerError: if the job fails or records no kernel.
        """
        result = executor.run(
            harness_job(("python", "harness.py", "cupti"), kernel, traced),
            timeout_s=TIMEOUT_S,
        )
        check_result(result, "torch.profiler", TIMEOUT_S)
        launches = read_trace(json.loads(result.files.get("trace.json", b"{}")))
        if not launches:
            raise ProfilerError(
                "torch.profiler recorded no kernel; another profiler may hold CUPTI, end it and "
                "try again"
            )
        (report,) = compile_kernels(
            [kernel],
            traced,
            processes=1,
            cache_dir=default_cache_dir(),
            timeout_s=TIMEOUT_S,
        )
        if report.status is CompileStatus.OK:
            launches = add_static(launches, report.launches)
            launches = add_derived(launches, traced.bound, traced.device)
        else:
            logger.info(
                "no static figures for %s: %s",
                kernel.hash[:12],
                report.log.strip().splitlines()[-1:],
            )
        return Profile(kernel.hash, self.name, traced.device.name, False, launches)


def read_trace(trace: Mapping[str, Any]) -> tuple[Launch, ...]:
    """Kernel events of a chrome trace, in order of start.

    Copies and fills on the GPU count as launches without a grid.
    """
    events = [
        event
        for event in trace.get("traceEvents", ())
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return tuple(_read_event(event) for event in sorted(events, key=lambda event: event["ts"]))


def _read_event(event: Mapping[str, Any]) -> Launch:
    fields = event.get("args", {})
    metrics = {
        counter: float(fields[name])
        for name, counter in _FIELDS.items()
        if isinstance(fields.get(name), int | float)
    }
    grid, block = fields.get("grid"), fields.get("block")
    return Launch(
        event["name"],
        event["dur"] / 1e3,
        tuple(grid) if grid else None,
        tuple(block) if block else None,
        metrics,
    )


def add_static(launches: Sequence[Launch], compiled: Sequence[Launch]) -> tuple[Launch, ...]:
    """Join binary figures to timed launches of the same kernel name and grid, in order."""
    waiting: dict[tuple[str, tuple[int, int, int] | None], deque[Launch]] = defaultdict(deque)
    for launch in compiled:
        if launch.grid is not None:
            waiting[launch.name, launch.grid].append(launch)
    joined = []
    for launch in launches:
        matches = waiting.get((launch.name, launch.grid))
        if matches:
            launch = replace(launch, metrics={**matches.popleft().metrics, **launch.metrics})
        joined.append(launch)
    return tuple(joined)
