"""Judge and measure the examples of every skill, and ship the outcomes.

    python tools/measure_skill_examples.py [NAME...]

On a GPU each pair is judged in full by `kmem.measure.judge` (the problem is before.py, the
candidate after.py with its `Model` called `ModelNew`) and timed in pairs against before.py as it
stands. Every verdict becomes an `Outcome` in the memory file `--memory` when it comes, so that an
interrupted call goes on where it was; then that memory is exported to `--export`. Pairs run in
`--jobs` processes: the judge's lease on the GPU lets one be timed alone, while others start workers
and compile.

Without a GPU, `--check` gives the verdicts of the interpreter at small sizes and records nothing.
"""

import argparse
import logging
import multiprocessing
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from kmem.devices import detect_device, named_target
from kmem.errors import KmemError, first_line
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.statistics import estimated_timing
from kmem.memory.location import default_db_path
from kmem.memory.store import Memory
from kmem.memory.team.exchange import export_outcomes
from kmem.problem.costs.bound import graph_bound
from kmem.problem.graph import graph_sizes
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.load import FULL, execute_problem, load_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import (
    Baseline,
    Bottleneck,
    Bound,
    Contract,
    Device,
    Kernel,
    Measurement,
    Move,
    Outcome,
    Problem,
    Status,
)
from kmem.run.setup.session import versions
from kmem.skills import Skill, load_skill

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
SKILLS = ROOT / "skills"
#: On a lent GPU machine only what lies under $OUT comes back.
OUT = Path(os.environ["OUT"]) if "OUT" in os.environ else None
MEMORY = (OUT or default_db_path().parent) / "skill_examples.db"
EXPORT = (OUT or ROOT / "db" / "evidence") / "skill_examples.jsonl"
WANTED_RATIO = 1.2
ORIGIN = "kmem-library"
#: Where the module is not measured: estimates and bounds are for this device.
TARGET = "h200"
#: For 16 cores and the 80 GB of an H100: each job has up to three workers, and holds inputs of 2
#: GiB several times over, partly in float64.
JOBS = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """One skill with examples, as the judge sees it.

    before.py is the problem, after.py the kernel.
    """

    skill: Skill
    problem: Problem
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a job sends back: the measurement and what identifies the problem's graph."""

    measurement: Measurement
    graph_hash: str
    structure_hash: str
    sizes: tuple[int, ...]
    bound: Bound | None


def load_pair(directory: Path) -> Pair:
    """The examples of one skill directory. Raises SkillError, ProblemError."""
    skill = load_skill(directory)
    problem = replace(
        load_problem(directory / "examples" / "before.py"), name=f"skills/{skill.name}/examples"
    )
    after = (directory / "examples" / "after.py").read_text(encoding="utf-8")
    flags = ("algebraic",) if Bottleneck.ALGORITHMIC in skill.bottlenecks else ()
    return Pair(
        skill, problem, Kernel(re.sub(r"\bModel\b", "ModelNew", after), problem.hash, flags=flags)
    )


def judge_pair(pair: Pair, contract: Contract, device: Device, gpu: bool, place: Path) -> Verdict:
    """Judge one pair with everything the judge has; runs in a process of its own.

    Without a GPU at the small size, untimed.
    """
    graph = trace_problem(execute_problem(pair.problem), contract.precision)
    bound = graph_bound(graph, device, contract)
    workloads = {"full": FULL, "small": derive_small_workload(pair.problem)}
    with (
        tempfile.TemporaryDirectory(prefix="judge-", dir=place, ignore_cleanup_errors=True) as work,
        Judge(
            TracedProblem(pair.problem, contract, device, workloads, {"full": graph}, bound),
            JudgeSettings(
                seed=secrets.randbits(48),
                gpu=gpu,
                work_dir=Path(work),
                cache_dir=place / "cache",
            ),
            # a check has no time: nothing of it is recorded or shown
            estimate_ms=None if gpu else lambda kernel: 0.0,
        ) as judge,
    ):
        # The module as it stands is the only one to beat. The judge times it itself, pair by pair:
        # of the baseline it takes the name.
        eager = Baseline("eager", estimated_timing(bound.time_ms if bound else 0.0), estimated=True)
        measurement = judge.verify(pair.kernel, [eager] if gpu else [])
    if gpu:
        # this process goes on to another pair, and its neighbours need the memory
        torch.cuda.empty_cache()
    # All opaque graphs are alike, so the text says which this is.
    graph_hash, structure_hash = (
        (pair.problem.hash, pair.problem.hash)
        if graph.opaque_reason
        else (graph.hash, graph.structure_hash)
    )
    return Verdict(measurement, graph_hash, structure_hash, graph_sizes(graph), bound)


