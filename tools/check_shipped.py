"""Check what is shipped of every winner: `python tools/check_shipped.py [PROBLEM...]`.

Each problem is optimised (or its last run in `--runs` is taken), its winner exported, and the
package is put through `torch.library.opcheck`, `torch.compile(fullgraph=True)` with `kmem.apply`
and with `backend="kmem"`, `torch.export`, and on a GPU CUDA-graph capture and AOTInductor: the same
values as the module within twice what its contract allows, and no recompilation. Prints a row for
each and writes shipped.json under $OUT (default: the working directory). Without a GPU the kernels
are those for the small sizes, in the Triton interpreter.
"""

import argparse
import ast
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

import kmem
from kmem.codegen.constants import source_at
from kmem.deploy.backend import compile_graph
from kmem.deploy.package import Package, export_package
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.sharing import holder_of
from kmem.deploy.shipped.table import Entry, load_original
from kmem.errors import KmemError
from kmem.measure.bundle import read_bundle, write_bundle
from kmem.problem.load import load_problem
from kmem.problem.substitution import substitute
from kmem.problem.workload import derive_small_workload
from kmem.records import Kernel
from kmem.run.result import Result

PROBLEMS = Path(__file__).parent.parent / "problems"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="names in problems/ or files (default: all)")
    parser.add_argument("--runs", type=Path, default=Path("runs/shipped"), help="where runs lie")
    parser.add_argument("--minutes", type=float, default=1.0, help="budget of a run (default: 1)")
    parser.add_argument("--winners", type=int, default=20, help="stop after so many (default: 20)")
    options = parser.parse_args()
    names = options.problems or sorted(each.parent.name for each in PROBLEMS.glob("*/problem.py"))
    rows: list[dict[str, Any]] = []
    for name in names:
        if sum("opcheck" in row for row in rows) >= options.winners:
            break
        row = check_problem(name, options.runs, options.minutes)
        rows.append({"problem": name, **row})
        print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    place = Path(os.environ.get("OUT", ".")) / "shipped.json"
    place.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    winners = [row for row in rows if "opcheck" in row]
    bad = [row["problem"] for row in winners if any("FAILED" in str(v) for v in row.values())]
    print(f"{len(winners)} winners, {len(bad)} with a failure: {', '.join(bad)}; {place}")


def check_problem(name: str, runs: Path, minutes: float) -> dict[str, Any]:
    """What became of each check of one problem's winner."""
    file = PROBLEMS / name / "problem.py"
    try:
        result = find_run(file if file.is_file() else Path(name), runs, minutes)
        if not result.is_faster:
            return {"skipped": "no winner"}
        with tempfile.TemporaryDirectory() as place:
            shipped = result if GPU else at_small_sizes(result, Path(place) / "small")
            package = export_package([shipped], Path(place) / "package", "shipped")
            return check_package(package)
    except KmemError as ex:
        return {"skipped": str(ex).splitlines()[0]}


def find_run(problem: Path, runs: Path, minutes: float) -> Result:
    """The run of a problem below `runs`, made if there is none."""
    place = runs / (problem.parent.name if problem.name == "problem.py" else problem.stem)
    if (place / "result.json").is_file():
        return kmem.load(place)
    return kmem.optimize(
        problem, target=None if GPU else "h200", rounds=0, minutes=minutes, out=place
    )


def at_small_sizes(result: Result, directory: Path) -> Result:
    """The winner of a run as it is for the small workload, as a run of its own."""
    problem = result.run.problem
    workload = derive_small_workload(problem)
    text = ast.unparse(substitute(problem, dict(workload.constants)))
    if workload.small_inputs:
        text += "\n\nget_inputs = get_small_inputs\n"
    path = directory / "problem.py"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    small = load_problem(path)
    best = result.outcome.best
    source = source_at(best.candidate.kernel, "small")
    kernel = Kernel(source)
    (directory / "best_kernel.py").write_text(source, encoding="utf-8")
    bundle = replace(read_bundle(result.evidence_path), problem=small, kernel_source=source)
    write_bundle(directory / "evidence" / f"{kernel.hash}.json", bundle)
    candidate = replace(best.candidate, kernel=kernel)
    outcome = replace(result.outcome, best=replace(best, candidate=candidate))
    return Result(replace(result.run, problem=small, out_dir=str(directory)), outcome)


def check_package(package: Package) -> dict[str, Any]:
    """Every check of a package with one kernel, by name: its seconds, or FAILED and why."""
    (entry,) = package.entries
    table = json.loads((package.directory / package.name / "table.json").read_text())
    known = table["entries"][0]
    allowed = 2 * max(known["accuracy"]["allowed_error"], 1e-5)
    module = load_original(entry)
    torch.manual_seed(0)
    with torch.device("cuda" if GPU else "cpu"):
        model = module.Model(*entry.init).train(entry.training)
        inputs = module.get_inputs()
    if known["precision"] == "bf16":
        model = model.to(torch.bfloat16)
        inputs = [v.bfloat16() if is_float(v) else v for v in inputs]
    with torch.no_grad():
        expected = model(*inputs)
    torch._dynamo.reset()
    checks: dict[str, Callable[[], Any]] = {
        "opcheck": lambda: check_operator(entry, model, inputs),
        "apply": lambda: applied(model, package, lambda: model(*inputs), served=True),
        "compile": lambda: applied(model, package, lambda: compiled(model, inputs)),
        "backend": lambda: compiled(
            model, inputs, backend=compile_graph, options={"packages": [package]}
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
                compare(check(), expected, allowed)
            row[name] = f"{time.perf_counter() - began:.2f}s"
        except Exception as ex:  # noqa: BLE001  # the row says what failed; the others go on
            row[name] = f"FAILED({type(ex).__name__}: {(str(ex).splitlines() or [''])[0]:.200})"
            traceback.print_exc()
    reports = [str(each) for each in kmem.compile_report()]
    row["replaced"] = reports[-1] if reports else ""
    return row


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def compare(found: Any, expected: Any, allowed: float) -> None:
    """Raise AssertionError if values differ by more than what is allowed; None is not compared."""
    if found is None:
        return
    pairs = zip(*([v] if isinstance(v, torch.Tensor) else v for v in (found, expected)))
    for mine, theirs in pairs:
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30)
        assert error <= allowed, f"relative error {error:.2g}, allowed {allowed:.2g}"


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
    return found.clone() if isinstance(found, torch.Tensor) else [each.clone() for each in found]


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


if __name__ == "__main__":
    main()
