"""RMSNorm + residual and linear + GELU over 40 shapes each, for tools/check_shipped.py.

Kernels and compiled baselines of each shape are prepared in many processes; then one process times
the kernels' packages beside the best of eager, torch.compile and (for the product) max-autotune,
and asks the table of the faster ones for every shape.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from shipped_checks import allowed_errors, errors, exact_values, make_original
from shipped_kernels import GPU, at_small_sizes, make_package, write_kernels

import kmem
from kmem.deploy.package import Package, find_package
from kmem.deploy.shipped.table import Entry
from kmem.memory.store import Memory
from kmem.problem.load import load_problem
from kmem.problem.shapes import label_of, problem_at, read_shapes
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
#: About half a millisecond at the clocks of the cards of today.
_QUEUEING_CYCLES = 1_000_000
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


def prepare_worker(name: str, first: str, workers: str, place: str) -> dict[str, Any]:
    """Write and compile kernels of every so many shapes, and compile their baselines."""
    text, done = BUCKETS[name], 0
    for shape in shapes_of(text)[int(first) :: int(workers)]:
        problem = at_shape(text, shape, Path(place) / f"{name}.py")
        label = label_of(shape)
        with Memory() as memory:
            kernels = write_kernels(problem, memory, 4)
        if not GPU:
            problem = at_small_sizes(problem, Path(place) / f"{name}_{label}_small.py")
        packages = [
            run_kernel(problem, kernel, Path(place) / name / label / str(number))
            for number, kernel in enumerate(kernels)
        ]
        about = {
            "problem": problem.path,
            "kernels": len(kernels),
            "packages": [str(package.directory) for package, is_right in packages if is_right],
        }
        (Path(place) / f"{name}_{label}.json").write_text(json.dumps(about), encoding="utf-8")
        model, inputs = make_original(packages[0][0].entries[0])
        for mode in MODES[name] if GPU else ():
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(model, mode=mode)(*inputs)
        done += 1
    return {"prepared": done, "of": name}


def run_kernel(problem: Any, kernel: Kernel, place: Path) -> tuple[Package, bool]:
    """A kernel's package, and whether its values are right."""
    package = make_package([(problem, kernel)], place, "one")
    model, inputs = make_original(package.entries[0])
    with torch.no_grad():
        exact, own = exact_values(model, inputs), model(*inputs)
        with kmem.apply(model, package) as handle:
            found = model(*inputs)
            served = bool(handle.replaced) and handle.status()[0].served == 1
    pairs = zip(errors(found, exact), allowed_errors(own, exact), strict=True)
    return package, served and all(error <= most for error, most in pairs)


def time_buckets(
    name: str, place: Path, ends: float, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Times of every prepared shape, the kernels' own package among them, and their ratios.

    Args:
        place: where `prepare_worker` left its files.
        ends: when there is no more time (of time.monotonic).
        keep: given what is known so far, after each shape.
    """
    rows: list[dict[str, Any]] = []
    chosen = []
    for shape in shapes_of(BUCKETS[name]):
        file = place / f"{name}_{label_of(shape)}.json"
        if not file.is_file():
            rows.append({"shape": dict(shape), "late": "not prepared"})
            continue
        if time.monotonic() > ends - 10:
            rows.append({"shape": dict(shape), "late": "no time was left"})
            continue
        about = json.loads(file.read_text(encoding="utf-8"))
        right = [find_package(Path(each)) for each in about["packages"]]
        row, best = time_shape(name, right)
        kernels = {"kernels": about["kernels"], "right": len(right)}
        rows.append({"shape": dict(shape), **kernels, **row})
        if best is not None:
            problem = load_problem(Path(about["problem"]))
            chosen.append((problem, Kernel(best.entries[0].kernel.read_text(encoding="utf-8"))))
        print(name, json.dumps(rows[-1]), flush=True)
        keep({"rows": rows, **summary(rows)})
    package = make_package(chosen, place / f"{name}_table", name) if chosen else None
    told: dict[str, Any] = {"rows": rows, "table": len(chosen)}
    if package is not None:
        told |= apply_table(package)
    told |= summary(rows)
    print(name, {key: value for key, value in told.items() if key != "rows"}, flush=True)
    return told


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of the shapes that were timed, beside how many were not."""
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    if not ratios:
        return {}
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    late = sum("late" in row for row in rows)
    return {"geometric_mean": mean, "worst": min(ratios), "timed": len(ratios), "late": late}


def time_shape(name: str, packages: Sequence[Package]) -> tuple[dict[str, Any], Package | None]:
    """Milliseconds of the baselines and of the fastest package; without a GPU nothing."""
    if not packages:
        return {"kernel": "FAILED(no kernel is right)"}, None
    if not GPU:
        return {}, packages[0]
    model, inputs = make_original(packages[0].entries[0])
    with torch.no_grad():
        times = {"eager": latency_ms(lambda: model(*inputs))}
        for mode in MODES[name]:
            torch._dynamo.reset()
            fast = torch.compile(model, mode=mode)
            times[mode or "compile"] = latency_ms(lambda: fast(*inputs))  # noqa: B023
        kernels = []
        for package in packages:
            with kmem.apply(model, package):
                kernels.append(latency_ms(lambda: model(*inputs)))
    best_ms, kernel_ms = min(times.values()), min(kernels)
    # a package is asked in place of the module's own code, which is what runs without a row for it
    serves = kernel_ms < times["eager"]
    ratio = best_ms / (kernel_ms if serves else times["eager"])
    row = {"ms": times, "kernel_ms": kernel_ms, "serves": serves, "ratio": ratio}
    return row, packages[kernels.index(kernel_ms)] if serves else None


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


@contextmanager
def flushed() -> Iterator[Callable[[], None]]:
    """What empties the cache: nothing that is timed finds its inputs there."""
    memory = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    yield memory.zero_


def latency_ms(call: Callable[[], object], repeats: int = 30) -> float:
    """Median time of a call on the device, in milliseconds, with a cold cache.

    The device is kept busy until all of a call is queued, so that the host's time is not in it.
    """
    for _ in range(5):
        call()
    times = []
    with flushed() as flush:
        for _ in range(repeats):
            flush()
            torch.cuda._sleep(_QUEUEING_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times)