def outcome(
    pair: Pair, verdict: Verdict, contract: Contract, device: Device, found: dict[str, str]
) -> Outcome:
    """What the ledger keeps: before.py is the parent and the baseline, named "before"."""
    measurement, timing = verdict.measurement, verdict.measurement.timing
    return Outcome(
        problem=pair.problem.name,
        graph_hash=verdict.graph_hash,
        structure_hash=verdict.structure_hash,
        operators=pair.skill.operators,
        workload="full",
        device=device.full_name,
        arch=device.arch,
        contract=contract,
        skill=pair.skill.name,
        choices=(),
        move=Move.FIX,
        bottleneck=None,
        signature=None,
        source_hash=pair.kernel.hash,
        parent_hash=pair.problem.hash,
        status=measurement.status,
        latency_ms=timing.latency_ms if timing else None,
        latency_ms_p20=timing.latency_ms_p20 if timing else None,
        latency_ms_p80=timing.latency_ms_p80 if timing else None,
        parent_ms=timing.reference_ms if timing else None,
        baseline="before" if timing else None,
        baseline_ms=timing.reference_ms if timing else None,
        ratio=timing.ratio if timing else None,
        ratio_low=timing.ratio_low if timing else None,
        ratio_high=timing.ratio_high if timing else None,
        bound_ms=verdict.bound.time_ms if verdict.bound else None,
        flags=measurement.flags,
        versions=found,
        origin=ORIGIN,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        sizes=verdict.sizes,
    )


def recorded(memory: Memory, pair: Pair, device: Device) -> Outcome | None:
    """The newest verdict on these two texts on this architecture, if there is one."""
    past = memory.ledger.outcomes(skill=pair.skill.name, arch=device.arch)
    mine = [
        one
        for one in past
        if (one.source_hash, one.parent_hash, one.origin)
        == (pair.kernel.hash, pair.problem.hash, ORIGIN)
    ]
    return mine[-1] if mine else None


def measure_pairs(
    pairs: Iterable[Pair], judge: Callable[[Pair], Verdict], executor: Executor, deadline: float
) -> Iterator[tuple[Pair, Verdict | Exception]]:
    """Judge pairs as workers become free; each as soon as it is there.

    After `deadline` (monotonic, s) no further pair is begun.

    A pair that cannot be judged at all, such as one whose reference does not compile, comes as its
    error: one does not cost the others.
    """
    running = {executor.submit(judge, pair): pair for pair in pairs}
    for future in as_completed(running):
        if time.monotonic() > deadline:
            for other in running:
                other.cancel()
        if future.cancelled():
            continue
        error = future.exception()
        yield running[future], error if isinstance(error, Exception) else future.result()


def unjudged(pair: Pair, error: Exception) -> str:
    """A line of the table for a pair without a verdict.

    The traceback is logged, unless the fault is what the user can mend.
    """
    if not isinstance(error, KmemError):
        logger.error("%s could not be judged", pair.skill.name, exc_info=error)
    return (
        f"{pair.skill.name:34} not judged: "
        f"{error if isinstance(error, KmemError) else first_line(error)}"
    )


def row(pair: Pair, one: Outcome) -> str:
    """A line of the table."""
    if one.ratio is None:
        return f"{pair.skill.name:34} {'-':>10} {'-':>10} {'-':>7} {'-':>15} {one.status.value}"
    interval = f"{one.ratio_low:.3f}..{one.ratio_high:.3f}"
    times = f"{one.baseline_ms:10.4f} {one.latency_ms:10.4f} {one.ratio:7.3f} {interval:>15}"
    return f"{pair.skill.name:34} {times} {', '.join((one.status.value, *one.flags))}"


HEADER = f"{'skill':34} {'before ms':>10} {'after ms':>10} {'ratio':>7} {'interval':>15} status"


