"""Is a planted bottleneck named, and no healthy twin accused? `tests/planted` before the diagnosis.

    python tools/planted_bottlenecks.py                 compiled for an H200, without counters
    python tools/planted_bottlenecks.py --ncu --out DIR on a GPU: one call of ncu counts them all

A sick kernel is named if the diagnosis or one of its secondary bottlenecks is one of its names. Its
healthy twin is accused if the diagnosis names one of them. With --out the table, the diagnoses and
ncu's report are kept there; `--report FILE` reads such a report again instead of asking ncu.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from kmem.devices import detect_device, named_target
from kmem.diagnose.bottleneck import diagnose
from kmem.problem.costs.bound import graph_bound
from kmem.problem.source.load import FULL, execute_problem, load_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.profile.ncu import ncu_command
from kmem.profile.ncu_csv import read_report
from kmem.profile.static import StaticProfiler
from kmem.records import Contract, Device, Diagnosis, Kernel, Launch, Profile
from kmem.serialize import to_data

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests" / "planted"
SIDES = ("Sick", "Healthy")
TARGET = "h200"
#: Forwards that are timed together.
_TIMED = 5


@dataclass(frozen=True)
class Said:
    """What the diagnosis said of one kernel."""

    name: str
    side: str
    names: tuple[str, ...]
    diagnosis: Diagnosis

    @property
    def is_right(self) -> bool:
        """Whether a sick kernel is named, or a healthy one not accused."""
        told = [self.diagnosis.bottleneck.value]
        if self.side == "Healthy":
            return told[0] not in self.names
        told += [each.value for each in self.diagnosis.secondary]
        return not set(told).isdisjoint(self.names)


def planted() -> list[str]:
    """The names of the pairs."""
    return sorted(path.stem for path in PLANTED.glob("*.py") if path.stem != "__init__")


def traced(name: str, device: Device) -> TracedProblem:
    """A pair's problem, traced."""
    problem = load_problem(PLANTED / f"{name}.py")
    graph = trace_problem(execute_problem(problem, FULL), Contract().precision)
    bound = graph_bound(graph, device, Contract())
    return TracedProblem(problem, Contract(), device, {"full": FULL}, {"full": graph}, bound)


def names_of(name: str) -> tuple[str, ...]:
    return tuple(_module(name).NAMES)


def _module(name: str):  # noqa: ANN202 - a module of the corpus
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        return import_module(f"planted.{name}")
    finally:
        sys.path.pop(0)


def compiled(device: Device, wanted: Sequence[str]) -> Iterator[Said]:
    """What is said without counters."""
    for name in wanted:
        about = traced(name, device)
        for side in SIDES:
            source = about.problem.source.replace(f"class {side}(", "class ModelNew(")
            kernel = Kernel(source)
            profile = StaticProfiler().profile(kernel, about, None)  # type: ignore[arg-type]
            profile = replace(profile, bound=about.bound)
            yield Said(name, side, names_of(name), _diagnose(profile, about))


def _diagnose(profile: Profile, about: TracedProblem, wall_ms: float | None = None) -> Diagnosis:
    return diagnose(profile, about.device, about.bound, latency_ms=wall_ms)


def counted(
    device: Device,
    launches: Sequence[Launch],
    wanted: Sequence[str],
    walls_ms: Mapping[str, float],
) -> Iterator[Said]:
    """What is said with ncu's counters; `walls_ms` are times of whole forwards, where known."""
    for name in wanted:
        about = traced(name, device)
        for side in SIDES:
            own = [each for each in launches if f"{name}_{side.lower()}" in each.name]
            profile = Profile("", "ncu", device.name, False, tuple(own))
            wall_ms = walls_ms.get(f"{name} {side}")
            if own:
                yield Said(name, side, names_of(name), _diagnose(profile, about, wall_ms))


def launch_all(wanted: Sequence[str]) -> None:
    """Run every kernel twice; ncu watches the second time. For the process that ncu starts."""
    import torch

    cudart = torch.cuda.cudart()
    for name in wanted:
        module = _module(name)
        inputs = [tensor.cuda() for tensor in module.get_inputs()]
        for side in SIDES:
            model = getattr(module, side)().cuda()
            model(*inputs)
            torch.cuda.synchronize()
            cudart.cudaProfilerStart()
            model(*inputs)
            torch.cuda.synchronize()
            cudart.cudaProfilerStop()
        del inputs
        torch.cuda.empty_cache()


def time_all(wanted: Sequence[str]) -> dict[str, float]:
    """The time of one forward of each kernel in ms, launches and all."""
    import torch

    found = {}
    for name in wanted:
        module = _module(name)
        inputs = [tensor.cuda() for tensor in module.get_inputs()]
        for side in SIDES:
            model = getattr(module, side)().cuda()
            model(*inputs)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(_TIMED):
                model(*inputs)
            torch.cuda.synchronize()
            found[f"{name} {side}"] = 1e3 * (time.perf_counter() - begun) / _TIMED
        del inputs
        torch.cuda.empty_cache()
    return found


def count(report: Path, wanted: Sequence[str]) -> None:
    """Let ncu count all kernels in one call."""
    program = (sys.executable, __file__, "--launch", *wanted)
    words = ncu_command("ncu", program, log=str(report), launch_limit=1024)
    subprocess.run(words, check=True, cwd=ROOT)


def table(said: Sequence[Said]) -> str:
    """The answers as Markdown."""
    lines = ["| kernel | planted | said | beside | right |", "|---|---|---|---|---|"]
    for each in said:
        found = each.diagnosis
        beside = ", ".join(other.value for other in found.secondary or found.possible[:3])
        lines.append(
            f"| {each.name} {each.side.lower()} | {', '.join(each.names)} | "
            f"{found.bottleneck.value} | {beside} | {'yes' if each.is_right else 'no'} |"
        )
    for side, verb in (("Sick", "named"), ("Healthy", "not accused")):
        own = [each for each in said if each.side == side]
        lines.append(f"\n{side}: {sum(each.is_right for each in own)} of {len(own)} {verb}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Only these pairs.")
    parser.add_argument("--ncu", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = options.names or planted()
    if options.launch:
        launch_all(wanted)
        return
    started = time.monotonic()
    out = options.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if options.ncu or options.report:
        device = (detect_device() if options.ncu else None) or named_target(TARGET)
        report = options.report or (out or Path.cwd()).resolve() / "planted.csv"
        walls = report.with_suffix(".walls.json")
        if options.ncu:
            walls.write_text(json.dumps(time_all(wanted)), encoding="utf-8")
            count(report, wanted)
        known = json.loads(walls.read_text(encoding="utf-8")) if walls.is_file() else {}
        said = list(counted(device, read_report(report), wanted, known))
    else:
        said = list(compiled(named_target(TARGET), wanted))
    text = table(said)
    print(text)
    print(f"\n{time.monotonic() - started:.0f} s")
    if out is not None:
        (out / "planted.md").write_text(text + "\n", encoding="utf-8")
        (out / "planted.jsonl").write_text(
            "".join(
                json.dumps({"name": each.name, "side": each.side, **to_data(each.diagnosis)}) + "\n"
                for each in said
            ),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
