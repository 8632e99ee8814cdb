"""Check what is shipped, in one call of less than `--seconds`: `python tools/check_shipped.py`.

    start      what a package costs until its first call has returned, with a warm Triton cache
    winners    of each winner torch.library.opcheck, torch.compile(fullgraph=True) with `kmem.apply`
               and with backend="kmem", torch.export, and on a GPU CUDA-graph capture,
               reduce-overhead and AOTInductor: the module's values, and no recompilation
    buckets    RMSNorm + residual and linear + GELU over 40 shapes each, as packages, beside the
               best of eager, torch.compile and (for the product) max-autotune
    all        the three, one after the other, with a share of the time each (the default)

Kernels come from db/evidence or are what recipes write first; there is no search. Prints a row for
each thing checked, writes shipped.json under $OUT (default: the working directory) after each part,
and ends with 1 if anything failed. `--dry` does the same without a GPU: small sizes, in the
interpreter, and no times.
"""

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:  # read when triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from shipped_kernels import GPU, ROOT, at_small_sizes, make_package, write_kernels

import kmem
from kmem.deploy.backend import compile_graph
from kmem.deploy.package import Package, find_package
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.sharing import holder_of
from kmem.deploy.shipped.table import Entry, load_original
from kmem.errors import KmemError
from kmem.memory.store import Memory
from kmem.memory.team.exchange import import_outcomes
from kmem.problem.load import load_problem
from kmem.problem.shapes import label_of, problem_at, read_shapes
from kmem.records import Kernel

DEVICE = "cuda" if GPU else "cpu"
#: Shares of the time that the parts may take, when all run.
SHARES = {"start": 0.15, "winners": 0.35, "buckets": 0.5}
#: How much larger than eager's own error against float64 a kernel's may be.
SLACK = 10.0
LEAST_ERROR = 2e-5

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
MODES = {"rms_residual": (None,), "linear_gelu": (None, "max-autotune-no-cudagraphs")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default="all", choices=[*PARTS, "all", "worker"])
    parser.add_argument("names", nargs="*", help="of winners: problems/ (default: all)")
    parser.add_argument("--seconds", type=float, default=460.0, help="for all parts (default: 460)")
    parser.add_argument("--winners", type=int, default=20, help="stop after so many (default: 20)")
    parser.add_argument("--workers", type=int, default=8, help="processes at once (default: 8)")
    parser.add_argument("--dry", action="store_true", help="small sizes in the interpreter")
    options = parser.parse_args()
    if not GPU and not options.dry:
        sys.exit("No GPU here: --dry checks small sizes in the interpreter")
    if options.part == "worker":
        print(json.dumps(WORKERS[options.names[0]](*options.names[1:])))
        return
    began, told = time.monotonic(), {}
    parts = list(PARTS) if options.part == "all" else [options.part]
    with tempfile.TemporaryDirectory(prefix="kmem-shipped-") as place:
        os.environ["KMEM_DB"] = str(Path(place) / "kmem.db")
        with Memory() as memory:
            import_outcomes(memory, ROOT / "db" / "evidence")
        for part in parts:
            share = SHARES[part] / sum(SHARES[each] for each in parts[parts.index(part) :])
            options.ends = time.monotonic() + share * (began + options.seconds - time.monotonic())
            told[part] = PARTS[part](options, Path(place) / part)
            out = Path(os.environ.get("OUT", ".")) / "shipped.json"
            out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            print(f"-- {part}: {time.monotonic() - began:.0f} s since the beginning", flush=True)
    sys.exit("FAILED" in json.dumps(told))


def ask(worker: str, *words: str, ends: float) -> Any:
    """What a process of this file's own answers; a row that says why there is no answer."""
    command = [sys.executable, __file__, "worker", worker, *words, *(() if GPU else ("--dry",))]
    left = ends - time.monotonic()
    if left < 5:
        return {"late": "no time was left"}
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},  # processes are enough
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"late": "stopped at the end of its time"}
    if done.returncode:
        return {"worker": f"FAILED({done.stderr.strip().splitlines()[-1:]})"}
    return json.loads(done.stdout.splitlines()[-1])


# --- start


def check_start(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Seconds from `import` to the end of the first call, in new processes, the cache warm."""
    rows: dict[str, Any] = {}
    for name, text in BUCKETS.items():
        problem = at_shape(text, shapes_of(text)[0], place / f"{name}.py")
        with Memory() as memory:
            kernel = write_kernels(problem, memory, 1)[0]
        if not GPU:
            problem = at_small_sizes(problem, place / f"{name}_small.py")
        package = make_package([(problem, kernel)], place / name, name)
        answers = [start_once(package, options.ends) for _ in range(3)]
        rows[name] = {"cold": answers[0], "warm": answers[1:]}
        print("start", name, json.dumps(rows[name]), flush=True)
    return rows


def start_once(package: Package, ends: float) -> dict[str, Any]:
    """Seconds of each step of a package's start, in a process without kmem."""
    words = [str(package.directory), package.name, DEVICE]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, *words],
            capture_output=True,
            text=True,
            timeout=max(5.0, ends - time.monotonic()),
            check=True,
        )
    except subprocess.TimeoutExpired:
        return {"late": "no time was left"}
    except subprocess.CalledProcessError as ex:
        return {"start": f"FAILED({ex.stderr.strip().splitlines()[-1:]})"}
    return json.loads(done.stdout.splitlines()[-1])