def main() -> int:
    options = _arguments()
    logging.basicConfig(level=logging.WARNING)
    present = detect_device()
    if present is None and not options.check:
        sys.exit("No GPU here to measure on; --check gives the interpreter's verdicts")
    directories = [SKILLS / name for name in options.names] or sorted(
        path.parent.parent for path in SKILLS.glob("*/examples/after.py")
    )
    if options.check:
        os.environ["TRITON_INTERPRET"] = "1"  # for the jobs, which have not imported Triton yet
    contract, device = Contract(), present or named_target(TARGET)
    began = time.monotonic()
    # spawn: a forked process cannot use CUDA once its parent has.
    with (
        tempfile.TemporaryDirectory(prefix="kmem-examples-") as place,
        ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as executor,
    ):
        judge = partial(
            judge_pair, contract=contract, device=device, gpu=not options.check, place=Path(place)
        )
        results = partial(
            measure_pairs, judge=judge, executor=executor, deadline=began + options.seconds
        )
        try:
            pairs = [load_pair(directory) for directory in directories]
            if options.check:
                return _check(results(pairs))
            with Memory(options.memory) as memory:
                missing = _measure(pairs, results, memory, contract, device)
                exported = export_outcomes(memory, options.export)
        except KmemError as ex:
            sys.exit(str(ex))
    print(
        f"{options.export}: {exported.outcomes} outcomes; not judged: "
        f"{', '.join(missing) or 'none'}; {time.monotonic() - began:.0f} s"
    )
    return 1 if missing else 0


def _measure(
    pairs: list[Pair],
    results: Callable[[list[Pair]], Iterator[tuple[Pair, Verdict | Exception]]],
    memory: Memory,
    contract: Contract,
    device: Device,
) -> list[str]:
    """Record and print every pair; names of those without a verdict."""
    done = {
        pair.skill.name: one
        for pair in pairs
        if (one := recorded(memory, pair, device)) is not None
    }
    print(HEADER)
    for pair in pairs:
        if pair.skill.name in done:
            print(row(pair, done[pair.skill.name]), "(recorded before)", flush=True)
    found = versions()
    for pair, verdict in results([pair for pair in pairs if pair.skill.name not in done]):
        if isinstance(verdict, Exception):
            print(unjudged(pair, verdict), flush=True)
        elif verdict.measurement.status is not Status.INTERRUPTED:
            one = done[pair.skill.name] = outcome(pair, verdict, contract, device, found)
            memory.runs.put_kernel(pair.kernel)
            memory.ledger.record(one)
            print(row(pair, one), flush=True)
            if one.status is not Status.PASSED:
                print(
                    "    " + verdict.measurement.log.strip().replace("\n", "\n    ")[-1500:],
                    flush=True,
                )
    fast = sum(one.ratio is not None and one.ratio >= WANTED_RATIO for one in done.values())
    certain = sum(
        one.ratio_low is not None and one.ratio_low >= WANTED_RATIO for one in done.values()
    )
    print(
        f"{fast} of {len(done)} at {WANTED_RATIO}x and more, {certain} of them with the whole "
        "interval"
    )
    return [pair.skill.name for pair in pairs if pair.skill.name not in done]


def _check(results: Iterator[tuple[Pair, Verdict | Exception]]) -> int:
    """Print the verdicts; 1 if any pair did not pass."""
    refused = 0
    for pair, verdict in results:
        if isinstance(verdict, Exception):
            refused += 1
            print(unjudged(pair, verdict), flush=True)
            continue
        measurement = verdict.measurement
        print(
            f"{pair.skill.name:34} {', '.join((measurement.status.value, *measurement.flags))}",
            flush=True,
        )
        if measurement.status is not Status.PASSED:
            refused += 1
            print("    " + measurement.log.strip().replace("\n", "\n    ")[-1500:], flush=True)
    return 1 if refused else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="skills to measure (default: all with examples)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="judge in the interpreter at small sizes; record nothing",
    )
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help=f"judges at a time (default: {JOBS})"
    )
    parser.add_argument(
        "--seconds", type=float, default=270.0, help="begin no pair after this time (default: 270)"
    )
    parser.add_argument(
        "--memory", type=Path, default=MEMORY, help="where verdicts are kept, to go on from"
    )
    parser.add_argument("--export", type=Path, default=EXPORT, help="the file that ships")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
