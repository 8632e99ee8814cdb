"""What the program that a profiler watches does: it warms up, and runs one forward to be looked at.

`ncu` marks with cudaProfilerStart and Stop what is to be counted of the forward, and says in
out/spans.json what all of it is; `cupti` records it with torch.profiler into out/trace.json. Other
processes may time kernels while this program starts: the warm-up runs beside their checks, the
forward that is looked at runs alone.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from kmem.host.checked_text import import_text
from kmem.host.lease import DIRECTORY_VARIABLE, GpuLease, gpu_uuid
from kmem.problem.source.load import build_inputs, execute_problem
from kmem.profile.build import build_model
from kmem.profile.description import read_precision, read_problem
from kmem.profile.launch_marks import LaunchMarks
from kmem.profile.picking import Span, pick, write_spans
from kmem.records import Precision

WARM_UPS = 3
#: Bytes written between warm-up and the forward looked at, so that it does not find its inputs in
#: L2: twice the largest (B200: 126 MB).
FLUSH_BYTES = 256 * 2**20


def build_forward(job: dict, file: Path, hide_rest: Callable[[], object]) -> Callable[[], object]:
    """A call that runs one forward of the candidate's ModelNew on the GPU.

    Args:
        file: the candidate's.
        hide_rest: called before anything of the candidate runs.
    """
    problem, workload = read_problem(job)
    precision = read_precision(job)
    torch.backends.cuda.matmul.allow_tf32 = precision is Precision.TF32
    module = execute_problem(problem, workload)
    torch.manual_seed(0)
    inputs = build_inputs(module, "cuda", precision)
    source = file.read_text(encoding="utf-8")
    hide_rest()
    candidate = import_text("candidate", str(file), source)
    model = build_model(candidate, module, precision, "cuda")

    def forward() -> object:
        with torch.no_grad():
            return model(*inputs)

    return forward


@contextlib.contextmanager
def watched_by_ncu(spans: Sequence[Span], marks: LaunchMarks) -> Iterator[None]:
    """Mark what is picked of a forward, and say what all of it is in out/spans.json."""
    Path("out/spans.json").write_text(write_spans(spans), encoding="utf-8")
    with marks.counting(spans):
        yield


@contextlib.contextmanager
def watched_by_cupti() -> Iterator[None]:
    """Record what runs inside with torch.profiler; its trace goes to out/trace.json."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        yield
        torch.cuda.synchronize()
    profiler.export_chrome_trace("out/trace.json")


def open_lease() -> GpuLease | None:
    """The GPU's lease, if the environment says where it lies."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return GpuLease(Path(directory), gpu_uuid(), lambda text: None) if directory else None


def run_watched(watcher: str, place: Path, hide_rest: Callable[[dict], object]) -> None:
    """Warm up, flush L2, run one forward under the watcher; with cupti also time the host.

    Args:
        place: the job's directory.
        hide_rest: called with the job before anything of the candidate runs.
    """
    job = json.loads((place / "job.json").read_text(encoding="utf-8"))
    lease = open_lease()  # its files are open from now on

    def hold_gpu(*, exclusive: bool) -> contextlib.AbstractContextManager[None]:
        if lease is None:
            return contextlib.nullcontext()
        return lease.hold(exclusive=exclusive, purpose="profiling")

    marks = LaunchMarks() if watcher == "ncu" else None
    with hold_gpu(exclusive=False):
        forward = build_forward(job, place / "candidate.py", lambda: hide_rest(job))
        for _ in range(WARM_UPS):
            forward()
        torch.cuda.synchronize()
    with hold_gpu(exclusive=True):
        if watcher == "cupti":
            # the first use of the profiler in a process sets CUPTI up and loses events
            with watched_by_cupti():
                forward()
            start = time.perf_counter()
            forward()
            torch.cuda.synchronize()
            Path("out/host.json").write_text(
                json.dumps({"forward_ms": 1e3 * (time.perf_counter() - start)}), encoding="utf-8"
            )
        spans = pick(marks.time(forward)) if marks else ()
        torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda").zero_()
        torch.cuda.synchronize()
        with watched_by_ncu(spans, marks) if marks else watched_by_cupti():
            forward()
