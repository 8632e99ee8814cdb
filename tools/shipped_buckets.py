"""RMSNorm + residual and linear + GELU over 40 shapes each, for tools/check_shipped.py.

Kernels and compiled baselines of the shapes are prepared in many processes, which then, one after
the other, time the kernels' packages beside the best of eager, torch.compile and (for the product)
max-autotune. In the end the table of the faster ones is asked for every shape.
"""

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from shipped_checks import (
    WrongValues,
    allowed_errors,
    applied,
    compare,
    exact_values,
    make_original,
)
from shipped_kernels import GPU, at_small_sizes, make_package, write_kernels

import kmem
from kmem.deploy.package import Package, find_package
from kmem.deploy.shipped.table import Entry
from kmem.memory.store import Memory
from kmem.problem.sizing.shapes import label_of, problem_at, read_shapes
from kmem.problem.source.load import load_problem
from kmem.records import Kernel

RMS = """
import torch
ROWS = 4096
WIDTH = 4096
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
    def forward(self, x, residual):
        y = x + residual
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
def get_inputs():
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)]
def get_init_inputs():
    return [WIDTH]
"""
GELU = """
import torch
ROWS = 4096
WIDTH = 1024
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))
def get_inputs():
    return [torch.randn(ROWS, WIDTH)]
def get_init_inputs():
    return [WIDTH]
"""
BUCKETS = {"rms_residual": RMS, "linear_gelu": GELU}
SHAPES = "rows=1,8,64,512,1000,2048,4096,6000,8192,16384 width=768,1024,2048,4096"
DRY_SHAPES = "rows=1,20 width=64"
#: Kernels of a shape that are compared at most, and asked for of each skill.
_KERNELS = {"rms_residual": (6, 6), "linear_gelu": (9, 3)}
#: The same of up to so many rows: what is predicted to be fastest is not where a few microseconds
#: count, and kernels of few rows are soon compiled.
_FEW_ROWS, _KERNELS_OF_FEW = 8, (24, 12)
#: About half a millisecond at the clocks of the cards of today.
_QUEUEING_CYCLES = 1_000_000
#: Calls in a row take this long together, or are this many.
_LEAST_MS, _MOST_CALLS = 0.2, 20
_WARMUP, _ROUNDS = 3, 31
MODES = {"rms_residual": (None,), "linear_gelu": (None, "max-autotune-no-cudagraphs")}


def at_shape(text: str, shape: Any, place: Path) -> Any:
    """A problem at a shape, as a file of its own."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    at = place.with_name(f"{place.stem}_{label_of(shape)}.py")
    at.write_text(problem_at(load_problem(place), shape), encoding="utf-8")
    return load_problem(at)


def shapes_of(text: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "problem.py"
        file.write_text(text, encoding="utf-8")
        return list(read_shapes(SHAPES if GPU else DRY_SHAPES, load_problem(file)))


@dataclass(frozen=True)
class Prepared:
    """A shape whose kernels are compiled and compared, and whose baselines are compiled.

    `calls` has what is to be timed, by name: on a GPU a captured graph of `repeats` calls in a row.
    """

    shape: dict[str, int]
    problem: str
    kernels: int
    packages: Sequence[Package]
    calls: dict[str, Callable[[], object]]
    repeats: int


def bucket_worker(
    names: str, first: str, workers: str, place: str, seconds: str
) -> Iterator[dict[str, Any]]:
    """Prepare every so many shapes; then, once a line comes in, time them.

    The first answer is how many there are, the others are rows. A process that has compiled a
    baseline times it, too, for compiling it again takes most of the time.

    Args:
        names: of `BUCKETS`, between commas.
        first: of the shapes of each bucket.
        seconds: until no further shape is prepared.
    """
    ends = time.monotonic() + float(seconds)
    prepared: dict[str, list[Prepared]] = {}
    for name in names.split(","):
        for shape in shapes_of(BUCKETS[name])[int(first) :: int(workers)]:
            if time.monotonic() < ends:
                prepared.setdefault(name, []).append(prepare(name, shape, Path(place)))
    yield {"prepared": sum(map(len, prepared.values()))}
    sys.stdin.readline()
    for name, shapes in prepared.items():
        for each in shapes:
            yield {"of": name, **time_shape(each)}


def prepare(name: str, shape: Any, place: Path) -> Prepared:
    """Write and compile kernels of one shape, and compile its baselines."""
    problem = at_shape(BUCKETS[name], shape, place / f"{name}.py")
    label = label_of(shape)
    with Memory() as memory:
        few = dict(shape)["ROWS"] <= _FEW_ROWS
        kernels = write_kernels(problem, memory, *(_KERNELS_OF_FEW if few else _KERNELS[name]))
    if not GPU:
        problem = at_small_sizes(problem, place / f"{name}_{label}_small.py")
    written = [
        run_kernel(problem, kernel, place / name / label / str(number))
        for number, kernel in enumerate(kernels)
    ]
    right = [package for package, is_right in written if is_right]
    model, inputs = make_original(written[0][0].entries[0])
    calls: dict[str, Callable[[], object]] = {}
    repeats = 1
    if GPU:
        with torch.no_grad():
            repeats = calls_for(partial(model, *inputs))
            calls["eager"] = captured_calls(partial(model, *inputs), repeats)
            for mode in MODES[name]:
                torch._dynamo.reset()
                fast = partial(torch.compile(model, mode=mode), *inputs)
                calls[mode or "compile"] = captured_calls(fast, repeats)
            for package in right:
                with kmem.apply(model, package):
                    call = captured_calls(partial(model, *inputs), repeats)
                    calls[str(package.directory)] = call
    return Prepared(dict(shape), problem.path, len(kernels), right, calls, repeats)


def run_kernel(problem: Any, kernel: Kernel, place: Path) -> tuple[Package, bool]:
    """A kernel's package, and whether its values are right."""
    package = make_package([(problem, kernel)], place, "one")
    model, inputs = make_original(package.entries[0])
    with torch.no_grad():
        exact, own = exact_values(model, inputs), model(*inputs)
        found = applied(model, package, lambda: model(*inputs), served=True)
    try:
        compare(found, exact, allowed_errors(own, exact))
    except WrongValues:
        return package, False
    return package, True


