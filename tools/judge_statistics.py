"""How good the judge's clock is, and what judging costs, on this machine's GPU.

In order: a kernel against itself and against one that does 2% more work, by the judge's own A B B A
pairs in two workers; agreement with triton.testing.do_bench; time, GPU lease and device memory of
verifying one candidate. Prints tables; rows go to $OUT/judge_statistics.json.

    python tools/judge_statistics.py [--repeats 20] [--only self bench cost memory]
        [--problems matvec ...] [--dry]

With --dry nothing is timed and no GPU is wanted: the same kernels are judged in the interpreter, at
a few rows, so that a call on a GPU does not end in an error of this file's own.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 - after the checkout is on the path
from gpu_memory_use import PeakMemory, own_memory  # noqa: E402 - beside this file
from triton.testing import do_bench  # noqa: E402

from kmem.devices import detect_device, named_target  # noqa: E402
from kmem.errors import DeviceMemoryError  # noqa: E402
from kmem.host.lease import GpuLease, gpu_uuid  # noqa: E402
from kmem.measure.examine.cases import check_case  # noqa: E402
from kmem.measure.examine.examination import Examination  # noqa: E402
from kmem.measure.examine.loading import load_candidate  # noqa: E402
from kmem.measure.judge import Judge  # noqa: E402
from kmem.measure.pool.workers import WorkerPool  # noqa: E402
from kmem.measure.resources import JudgeResources  # noqa: E402
from kmem.measure.settings import JudgeSettings  # noqa: E402
from kmem.measure.timing.gpu_clock import (  # noqa: E402
    Batch,
    ClockSettings,
    LoadedModule,
    sample_times,
    time_pairs,
)
from kmem.problem.costs.bound import graph_bound  # noqa: E402
from kmem.problem.sizing.workload import derive_small_workload  # noqa: E402
from kmem.problem.source.load import FULL, execute_problem, load_problem  # noqa: E402
from kmem.problem.traced import TracedProblem  # noqa: E402
from kmem.problem.tracing.trace import trace_problem  # noqa: E402
from kmem.records import Contract, Device, Kernel, Precision, Problem, Timing  # noqa: E402
from kmem.testing import import_source  # noqa: E402

SHOW_PIECES = ("matvec", "rms_norm", "max_pool3d", "conv_transpose3d", "depthwise_conv2d")
_PROBLEM = """import torch
import torch.nn as nn

rows = {rows}
columns = {columns}

class Model(nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.rand(rows, columns)]
"""
#: {extra} of the rows are done a second time: so much more work, with the same answer.
_KERNEL = """import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def by_row(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    row = (tl.program_id(0) % rows).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other={other})
    {body}

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty({shape}, device=x.device, dtype=x.dtype)
        grid = (rows + int({extra} * rows),)
        by_row[grid](x, y, rows, columns, BLOCK=triton.next_power_of_2(columns))
        return y
"""
_STORE = "tl.store(y_ptr + row * columns + column, {value}, mask=mask)"
ROWS, COLUMNS = 65536, 4096
#: The same without a GPU.
DRY_ROWS, DRY_COLUMNS = 12, 40
DRY_TARGET = "h200"


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and its kernel: what differs from one to another."""

    expression: str
    body: str
    other: str = "0.0"
    shape: str = "x.shape"


#: Each takes over 0.2 ms at ROWS x COLUMNS.
CASES = {
    "relu": Case(
        "torch.relu(x)",
        _STORE.format(value="tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)"),
    ),
    "row_sum": Case(
        "torch.sum(x, dim=1, keepdim=True)",
        "tl.store(y_ptr + row, tl.sum(x, 0))",
        shape="(rows, 1)",
    ),
    "softmax": Case(
        "torch.softmax(x, dim=1)",
        "z = tl.exp(x - tl.max(x, 0))\n    " + _STORE.format(value="z / tl.sum(z, 0)"),
        other="float('-inf')",
    ),
}


def problem_of(name: str, rows: int = ROWS, columns: int = COLUMNS) -> Problem:
    source = _PROBLEM.format(rows=rows, columns=columns, expression=CASES[name].expression)
    return Problem(name, f"<{name}>", source)


def kernel_of(name: str, extra: float = 0.0) -> Kernel:
    case = CASES[name]
    return Kernel(_KERNEL.format(body=case.body, other=case.other, shape=case.shape, extra=extra))


