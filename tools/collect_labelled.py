"""Profiles without counters, each with the skills that are right for it.

    python tools/collect_labelled.py [--read-again]

It adds to tests/data/compiled_profiles.jsonl what is not there yet. With --read-again it compiles
nothing, but reads anew what a graph and a text show (operators, patterns, features of the source),
after a change of what is read.

Three sources. The file before.py of each skill's examples: the skill was written for such a kernel.
The sick kernels of tests/planted; what is right for one stands in RIGHT, by what its bottleneck's
fix is. And those of tests/sick, made for the purpose: of many kinds, over families of operators,
each with what mends its kind. Each is compiled for an H200 and profiled by the static profiler,
with the problem's bound, and its operators as `kmem profile` names them. Which half a case belongs
to follows from its name alone; those of tests/sick by kind and family, so that none of the unseen
ones has a sibling that was tuned on. `tools/retrieval_hits.py` asks for the skills.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kmem.cli.actions.stages import graph_operators
from kmem.default_plugins.executors import LocalExecutor
from kmem.devices import named_target
from kmem.errors import KmemError
from kmem.plugins import build_plugin_manager
from kmem.plugins import collect as collect_plugins
from kmem.problem.costs.bound import graph_bound
from kmem.problem.features.patterns import find_patterns
from kmem.problem.source.load import FULL, execute_problem, load_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.profile.collect import collect_profile
from kmem.profile.static import StaticProfiler
from kmem.profile.structure import read_structure
from kmem.records import Contract, Kernel, Profile, content_hash
from kmem.serialize import to_data, to_json
from kmem.skills import load_skill

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from sick import sick_kernels  # noqa: E402 - what the line above makes importable

CASES = ROOT / "tests" / "data" / "compiled_profiles.jsonl"
TARGET = "h200"
#: The skills that fix what was planted.
RIGHT = {
    "few_programs": ("split-reduction", "fill-the-grid"),
    "lone_loads": ("more-loads-in-flight", "raise-occupancy", "widen-vector-access"),
    "mostly_masked": ("row-across-programs", "several-rows-per-program", "drop-masks-when-even"),
    "needless_arithmetic": ("reduce-instruction-count", "remove-dead-work", "packed-half-math"),
    "one_program_a_processor": ("raise-occupancy", "fit-smaller-cards", "more-work-per-thread"),
    "read_again": ("fuse-pointwise-chain",),
    "scalar_product": ("tile-matmul", "wgmma-tile-shapes", "bf16-tensor-core-matmul"),
    "special_functions": ("fast-transcendentals",),
    "spilled_tile": ("cut-live-ranges", "no-giant-tiles", "reduce-unrolling"),
    "strided_lanes": ("coalesce-lane-axis",),
    "tail_wave": ("fill-the-grid", "split-reduction", "persistent-programs"),
    "tiny_launches": ("cuda-graph-replay", "cached-launch", "fuse-pointwise-chain"),
    "wide_tile_alone": ("online-softmax", "tune-warps-and-stages", "cut-live-ranges"),
    "window_from_cache": ("stencil-register-tiling", "separable-pooling", "running-window-sums"),
}


class Case(NamedTuple):
    """What is profiled, and what is right for it.

    `about` names the operator where the module is nothing but its own kernel, of which no graph
    tells: an example is about its skill's operator. `group` is what the half follows from.
    """

    name: str
    problem: Path
    kernel_class: str
    right: tuple[str, ...]
    group: str
    about: tuple[str, ...] = ()


def sources(home: Path) -> Iterator[Case]:
    """The cases; texts that are no files yet are written to a directory."""
    for name, right in RIGHT.items():
        place, title = ROOT / "tests" / "planted" / f"{name}.py", f"planted {name}"
        yield Case(title, place, "Sick", right, title)
    for before in sorted((ROOT / "skills").glob("*/examples/before.py")):
        skill = before.parent.parent.name
        operators = load_skill(before.parent.parent).operators
        about = tuple(name for name in operators[:1] if name != "any")
        yield Case(f"example {skill}", before, "Model", (skill,), f"example {skill}", about)
    for sick in sick_kernels():
        place = home / f"{content_hash(sick.name)}.py"
        place.write_text(sick.text, encoding="utf-8")
        yield Case(sick.name, place, "ModelNew", sick.right, f"{sick.kind}: {sick.family}")


def collect(case: Case) -> dict[str, object]:
    """One case as it is kept."""
    traced, kernel = traced_case(case)
    profiler = StaticProfiler()
    profile = collect_profile(
        kernel,
        traced,
        {profiler.name: profiler},
        LocalExecutor(),
        present=False,
        name=profiler.name,
    )
    return {
        "name": case.name,
        "group": case.group,
        "half": "tuned" if int(content_hash(case.group)[:8], 16) % 2 else "unseen",
        "right": list(case.right),
        "bound": to_data(traced.bound) if traced.bound else None,
        **_shown(case, traced),
        **_pack(profile),
    }


def read_again(case: Case, kept: dict) -> dict:
    """A case that is kept, with what its graph and its text show by now."""
    traced, kernel = traced_case(case)
    shown = _shown(case, traced)
    read = {"structure": to_data(read_structure(kernel)), "patterns": shown["patterns"]}
    return {**kept, **shown, "profile": {**kept["profile"], **read}}


def traced_case(case: Case) -> tuple[TracedProblem, Kernel]:
    """The problem of a case, traced for the target, and the kernel that is profiled."""
    device, contract = named_target(TARGET), Contract()
    problem = load_problem(case.problem)
    graph = trace_problem(execute_problem(problem, FULL), contract.precision)
    bound = None if graph.opaque_reason else graph_bound(graph, device, contract)
    traced = TracedProblem(problem, contract, device, {"full": FULL}, {"full": graph}, bound)
    source = problem.source.replace(f"class {case.kernel_class}(", "class ModelNew(")
    return traced, Kernel(source)


def _shown(case: Case, traced: TracedProblem) -> dict[str, object]:
    (graph,) = traced.graphs.values()
    return {
        "patterns": None if graph.opaque_reason else list(find_patterns(graph)),
        "operators": name_operators_of(traced) or list(case.about),
    }


def name_operators_of(traced: TracedProblem) -> list[str]:
    """What `kmem profile` calls the operators; nothing for a module that is its own kernel."""
    registry = collect_plugins(build_plugin_manager())
    return [name for name in graph_operators(traced, registry) if name != "opaque"]


def _pack(profile: Profile) -> dict[str, object]:
    """A profile with each distinct launch once, and their order: a loop launches the same often."""
    texts = [to_json(replace(launch, serves=())) for launch in profile.launches]
    distinct = list(dict.fromkeys(texts))
    places = {text: place for place, text in enumerate(distinct)}
    return {
        "profile": to_data(replace(profile, launches=())),
        "launches": [json.loads(text) for text in distinct],
        "order": [places[text] for text in texts],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read-again", action="store_true", help="Read graphs and texts anew.")
    options = parser.parse_args()
    lines = CASES.read_text(encoding="utf-8").splitlines() if CASES.is_file() else []
    known = {case["name"]: case for case in map(json.loads, lines)}
    with TemporaryDirectory() as home:
        if options.read_again:
            for case in sources(Path(home)):
                if case.name in known:
                    known[case.name] = read_again(case, known[case.name])
            CASES.write_text("".join(map(_line, known.values())), encoding="utf-8")
            return
        with CASES.open("a", encoding="utf-8") as file:
            for case in sources(Path(home)):
                if case.name in known:
                    continue
                try:
                    found = collect(case)
                except KmemError as ex:
                    print(f"{case.name}: left out, {str(ex).splitlines()[0]}", file=sys.stderr)
                    continue
                file.write(_line(found))
                file.flush()
                print(case.name, flush=True)


def _line(case: dict[str, object]) -> str:
    return json.dumps(case, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()