def tell_buckets(name: str, rows: Sequence[dict[str, Any]], place: Path) -> dict[str, Any]:
    """Rows of a bucket, what they come to, and whether the table of its kernels serves all calls.

    Args:
        rows: of `bucket_worker`.
    """
    told: dict[str, Any] = {"rows": rows}
    chosen = []
    for row in rows:
        if "serves" in row:
            kernel = find_package(Path(row["serves"])).entries[0].kernel
            chosen.append((load_problem(Path(row["problem"])), kernel.read_text(encoding="utf-8")))
    if chosen:
        runs = [(problem, Kernel(text)) for problem, text in chosen]
        told |= {"table": len(runs)} | apply_table(make_package(runs, place / name, name))
    told |= summary(rows)
    told["late"] = len(shapes_of(BUCKETS[name])) - len(rows)
    return told


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of the shapes that were timed."""
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    if not ratios:
        return {}
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return {"geometric_mean": mean, "worst": min(ratios), "timed": len(ratios)}


def time_shape(prepared: Prepared) -> dict[str, Any]:
    """Milliseconds of the baselines and of the fastest package; without a GPU nothing."""
    row = {
        "shape": prepared.shape,
        "problem": prepared.problem,
        "kernels": prepared.kernels,
        "right": len(prepared.packages),
    }
    if not prepared.packages:
        return row | {"kernel": "FAILED(no kernel is right)"}
    if not GPU:
        return row | {"serves": str(prepared.packages[0].directory)}
    times = latencies_ms(prepared.calls, prepared.repeats)
    ours = {str(each.directory) for each in prepared.packages}
    best = min(ours, key=times.__getitem__)
    others = {name: ms for name, ms in times.items() if name not in ours}
    # a package is asked in place of the module's own code, which is what runs without a row for it
    serves = {"serves": best} if times[best] < times["eager"] else {}
    ratio = min(others.values()) / min(times[best], times["eager"])
    figures = {"ms": others, "kernel_ms": times[best], "repeats": prepared.repeats, "ratio": ratio}
    return row | figures | serves


def apply_table(package: Package) -> dict[str, Any]:
    """Every row of a table on one model for each size of weights: is each call served?"""
    by_init: dict[Any, list[Entry]] = {}
    for entry in package.entries:
        by_init.setdefault(entry.init, []).append(entry)
    seconds, unserved = 0.0, 0
    for entries in by_init.values():
        model, _ = make_original(entries[0])
        began = time.perf_counter()
        with kmem.apply(model, package) as handle, torch.no_grad():
            seconds += time.perf_counter() - began
            for entry in entries:
                model(*make_original(entry)[1])
            served = sum(each.served for each in handle.status())
        unserved += len(entries) - served
    told = {"apply_seconds": round(seconds, 3), "unserved": unserved}
    return told | ({"table": "FAILED(calls were not served)"} if unserved else {})


def calls_for(call: Callable[[], object]) -> int:
    """How many calls in a row take long enough to be timed by events, which tell half a us."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_QUEUEING_CYCLES)  # until the call is queued
    begin.record()
    call()
    end.record()
    end.synchronize()
    return min(_MOST_CALLS, max(1, math.ceil(_LEAST_MS / begin.elapsed_time(end))))


def captured_calls(call: Callable[[], object], repeats: int) -> Callable[[], object]:
    """So many calls in a row as one CUDA graph: no time of the host is in it.

    What it reads lives as long as it does.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()

    def replay(held: Callable[[], object] = call) -> None:
        graph.replay()

    return replay


def latencies_ms(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of one call of each, in milliseconds; all take turns, each with a cold cache.

    Of several calls in a row only the first one finds the cache cold, whatever is timed.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    memory = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for round_number in range(_WARMUP + _ROUNDS):
        for name, call in calls.items():
            memory.zero_()  # nothing that is timed finds its inputs in the cache
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if round_number >= _WARMUP:
                times[name].append(begin.elapsed_time(end) / repeats)
    return {name: statistics.median(taken) for name, taken in times.items()}
