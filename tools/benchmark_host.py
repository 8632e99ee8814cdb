"""What calls of winning kernels cost the host, beside eager and torch.compile, as one table.

    python tools/benchmark_host.py runs/bench-level2           # the winners of a bench
    python tools/benchmark_host.py softmax matmul_square       # shipped problems, as recipes guess
    python tools/benchmark_host.py --weights                   # also: are kept weights kept right?

On a GPU, for each module: the time on the device, the host's time to issue a call, the time of
calls one after another, that of a CUDA graph, and of the first call. The last line is what has to
hold over all of them: the speedup of calls one after another at least 0.98 of that on the device,
in geometric mean, and no more host time than torch.compile's module; exit code 1 says that one does
not. Wants a quiet host.

Without a GPU the launches are replaced by nothing, and the table has what is left: the Python of a
call in microseconds of processor time, its launches, and its allocations, which are replaced too.
Kernels that also call the library are passed over.
"""

import argparse
import json
import logging
import statistics
import sys
import time
import timeit
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The path above makes the checkout importable without installing it, hence E402.
import torch  # noqa: E402

from kmem.bench.results import read_manifest, read_rows  # noqa: E402
from kmem.codegen.module.assemble import assemble_module  # noqa: E402
from kmem.codegen.module.plan import SitePlan, WorkloadPlan  # noqa: E402
from kmem.devices import named_target  # noqa: E402
from kmem.explore.recipes.cover import cover_graph, find_options  # noqa: E402
from kmem.problem.source.load import build_inputs, execute_problem, load_problem  # noqa: E402
from kmem.problem.tracing.trace import trace_problem  # noqa: E402
from kmem.records import Contract, Precision  # noqa: E402
from kmem.skills import load_recipe, load_skill  # noqa: E402
from kmem.testing import import_source  # noqa: E402

PROBLEMS = (
    *("layer_norm", "softmax", "matmul_square", "linear_swish_scale", "conv2d_relu_bias"),
    *("batched_matmul", "gelu_chain", "sum_reduce", "cumsum", "conv_transpose2d"),
)
LEAST_KEPT = 0.98


@dataclass
class Case:
    """A kernel and the problem that it is for."""

    name: str
    problem: Path
    precision: Precision
    kernel: str | None = None  # its text; None to write one as recipes guess


@dataclass
class Times:
    """One module of one case."""

    problem: str
    module: str
    device_ms: float
    host_us: float
    back_to_back_ms: float
    graph_ms: float | None
    first_s: float


def find_cases(named: list[str]) -> Iterator[Case]:
    """The winners of benches, and shipped problems by name or path."""
    for name in named or PROBLEMS:
        root = Path(name)
        manifest = read_manifest(root) if root.is_dir() else None
        if manifest is None:
            places = (root, ROOT / "problems" / name, root / "problem.py")
            place = next(place for place in places if place.exists())
            file = place if place.is_file() else place / "problem.py"
            yield Case(place.stem, file, Precision.MATCH)
            continue
        paths = {problem.key: Path(problem.path) for problem in manifest.problems}
        for row in read_rows(root):
            kernel = root / "runs" / row.key / "best_kernel.py"
            if row.speedup is not None and kernel.is_file():
                precision = Precision(manifest.settings.precision)
                yield Case(row.problem, paths[row.key], precision, kernel.read_text())


def write_kernel(case: Case) -> str:
    """What recipes make of a problem at the settings that they expect to be the fastest."""
    device, contract = named_target("h200"), Contract(case.precision)
    problem = load_problem(case.problem)
    graph = trace_problem(execute_problem(problem), case.precision)
    recipes = {
        place.name: recipe
        for place in sorted((ROOT / "skills").iterdir())
        if place.is_dir() and (recipe := load_recipe(load_skill(place))) is not None
    }
    options = find_options({"full": graph}, recipes, contract, device)
    sites = tuple(
        SitePlan(
            option.site, option.recipe.emit(option.site, option.ranked[0][1]), option.recipe.name
        )
        for option in cover_graph(graph, options, contract, device)
    )
    plan = WorkloadPlan("full", graph, sites)
    return assemble_module(case.name, problem.source, [plan]).source


# ---- on a GPU