class Bench:
    """A judge's resources without the judge, to time kernels in pairs with one another."""

    def __init__(self, name: str, device: Device, place: Path) -> None:
        self._clock = ClockSettings(device.l2_bytes, timeout_s=60.0)
        directory = place / f"{name}-{time.monotonic_ns()}"
        directory.mkdir(parents=True)
        pool = WorkerPool(directory, "cuda:0", place / "cache", keep_spare=False)
        lease = GpuLease(place / "locks", gpu_uuid(), print)
        self.resources = JudgeResources(
            TracedProblem(problem_of(name), Contract(), device, {"full": FULL}, {}, None),
            seed=1,
            directory=directory,
            workers=pool,
            lease=lease,
            on_event=print,
        )
        self._inputs = self.resources.timed_inputs()

    def load(self, kernel: Kernel) -> LoadedModule:
        """A kernel in a worker of its own, checked on one case so that wrong ones are not timed."""
        examination = Examination(kernel, self.resources.workers.take(), Contract(), 90.0, 60.0)
        load_candidate(examination, self.resources.reference())
        check_case(examination, "drawn", 5)
        self._inputs.show(examination.worker)
        return LoadedModule(examination.worker, examination.key)

    def pair(self, one: LoadedModule, two: LoadedModule, seed: int) -> Timing:
        """Time of the first, with the ratio two/one."""
        with self.resources.hold_gpu("timing in pairs", exclusive=True):
            paired = time_pairs(one, two, self._inputs, self._clock, name="other", seed=seed)
        return paired.timing

    def median_ms(self, module: LoadedModule) -> float:
        """By the judge's event clock, cold L2."""
        self._inputs.refresh(module.worker)
        batch = Batch(self._inputs.names(module.worker), 60, warmup=3)
        samples = sample_times(module, batch, self._clock).event_ms
        return sorted(samples)[len(samples) // 2]


def measure_pairs(device: Device, place: Path, repeats: int) -> dict[str, object]:
    """A kernel against itself, and against 2% more work."""
    bench = Bench("relu", device, place)
    itself = bench.load(kernel_of("relu"))
    twin = bench.load(kernel_of("relu"))
    slower = bench.load(kernel_of("relu", 0.02))
    same = [bench.pair(itself, twin, seed) for seed in range(repeats)]
    planted = [bench.pair(slower, itself, seed) for seed in range(repeats)]
    bench.resources.close()
    return {
        "repeats": repeats,
        "itself: interval contains 1": sum(
            timing.ratio_low <= 1 <= timing.ratio_high for timing in same
        ),
        "itself: ratio within 1%": sum(abs(timing.ratio - 1) <= 0.01 for timing in same),
        "itself: ratios": [round(timing.ratio, 5) for timing in same],
        "itself: intervals": [
            [round(timing.ratio_low, 5), round(timing.ratio_high, 5)] for timing in same
        ],
        "2% slower: seen": sum(timing.ratio_high < 1 for timing in planted),
        "2% slower: ratios": [round(timing.ratio, 5) for timing in planted],
    }


def compare_with_do_bench(device: Device, place: Path) -> list[dict[str, object]]:
    """The judge's median beside do_bench's, one after the other."""
    rows = []
    for name in CASES:
        bench = Bench(name, device, place)
        ours = bench.median_ms(bench.load(kernel_of(name)))
        bench.resources.close()
        module = import_source(kernel_of(name).source, place)
        model, x = module.ModelNew(), torch.rand(ROWS, COLUMNS, device="cuda")
        theirs = do_bench(
            lambda model=model, x=x: model(x), warmup=50, rep=200, return_mode="median"
        )
        rows.append(
            {
                "kernel": name,
                "judge_ms": ours,
                "do_bench_ms": theirs,
                "difference": ours / theirs - 1,
            }
        )
        del model, x
        torch.cuda.empty_cache()
    return rows


def verify_once(
    name: str,
    kernel: Kernel,
    problem: Problem,
    device: Device,
    place: Path,
    *,
    with_baselines: bool,
) -> dict[str, object]:
    """What judging one candidate takes: seconds, seconds of GPU lease, and device memory.

    The memory is that of judge and workers together.
    """
    contract = Contract()
    graph = trace_problem(execute_problem(problem), Precision.MATCH)
    workloads = {"full": FULL, "small": derive_small_workload(problem)}
    bound = graph_bound(graph, device, contract)
    traced = TracedProblem(problem, contract, device, workloads, {"full": graph}, bound)
    settings = JudgeSettings(
        seed=9, gpu=True, work_dir=place, cache_dir=place / "cache", keep_spare=False
    )
    with Judge(traced, settings) as judge:
        baselines = judge.baselines() if with_baselines else ()
        held, started = judge.gpu_held_s, time.monotonic()
        with PeakMemory() as peak:
            measurement = judge.verify(kernel, baselines)
        seconds, held = time.monotonic() - started, judge.gpu_held_s - held
    return {
        "problem": name,
        "status": measurement.status.value,
        "log": measurement.log[:500],
        "flags": list(measurement.flags),
        "latency_ms": measurement.latency_ms,
        "verify_s": seconds,
        "gpu_held_s": held,
        "peak_bytes": peak.bytes,
    }


def measure_memory(device: Device, place: Path, names: Sequence[str]) -> list[dict[str, object]]:
    """How much device memory is taken if there is plenty, and whether what is allowed suffices.

    The show-pieces are judged with themselves as candidates: vendor kernels take no less memory
    than Triton's. Allowed is twice what the problem itself takes, its process included, plus its
    outputs.
    """
    rows = []
    for name, (own, outputs, context) in zip(names, own_memory(names), strict=True):
        problem = load_problem(ROOT / "problems" / name)
        kernel = Kernel(f"{problem.source}\n\nModelNew = Model\n")
        allowed = 2 * (own + context) + outputs
        row = verify_once(name, kernel, problem, device, place, with_baselines=False)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        # now there is no more than is allowed
        ballast = torch.empty(max(0, free - allowed), dtype=torch.int8, device="cuda")
        try:
            tight = verify_once(name, kernel, problem, device, place, with_baselines=False)
        # a row of the table too: the judge should have found another way
        except DeviceMemoryError as ex:
            tight = {"status": "no room", "log": str(ex), "verify_s": float("nan")}
        del ballast
        rows.append(
            {
                **row,
                "own_bytes": own,
                "context_bytes": context,
                "allowed_bytes": allowed,
                "share": row["peak_bytes"] / allowed,
                "status_when_tight": tight["status"],
                "log_when_tight": tight["log"],
                "verify_s_when_tight": tight["verify_s"],
            }
        )
        print_rows(rows[-1:])  # as soon as it is known: the whole table takes minutes
    return rows


def judge_dry(place: Path) -> list[dict[str, object]]:
    """Verdicts of the interpreter on every kernel that is timed elsewhere, the slower one too."""
    device = named_target(DRY_TARGET)
    rows = []
    for name, extra in [("relu", 0.02), *((name, 0.0) for name in CASES)]:
        problem = problem_of(name, DRY_ROWS, DRY_COLUMNS)
        traced = TracedProblem(problem, Contract(), device, {"full": FULL}, {}, None)
        settings = JudgeSettings(seed=9, gpu=False, work_dir=place, cache_dir=place / "cache")
        started = time.monotonic()
        with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
            measurement = judge.verify(kernel_of(name, extra), ())
        seconds = time.monotonic() - started
        row = {"problem": name, "extra": extra, "status": measurement.status.value}
        rows.append({**row, "log": measurement.log[:500], "verify_s": seconds})
    return rows


def print_rows(rows: list[dict[str, object]]) -> None:
    for row in rows:
        cells = [
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
        ]
        print("  " + ", ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=("self", "bench", "cost", "memory"),
        default=("self", "bench", "cost", "memory"),
    )
    parser.add_argument(
        "--problems",
        nargs="*",
        choices=SHOW_PIECES,
        default=SHOW_PIECES,
        help="whose memory is measured",
    )
    parser.add_argument("--dry", action="store_true", help="judge in the interpreter, time nothing")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    device = None if options.dry else detect_device()
    if device is None and not options.dry:
        raise SystemExit("No GPU here: run it where there is one, or with --dry to try this file")
    out = Path(os.environ.get("OUT", "."))
    out.mkdir(parents=True, exist_ok=True)
    name_of_device = "interpreter" if device is None else device.full_name
    found: dict[str, object] = {"device": name_of_device, "torch": torch.__version__}

    def keep(key: str, value: object) -> None:
        found[key] = value
        print(key, flush=True)
        print_rows(value if isinstance(value, list) else [value])
        (out / "judge_statistics.json").write_text(json.dumps(found, indent=1), encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="kmem-statistics-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        if device is None:
            rows = judge_dry(place)
            keep("dry", rows)
            sys.exit(any(row["status"] != "passed" for row in rows))
        if "self" in options.only:
            keep("pairs", measure_pairs(device, place, options.repeats))
        if "bench" in options.only:
            keep("do_bench", compare_with_do_bench(device, place))
        if "cost" in options.only:
            pair = kernel_of("softmax"), problem_of("softmax")
            keep("cost", verify_once("softmax", *pair, device, place, with_baselines=True))
        if "memory" in options.only:
            keep("memory", measure_memory(device, place, options.problems))


if __name__ == "__main__":
    main()