_START = """
import json, sys, time
sys.modules["kmem"] = None
import torch
directory, name, device = sys.argv[1:]
sys.path.insert(0, directory)
row = json.load(open(f"{directory}/{name}/table.json"))["entries"][0]
space = {}
exec(json.load(open(f"{directory}/{name}/{row['evidence']}"))["problem"]["source"], space)
model = space["Model"](*space["get_init_inputs"]()).to(device).eval()
inputs = [value.to(device) for value in space["get_inputs"]()]
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
wait()
times = [time.perf_counter()]
package = __import__(name)
times.append(time.perf_counter())
handle = package.apply(model)
times.append(time.perf_counter())
with torch.no_grad():
    model(*inputs)
wait()
times.append(time.perf_counter())
steps = [round(b - a, 4) for a, b in zip(times, times[1:])]
told = dict(zip(("import", "apply", "first_call"), steps))
told["seconds"], told["served"] = round(sum(steps), 4), handle.status()[0].served
told["loads_compiler"] = "torch._dynamo" in sys.modules
print(json.dumps(told))
"""

# --- winners


def check_winners(options: argparse.Namespace, place: Path) -> list[dict[str, Any]]:
    """A row for each problem, several at once."""
    every = sorted(each.parent.name for each in (ROOT / "problems").glob("*/problem.py"))
    names = options.names or (["mse"] if options.dry else every)
    rows: list[dict[str, Any]] = []

    def check(name: str) -> None:
        if sum("opcheck" in row for row in rows) >= options.winners:
            return
        row = {"problem": name, **ask("winner", name, str(place / name), ends=options.ends)}
        rows.append(row)
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)

    with ThreadPoolExecutor(1 if options.dry else options.workers) as pool:
        list(pool.map(check, names))
    winners = [row for row in rows if "opcheck" in row]
    bad = [row["problem"] for row in winners if "FAILED" in json.dumps(row)]
    print(f"{len(winners)} winners, {len(bad)} with a failure: {', '.join(bad)}", flush=True)
    return rows


def winner_worker(name: str, place: str) -> dict[str, Any]:
    """What became of each check of one problem's winner."""
    file = ROOT / "problems" / name / "problem.py"
    problem = load_problem(file if file.is_file() else Path(name))
    try:
        with Memory() as memory:
            kernels = write_kernels(problem, memory, 1)
        if not kernels:
            return {"skipped": "no recipe writes it"}
        if not GPU:
            problem = at_small_sizes(problem, Path(place) / "small.py")
        return check_package(make_package([(problem, kernels[0])], Path(place), "shipped"))
    except KmemError as ex:
        return {"skipped": str(ex).splitlines()[0]}


def check_package(package: Package) -> dict[str, Any]:
    """Every check of a package with one kernel, by name: its seconds, or FAILED and why."""
    (entry,) = package.entries
    model, inputs = make_original(entry)
    with torch.no_grad():
        exact, expected = exact_values(model, inputs), model(*inputs)
    allowed = [max(SLACK * error, LEAST_ERROR) for error in errors(expected, exact)]
    checks: dict[str, Callable[[], Any]] = {
        "opcheck": lambda: check_operator(entry, model, inputs),
        "apply": lambda: applied(model, package, lambda: model(*inputs), served=True),
        "compile": lambda: applied(model, package, lambda: compiled(model, inputs)),
        "backend": lambda: compiled(
            model, inputs, backend=compile_graph, options={"packages": [package], "memory": False}
        ),
        "export": lambda: applied(
            model, package, lambda: torch.export.export(model, tuple(inputs)).module()(*inputs)
        ),
    }
    if GPU:
        checks |= {
            "capture": lambda: applied(model, package, lambda: captured(model, inputs)),
            "graphs": lambda: applied(
                model, package, lambda: compiled(model, inputs, mode="reduce-overhead")
            ),
            "aoti": lambda: applied(model, package, lambda: ahead_of_time(model, inputs)),
        }
    row: dict[str, Any] = {"traced": operator(entry).is_traced}
    for name, check in checks.items():
        began = time.perf_counter()
        try:
            with torch.no_grad():
                compare(check(), exact, allowed)
            row[name] = f"{time.perf_counter() - began:.2f}s"
        except Exception as ex:  # noqa: BLE001  # the row says what failed; the others go on
            row[name] = f"FAILED({type(ex).__name__}: {(str(ex).splitlines() or [''])[0]:.200})"
            traceback.print_exc()
    reports = [str(each) for each in kmem.compile_report()]
    row["replaced"] = reports[-1] if reports else ""
    return row


def make_original(entry: Entry) -> tuple[torch.nn.Module, list[Any]]:
    """The module that an entry replaces, and inputs for it, on the device."""
    module = load_original(entry)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = module.Model(*entry.init).train(entry.training)
        return model.to(DEVICE), module.get_inputs()