def measure(case: Case, *, weights: bool) -> list[Times]:
    """Eager, torch.compile and the kernel on the same inputs."""
    problem = execute_problem(load_problem(case.problem))
    arguments = problem.get_init_inputs() if hasattr(problem, "get_init_inputs") else []
    device = torch.device("cuda")
    inputs = build_inputs(problem, device, case.precision)
    emitted = import_source(case.kernel or write_kernel(case))
    eager = problem.Model(*arguments).to(device)
    kernel = emitted.ModelNew(*arguments).to(device)
    kernel.load_state_dict(eager.state_dict())
    kernel.train(eager.training)
    models = {"eager": eager, "compile": torch.compile(eager), "kmem": kernel}
    found = []
    with torch.no_grad():
        for name, model in models.items():
            started = time.perf_counter()
            model(*inputs)
            torch.cuda.synchronize()
            first_s = time.perf_counter() - started
            found.append(
                Times(case.name, name, *_time(lambda model=model: model(*inputs)), first_s)
            )
    if weights and hasattr(kernel, "kmem_staged"):
        check_weights(case.name, kernel, eager, emitted, inputs)
    return found


def _time(call: Callable[[], object]) -> tuple[float, float, float, float | None]:
    """Device ms, host us, back-to-back ms and CUDA-graph ms of a call."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once_s = time.perf_counter() - started
    count = max(5, min(20, int(0.4 / once_s)))
    device, host, wall = [], [], []
    for _ in range(3):
        # the host issues all calls while the device sleeps, so that it never waits for them
        torch.cuda._sleep(int(2e9 * min(1.5, count * 0.0015)))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        host.append(_per_call(call, count))
        end.record()
        torch.cuda.synchronize()
        device.append(begin.elapsed_time(end) / count)
        wall.append(_per_call(call, count, waits=True))
    graph_ms = None
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
        graph_ms = 1e3 * _per_call(graph.replay, count, waits=True)
    except RuntimeError as ex:
        print(f"   not captured: {str(ex)[:100]}", file=sys.stderr)
        torch.cuda.synchronize()
    return min(device), 1e6 * statistics.median(host), 1e3 * statistics.median(wall), graph_ms


def _per_call(call: Callable[[], object], count: int, *, waits: bool = False) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    if waits:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def check_weights(
    name: str,
    new: torch.nn.Module,
    eager: torch.nn.Module,
    emitted: types.ModuleType,
    inputs: list[torch.Tensor],
) -> None:
    """Print how wrong the outputs are after each way to change parameters, and what was staged."""
    stage, staged, said = emitted._stage, [0], {}

    def count(*parameters: torch.Tensor) -> object:
        staged[0] += 1
        return stage(*parameters)

    def error() -> str:
        got, right = new(*inputs).double(), eager(*inputs).double()
        return f"{float((got - right).norm() / right.norm()):.1e}"

    def change(step: Callable[[torch.nn.Parameter], object]) -> None:
        for model in (new, eager):
            for parameter in model.parameters():
                step(parameter)

    emitted._stage = count
    new.kmem_staged.forget()
    with torch.no_grad():
        new(*inputs)
        new(*inputs)
        said["stagings of two calls (1)"] = staged[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = new(*inputs)
        said["more in a capture (0)"] = staged[0] - 1
        change(lambda parameter: parameter.mul_(-1.5))
        said["in place"] = error()
        graph.replay()
        torch.cuda.synchronize()
        right = eager(*inputs)
        said["graph after that call"] = f"{float((captured - right).norm() / right.norm()):.1e}"
        change(lambda parameter: setattr(parameter, "data", parameter.data * 0.5))
        said["data replaced"] = error()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            said["another stream"] = error()
        torch.cuda.current_stream().wait_stream(side)
    optimizer = torch.optim.Adam(new.parameters(), lr=0.01, fused=True)
    new(*inputs).square().mean().backward()  # by the reference operators
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        eager.load_state_dict(new.state_dict())
        said["fused optimizer"] = error()
    emitted._stage = stage
    print(f"{name}: " + "; ".join(f"{what} {value}" for what, value in said.items()))


# ---- without a GPU


class _Replaced:
    """A module of which some names are replaced."""

    def __init__(self, module: object, **names: object) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


class _Handles(dict):
    """The handle of a compiled kernel, whatever it was specialised to: it launches nothing."""

    launches = 0

    def get(self, key: object, default: object = None) -> "_Handles":
        return self

    def run(self, *arguments: object) -> None:
        _Handles.launches += 1

    function = packed_metadata = None


def count_python(case: Case) -> tuple[float, int, int]:
    """Microseconds of a call without its launches and allocations; how many there are of each."""
    source = case.kernel or write_kernel(case)
    if "torch.ops." in source.partition("\ndef _forward(")[2]:
        raise ValueError("calls the library, which would compute on the CPU")
    problem = execute_problem(load_problem(case.problem))
    arguments = problem.get_init_inputs() if hasattr(problem, "get_init_inputs") else []
    inputs = build_inputs(problem, torch.device("cpu"), case.precision)
    # tensors of the CPU stand for those of a GPU
    emitted = import_source(source.replace(".is_cpu and not _INTERPRETED", ".is_cuda"))
    made, allocated = {}, [0]

    def allocate(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def kept(*sizes: object, **options: object) -> torch.Tensor:
            allocated[0] += 1
            key = (make, str(sizes) if isinstance(sizes[0], torch.Tensor) else sizes)
            if key not in made:
                made[key] = make(*sizes, **options)
            return made[key]

        return kept

    names = ("empty", "empty_strided", "empty_like", "zeros")
    driver = types.SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
    runtime = types.SimpleNamespace(driver=types.SimpleNamespace(active=driver))
    emitted.torch = _Replaced(torch, **{name: allocate(getattr(torch, name)) for name in names})
    emitted.triton = types.SimpleNamespace(runtime=runtime)
    for value in vars(emitted).values():
        if type(value).__name__ == "_Launch":
            value.handles = _Handles()
    model = emitted.ModelNew(*arguments)
    with torch.no_grad():
        model(*inputs)  # stages what is made of parameters
        _Handles.launches = allocated[0] = 0
        model(*inputs)
        counts = _Handles.launches, allocated[0]
        taken = timeit.repeat(lambda: model(*inputs), number=100, repeat=20, timer=time.thread_time)
    return 1e6 * min(taken) / 100, *counts


# ---- the tables


def render(rows: list[Times]) -> str:
    """The table of what was measured on a GPU."""
    lines = [
        "| problem | module | device ms | host us | back to back ms | graph ms | first call s |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        graph = "" if row.graph_ms is None else f"{row.graph_ms:.4f}"
        lines.append(
            f"| {row.problem} | {row.module} | {row.device_ms:.4f} | {row.host_us:.1f} | "
            f"{row.back_to_back_ms:.4f} | {graph} | {row.first_s:.2f} |"
        )
    return "\n".join(lines)


def judge(rows: list[Times]) -> tuple[float, float]:
    """How much of the device's speedups is kept, and host time over compile's, both as means."""
    by_problem: dict[str, dict[str, Times]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, {})[row.module] = row
    kept, host = [], []
    for modules in by_problem.values():
        kernel, others = modules["kmem"], [modules["eager"], modules["compile"]]
        on_device = min(each.device_ms for each in others) / kernel.device_ms
        in_calls = min(each.back_to_back_ms for each in others) / kernel.back_to_back_ms
        kept.append(in_calls / on_device)
        host.append(kernel.host_us / modules["compile"].host_us)
    return statistics.geometric_mean(kept), statistics.geometric_mean(host)


def main() -> None:
    """Print rows as they come, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="benches, or shipped problems; default: ten")
    parser.add_argument("--weights", action="store_true", help="check what is kept of weights")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    rows: list[Times] = []
    if not torch.cuda.is_available():
        print(f"{'problem':28}{'launches':>9}{'allocations':>12}{'python us':>10}")
    for case in find_cases(asked.cases):
        try:
            if torch.cuda.is_available():
                rows += measure(case, weights=asked.weights)
                print(render(rows[-3:]).split("\n", 2)[2], flush=True)
                torch.cuda.empty_cache()
            else:
                took_us, launches, allocations = count_python(case)
                print(f"{case.name:28}{launches:9}{allocations:12}{took_us:10.1f}", flush=True)
        except Exception as ex:  # noqa: BLE001 - one case says so, the others go on
            print(f"{case.name}: {type(ex).__name__}: {str(ex)[:200]}", file=sys.stderr)
        torch._dynamo.reset()
    if not rows:
        return
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    kept, host = judge(rows)
    print(f"\n{render(rows)}\n\nspeedup kept back to back: {kept:.3f} of the device's")
    print(f"host time over torch.compile's: {host:.2f}")
    raise SystemExit(1 if kept < LEAST_KEPT or host > 1.0 else 0)


if __name__ == "__main__":
    main()
