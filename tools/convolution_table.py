"""Every kernel family of convolutions beside cuDNN, shape by shape: one command, to be repeated.

    python tools/convolution_table.py --out DIR [--seconds 500] [--settings 3] [--only '3x3*']

For each shape of tools/convolution_shapes.py and each recipe that writes it: the settings that the
cost model puts first, then the best with another value of a knob, so that its misses can be read,
and what no card has tried yet (`UNMEASURED`). Each is a row of DIR/rows.jsonl with its predicted
ms, the registers and spilled bytes of its compiled kernels, and on a GPU its median ms by the
judge's clock, with its error against float64 (convolution_clock.py). Beside them stand eager as it
is and cuDNN in fp32, TF32 and fp16, channels-last, its algorithms measured. A page of Markdown
beside them, `table`, is written from all rows at the end of every call.

The same call goes on where an earlier one was cut off: a row of the same kernel text on the same
device is not taken again (with --again those that failed are). Kernels of the next shape are
compiled while those of one are timed. Without a GPU there are no times: kernels are compiled for
--target. Developer tool: no verdict is given, and nothing enters the ledger.
"""

import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convolution_clock import LIBRARY, measure_on_gpu
from convolution_report import write_table
from convolution_shapes import SHAPES, Shape

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import detect_device, named_target
from kmem.errors import KmemError, first_line
from kmem.problem.graph import OpGraph
from kmem.problem.operators import row
from kmem.problem.operators.arithmetic import input_specs
from kmem.problem.operators.table import find_operator
from kmem.problem.source.load import load_problem
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileReport, CompileStatus, last_line
from kmem.recipes import Recipe, Settings, Site
from kmem.records import Contract, Device, Kernel, Knob
from kmem.skills import load_recipe, load_skill

ROOT = Path(__file__).resolve().parent.parent
CONVOLUTIONS = {"conv", "pointwise_conv", "depthwise_conv", "conv_transpose"}
COMPILE_TIMEOUT_S = 240.0
#: Knobs whose values no card has compared yet: each is tried, wherever the cost model puts it.
UNMEASURED = ("gather", "taps", "copies", "programs")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that is to be measured: what is known of it, and the text of its module.

    `source` is None for the library, and of what did not compile.
    """

    row: Row
    source: str | None
    problem: Path


class Rows:
    """The rows of a directory, one JSON line each; the last of a key counts."""

    def __init__(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        self._place = place
        self.by_key: dict[str, Row] = {}
        for line in place.read_text(encoding="utf-8").splitlines() if place.exists() else ():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:  # cut off
                continue
            self._keep(found)

    def _keep(self, found: Row) -> None:
        self.by_key.pop(key_of(found), None)  # the newest row of a key is the last
        self.by_key[key_of(found)] = found

    def add(self, found: Row) -> None:
        """Keep a row, on disk at once."""
        self._keep(found)
        with self._place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    def has(self, wanted: Row, *, again: bool) -> bool:
        """Whether a row is there already; one that failed is not, with `again`."""
        known = self.by_key.get(key_of(wanted))
        return known is not None and not (again and "failure" in known)


def key_of(found: Row) -> str:
    """What identifies a row: device, shape, family, settings, kernel text."""
    return json.dumps(
        [found[name] for name in ("device", "shape", "family", "settings", "kernel")],
        sort_keys=True,
    )


def convolution_recipes() -> dict[str, Recipe]:
    """Every shipped recipe that writes convolutions, by name."""
    paths = sorted((ROOT / "skills").glob("*/recipe.py"))
    loaded = {path.parent.name: load_recipe(load_skill(path.parent)) for path in paths}
    return {name: recipe for name, recipe in loaded.items() if CONVOLUTIONS & set(recipe.operators)}


def convolution_flops(graph: OpGraph) -> float:
    """FLOPs of the convolutions of a graph, as many as the structure asks for."""
    found = 0.0
    for node in graph.nodes:
        operator = find_operator(node.target)
        if operator is not None and isinstance(operator.lowering, row.Convolution):
            found += 2.0 * operator.arithmetic(node, input_specs(graph, node)).conv_fma
    return found


def choose_settings(
    recipe: Recipe, site: Site, device: Device, count: int
) -> list[tuple[dict[str, Knob], float]]:
    """Settings with their predicted ms: `count` as `_spread` has them, and what is not measured.

    Of each combination of values of `UNMEASURED` knobs the best setting is among them, last.
    """
    costs = [
        (recipe.cost_ms(site, each, device), place, each)
        for place, each in enumerate(recipe.space(site, device).settings())
    ]
    ranked = [(each, cost_ms) for cost_ms, _, each in sorted(costs, key=lambda each: each[:2])]
    chosen = _spread(ranked)[:count]
    seen = {_unmeasured(settings) for settings, _ in chosen}
    for settings, cost_ms in ranked:
        if _unmeasured(settings) not in seen:
            seen.add(_unmeasured(settings))
            chosen.append((settings, cost_ms))
    return chosen


def _unmeasured(settings: Settings) -> tuple[Knob | None, ...]:
    return tuple(settings.get(name) for name in UNMEASURED)


def _spread(
    ranked: Sequence[tuple[dict[str, Knob], float]],
) -> list[tuple[dict[str, Knob], float]]:
    """The model's first choice, then the best with another value of a knob, then the rest."""
    seen: set[tuple[str, Knob]] = set()
    first, rest = [], []
    for settings, cost_ms in ranked:
        is_new = not set(settings.items()) <= seen
        (first if is_new else rest).append((settings, cost_ms))
        seen.update(settings.items())
    return [*first, *rest]