def exact_values(model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """What a module computes in float64."""
    wide = [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    return tensors_of(copy.deepcopy(model).double()(*wide))


def tensors_of(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def errors(found: Any, exact: Sequence[torch.Tensor]) -> list[float]:
    """Relative errors of outputs, over all elements."""
    return [
        float((mine.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30))
        for mine, theirs in zip(tensors_of(found), exact, strict=True)
    ]


def compare(found: Any, exact: Sequence[torch.Tensor], allowed: Sequence[float]) -> None:
    """Raise AssertionError if values differ by more than what is allowed; None is not compared."""
    if found is None:
        return
    for error, most in zip(errors(found, exact), allowed, strict=True):
        assert error <= most, f"relative error {error:.2g}, allowed {most:.2g}"


def check_operator(entry: Entry, model: torch.nn.Module, inputs: Sequence[Any]) -> None:
    places = [holder_of(model, each.name) for each in entry.state]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    tensors += [holder[name].detach() for holder, name in places]
    known = operator(entry)
    torch.library.opcheck(known.overload, tuple(tensors))
    assert not known.fault, known.fault


def applied(
    model: torch.nn.Module, package: Package, call: Callable[[], Any], *, served: bool = False
) -> Any:
    """What a call gives while the package's kernels are bound to the model."""
    torch._dynamo.reset()
    with kmem.apply(model, package) as handle:
        assert handle.replaced == [""], str(handle)
        found = call()
        if served:
            assert handle.status()[0].served == 1, str(handle)
    return found


def compiled(model: torch.nn.Module, inputs: Sequence[Any], **how: Any) -> Any:
    """Three calls of a compiled model in one graph; a recompilation is an error."""
    torch._dynamo.reset()
    fast = torch.compile(model, fullgraph=True, **how)
    found = fast(*inputs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            found = fast(*inputs)
    return [each.clone() for each in tensors_of(found)]


def captured(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """What a CUDA graph gives at its replay."""
    model(*inputs)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    return found


def ahead_of_time(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """What AOTInductor's library gives, which needs no Python."""
    program = torch.export.export(model, tuple(inputs))
    with tempfile.TemporaryDirectory() as place:
        library = torch._inductor.aoti_compile_and_package(
            program, package_path=str(Path(place) / "model.pt2")
        )
        return torch._inductor.aoti_load_package(library)(*inputs)


# --- buckets


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


def check_buckets(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Kernels and compiled baselines in many processes; then everything timed in one."""
    prepares = options.ends - 0.4 * (options.ends - time.monotonic())
    asked = [
        (name, str(number), str(options.workers))
        for number in range(options.workers)
        for name in reversed(BUCKETS)
    ]
    with ThreadPoolExecutor(1 if options.dry else options.workers) as pool:
        prepared = list(
            pool.map(
                lambda words: ask("prepare", *words, str(place), ends=prepares),
                asked[:2] if options.dry else asked,
            )
        )
    print("prepared", json.dumps(prepared), flush=True)
    rows = {}
    for number, name in enumerate(BUCKETS):
        ends = options.ends if number else options.ends - (options.ends - time.monotonic()) / 2
        rows[name] = time_buckets(name, place, ends)
    return {"prepared": prepared, **rows}


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
    allowed = [max(SLACK * error, LEAST_ERROR) for error in errors(own, exact)]
    pairs = zip(errors(found, exact), allowed, strict=True)
    return package, served and all(error <= most for error, most in pairs)


def time_buckets(name: str, place: Path, ends: float) -> dict[str, Any]:
    """Times of every prepared shape, the kernels' own package among them, and their ratios."""
    rows, chosen = [], []
    for shape in shapes_of(BUCKETS[name]):
        file = place / f"{name}_{label_of(shape)}.json"
        if not file.is_file() or time.monotonic() > ends - 10:
            rows.append({"shape": dict(shape), "late": "not prepared, or no time was left"})
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
    package = make_package(chosen, place / f"{name}_table", name) if chosen else None
    told: dict[str, Any] = {"rows": rows, "table": len(chosen)}
    if package is not None:
        told |= apply_table(package)
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    if ratios:
        told["geometric_mean"] = math.exp(statistics.fmean(map(math.log, ratios)))
        told["worst"] = min(ratios)
    print(name, {key: value for key, value in told.items() if key != "rows"}, flush=True)
    return told


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
    serves = kernel_ms < best_ms
    # without a row in the table the module's own code runs
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
    """Median time of a call on the device, in milliseconds, with a cold cache."""
    for _ in range(5):
        call()
    times = []
    with flushed() as flush:
        for _ in range(repeats):
            flush()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


PARTS: dict[str, Callable[[argparse.Namespace, Path], Any]] = {
    "start": check_start,
    "winners": check_winners,
    "buckets": check_buckets,
}
WORKERS: dict[str, Callable[..., Any]] = {
    "winner": winner_worker,
    "prepare": prepare_worker,
}

if __name__ == "__main__":
    main()