class Preparation:
    """Traces shapes, has recipes write them, and compiles what no row has yet."""

    def __init__(
        self, options: argparse.Namespace, device: Device, rows: Rows, processes: CompileProcesses
    ) -> None:
        self._options, self._device = options, device
        self._rows, self._processes = rows, processes
        self._recipes = convolution_recipes()
        self._where = device.name if options.gpu else f"compiled for {device.name}"

    def prepare(self, shape: Shape) -> list[Entry]:
        """The rows that are missing of one shape, the library's first."""
        place = self._options.out / "problems" / f"{SHAPES.index(shape):02}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(shape.source, encoding="utf-8")
        traced = trace_at_full_size(load_problem(place), Contract(), self._device)
        about = {
            "device": self._where,
            "shape": shape.name,
            "flops": convolution_flops(traced.graph),
            "bound_ms": traced.bound.time_ms if traced.bound else None,
        }
        entries = []
        if self._options.gpu:
            for mode in LIBRARY[shape.dtype]:
                entries.append(
                    Entry({**about, "family": mode, "settings": {}, "kernel": None}, None, place)
                )
        written = self._write(traced, about)
        entries += [Entry(found, text, place) for found, text in written]
        again = self._options.again
        missing = [each for each in entries if not self._rows.has(each.row, again=again)]
        return self._compile(traced, missing)

    def _write(self, traced: TracedProblem, about: Row) -> Iterator[tuple[Row, str]]:
        for family, recipe in self._recipes.items():
            if not fnmatch.fnmatch(family, self._options.family):
                continue
            sites = [
                site
                for site in recipe.match(traced.graph, traced.contract)
                if site.operator in CONVOLUTIONS
            ]
            if not sites:
                continue
            site = sites[0]
            chosen = choose_settings(recipe, site, self._device, self._options.settings)
            for settings, predicted_ms in chosen:
                plan = SitePlan(site, recipe.emit(site, settings), recipe.name)
                plans = [WorkloadPlan("full", traced.graph, (plan,))]
                text = assemble_module("convolution table", traced.problem.source, plans).source
                yield (
                    {
                        **about,
                        "family": family,
                        "settings": settings,
                        "kernel": Kernel(text).hash,
                        "predicted_ms": predicted_ms,
                        "left_to_eager": len(traced.graph.nodes) - len(site.nodes),
                    },
                    text,
                )

    def _compile(self, traced: TracedProblem, entries: Sequence[Entry]) -> list[Entry]:
        kernels = [Kernel(entry.source) for entry in entries if entry.source is not None]
        reports: dict[str, CompileReport] = {}
        if kernels:
            with CompilePool(traced, processes=self._processes) as pool:
                for report in pool.compile(kernels, timeout_s=COMPILE_TIMEOUT_S):
                    reports[report.kernel] = report
        return [_with_figures(entry, reports) for entry in entries]


def _with_figures(entry: Entry, reports: Mapping[str, CompileReport]) -> Entry:
    """A row with what its compilation found."""
    if entry.source is None:
        return entry
    report = reports[entry.row["kernel"]]
    if report.status is not CompileStatus.OK:
        failed = {**entry.row, "failure": f"{report.status.value}: {last_line(report)}"[:300]}
        return Entry(failed, None, entry.problem)
    return Entry({**entry.row, **read_figures(report)}, entry.source, entry.problem)


def read_figures(report: CompileReport) -> Row:
    """Launches of a call, the registers of the one with most to do, and what any of them spills."""
    own = [launch for launch in report.launches if "static__library" not in launch.metrics]
    if not own:
        return {"launches": 0, "vendor_calls": len(report.vendor_ops)}

    def work(launch: Any) -> tuple[bool, float]:
        x, y, z = launch.grid
        each = launch.metrics
        # of a program that walks over tiles nothing but its instructions is known
        multiplies = any(each[name] for name in each if name.endswith("tensor_flops"))
        program = each.get("static__program_flops", 0.0) + each.get("static__program_load_bytes", 0)
        return multiplies, x * y * z * program

    main = max(own, key=work)
    return {
        "launches": len(own),
        "vendor_calls": len(report.vendor_ops),
        "main": main.name,
        "registers": int(main.metrics["static__registers_per_thread"]),
        "shared_bytes": int(main.metrics["static__shared_bytes_per_block"]),
        "blocks_per_sm": main.metrics["static__blocks_per_sm"],
        "spilled_bytes": int(max(each.metrics["static__stack_bytes_per_thread"] for each in own)),
    }


class Measuring:
    """Times rows in a process of its own, which is replaced if a kernel breaks it."""

    def __init__(self, device: Device) -> None:
        self._l2_bytes = device.l2_bytes
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Measuring":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._executor = None

    def measure(self, entry: Entry) -> Row:
        """A row with its times and error, or with its failure."""
        if self._executor is None:
            # a forked process cannot use CUDA once its parent has
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, mp_context=context)
        words = (str(entry.problem), entry.row["family"], entry.source, self._l2_bytes)
        try:
            found: Row = dict(self._executor.submit(measure_on_gpu, *words).result())
        except BrokenProcessPool:
            found = {"failure": "its process died"}
        # an illegal access leaves nothing that works in the process
        if "CUDA error" in found.get("failure", "") or "died" in found.get("failure", ""):
            self._end()
        return {**entry.row, **found}


def describe(found: Row) -> str:
    """A row in one line."""
    if "failure" in found:
        return f"{found['shape']:36} {found['family']:24} {found['failure'][:120]}"
    said = f"{found['shape']:36} {found['family']:24}"
    if "ms" in found:
        said += f" {found['ms']:8.4f} ms {found['flops'] / found['ms'] / 1e9:6.0f} TFLOP/s"
        said += f" error {found['error']:.1e}"
    if "predicted_ms" in found:
        said += f" predicted {found['predicted_ms']:8.4f} ms"
    if "registers" in found:
        said += f" {found['registers']:3} registers, {found['spilled_bytes']} bytes spilled"
    return said


def fill(options: argparse.Namespace, device: Device, rows: Rows) -> bool:
    """Take the rows that are missing until the time is up; whether none is left."""
    ends = time.monotonic() + options.seconds
    wanted = [shape for shape in SHAPES if fnmatch.fnmatch(shape.name, options.only)]
    cache = options.out / "cache"
    # where the process that measures finds what was compiled
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    count = options.jobs or max(1, len(os.sched_getaffinity(0)) - 2)
    with (
        CompileProcesses(count, cache) as processes,
        ThreadPoolExecutor(1) as ahead,
        Measuring(device) as measuring,
    ):
        preparation = Preparation(options, device, rows, processes)
        future: Future[list[Entry]] | None = None
        try:
            for place, shape in enumerate(wanted):
                if time.monotonic() > ends:
                    return False
                future = future or ahead.submit(preparation.prepare, shape)
                try:
                    entries = future.result()
                except KmemError as ex:  # such as a shape that does not fit the card
                    print(f"{shape.name}: {first_line(ex)}", file=sys.stderr, flush=True)
                    entries = []
                following = wanted[place + 1 : place + 2]
                future = ahead.submit(preparation.prepare, following[0]) if following else None
                for entry in entries:
                    if time.monotonic() > ends:
                        return False
                    is_timed = options.gpu and "failure" not in entry.row
                    found = measuring.measure(entry) if is_timed else entry.row
                    rows.add(found)
                    print(describe(found), flush=True)
        finally:
            # what is being compiled ahead ends with its processes
            processes.close()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT", "runs")) / "convolutions",
        help="directory of the rows and the page (default: $OUT/convolutions)",
    )
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no row after them")
    parser.add_argument("--settings", type=int, default=3, help="of each family and shape")
    parser.add_argument("--only", default="*", help="glob on names of shapes")
    parser.add_argument("--family", default="*", help="glob on names of recipes")
    parser.add_argument("--target", default="h200", help="to compile for, without a GPU")
    parser.add_argument("--jobs", type=int, help="compilers at once (default: cores less two)")
    parser.add_argument("--again", action="store_true", help="take failed rows once more")
    options = parser.parse_args()
    present = detect_device()
    options.gpu = present is not None
    rows = Rows(options.out / "rows.jsonl")
    is_complete = fill(options, present or named_target(options.target), rows)
    table = options.out / "table.md"
    table.write_text(write_table(list(rows.by_key.values())), encoding="utf-8")
    print(f"{table}: {len(rows.by_key)} rows; {'complete' if is_complete else 'call again'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
