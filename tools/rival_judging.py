"""One released kernel file before kmem's judge, for tools/compare_kernels.py.

    python tools/rival_judging.py '{"problem": FILE, "theirs": FILE, "runs": DIRECTORY or ""}'

Prints a line of JSON after each part: what the text says and which mends there are, our kernel, the
verdict on ours, the verdict on theirs, and without a GPU the independent check at small sizes in
the interpreter (with one, tools/rival_clock.py runs by itself). With `"judged": false` it stops
before the verdicts.
"""

import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:  # read when triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from judge_winners import remembered_kernel
from rival_clock import look_at
from rival_kernels import (
    Held,
    Pairing,
    mend_source,
    pair_parameters,
    signs_of,
    under_problem_names,
)
from shipped_kernels import at_small_sizes

from kmem.devices import cuda_properties, detect_device, named_target
from kmem.errors import KmemError, first_line
from kmem.host.imitated_device import ImitatedDevice, imitate_cuda
from kmem.measure.source_check import check_source
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import construct_model, execute_problem, load_problem
from kmem.records import (
    BASELINES,
    Baseline,
    Contract,
    Device,
    Kernel,
    Measurement,
    Problem,
    RunResult,
    Status,
    fastest_baseline,
)
from kmem.run.directory import small_constants_beside
from kmem.run.evaluation.single import Case, Terms, judge_case, make_case
from kmem.run.report.loading import load_run
from kmem.run.setup.session import open_session
from kmem.whole.process import interpret_as_the_judge

#: Where there is no GPU, times are estimated and kernels compiled for this one.
_TARGET = named_target("h200")
SEED = 20


def judge_rival(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows to be merged, one after each part.

    Raises KmemError: if the problem cannot be judged; SyntaxError: if their file is no Python.
    """
    device = detect_device()
    problem = load_problem(asked["problem"])
    released = Path(asked["theirs"]).read_text(encoding="utf-8")
    yield {"signs": signs_of(released)}
    source, mends = mend_source(released)
    yield {"mends": mends, "refused": [refusals_of(released), refusals_of(source)]}
    names = tuple(asked.get("baselines", BASELINES))
    ours = find_ours(problem, Path(asked["runs"]), device) if asked["runs"] else None
    if ours is not None:
        yield {"ours": ours.kernel.source}
    if not asked.get("judged", True):
        return
    if ours is not None:  # first: what is known of it costs nothing
        verdict = ours.verdict or judge(problem, ours.kernel, device, names)
        yield {"judge": {"ours": verdict}}
    try:
        pairing = pair_with(problem, source) if device else pair_apart(problem, source)
        if pairing.is_needed:
            source = under_problem_names(source, problem.source, pairing)
            yield {
                "renamed": sum(one != two for one, two in pairing.pairs),
                "alone": pairing.alone,
                "added": pairing.added,
            }
    except Exception as ex:  # noqa: BLE001  # what a stranger's constructor raises; the judge tells
        yield {"failures": {"pairing": f"{type(ex).__name__}: {str(ex)[:300]}"}}
    yield {"judge": {"theirs": judge(problem, Kernel(source), device, names)}}
    if device is None:
        yield from check_small(problem, asked)


# ---- the same weights


def pair_apart(problem: Problem, source: str) -> Pairing:
    """`pair_with` in a process of its own that believes in a GPU, which cannot be undone."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, imitate_cuda, (cuda_properties(_TARGET),)) as pool:
        return pool.submit(pair_with, problem, source).result()


def pair_with(problem: Problem, source: str) -> Pairing:
    """Which parameters of a file's module are which of the problem's."""
    module = execute_problem(problem)
    namespace: dict[str, Any] = {"__name__": "released"}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "released.py"  # Triton reads a kernel's text from its file
        path.write_text(source, encoding="utf-8")
        with ImitatedDevice("cpu"):
            exec(compile(source, str(path), "exec"), namespace)  # noqa: S102 - what is compared
            theirs = _constructed(namespace["ModelNew"], module)
    return pair_parameters(_held(construct_model(module, "meta")), _held(theirs))


def _constructed(factory: Any, module: Any) -> torch.nn.Module:
    init = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    try:
        with torch.device("meta"):
            return factory(*init)
    except (RuntimeError, NotImplementedError):  # it looks at what it made
        return factory(*init)


def _held(module: torch.nn.Module) -> list[Held]:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return [Held(name, True, tuple(value.shape)) for name, value in parameters] + [
        Held(name, False, tuple(value.shape)) for name, value in buffers
    ]


# ---- the judge


def judge(
    problem: Problem, kernel: Kernel, device: Device | None, baselines: Sequence[str]
) -> dict[str, Any]:
    """The judge's verdict as a row; times only where there is a GPU."""
    refused = refusals_of(kernel.source)
    if refused:  # the judge would say so after it has traced the problem
        return {"status": Status.REFUSED_SOURCE.value, "log": "\n".join(refused)}
    terms = Terms(Contract(), seed=SEED)
    try:
        make_case(Path(problem.path), kernel.source, terms)
    except KmemError as ex:
        return {"status": Status.WRONG_CONTRACT.value, "log": first_line(ex)}
    measurement, timed = judge_case(
        Case(problem, kernel, terms),
        device or _TARGET,
        gpu=device is not None,
        announce=lambda text: None,
        baselines=baselines,
    )
    return _row_of(measurement, timed, is_measured=device is not None)


def _row_of(
    measurement: Measurement, baselines: Sequence[Baseline], *, is_measured: bool
) -> dict[str, Any]:
    best = fastest_baseline(baselines)
    timing = measurement.timing if is_measured else None
    return {
        "status": measurement.status.value,
        "log": measurement.log.strip()[:2000],
        "flags": list(measurement.flags),
        **_worst(measurement),
        "library_share": measurement.library_share,
        "latency_ms": timing.latency_ms if timing else None,
        "ratio": timing.ratio if timing else None,
        "interval": [timing.ratio_low, timing.ratio_high] if timing else None,
        "best": best.name if best and is_measured else None,
    }


def refusals_of(source: str) -> list[str]:
    """What the judge refuses a file for before anything runs. Raises SyntaxError."""
    return [str(each) for each in check_source(source)]


def _worst(measurement: Measurement) -> dict[str, Any]:
    """The family that a kernel comes nearest to its allowance on, and by how much it is over it."""
    worst = max(measurement.errors, key=lambda error: error.excess, default=None)
    found = re.search(r"family ([\w ]+?)[:,]", measurement.log)
    family = worst.family if worst else None
    return {
        "excess": worst.excess if worst else None,
        "family": found[1] if found else family,
        "families": len({error.family for error in measurement.errors}),
    }


# ---- ours


@dataclass(frozen=True, slots=True)
class Ours:
    """Our kernel, and what the judge said of it on a GPU of this kind in its own run, if it did."""

    kernel: Kernel
    verdict: dict[str, Any] | None = None


def find_ours(problem: Problem, runs: Path, device: Device | None) -> Ours | None:
    """The best kernel that runs below a directory, or a database, have for this very problem."""
    if not runs.is_dir():
        return _remembered(problem, runs, device)
    found = []
    for owner in sorted(runs.rglob("run.json")):
        best = owner.with_name("best_kernel.py")
        said = json.loads(owner.read_text(encoding="utf-8"))
        if best.is_file() and said["problem"]["source"] == problem.source:
            found.append((said["created_at"], best))
    if not found:
        return None
    best = max(found)[1]
    constants = small_constants_beside(best)
    small = constants.read_text(encoding="utf-8") if constants.is_file() else ""
    kernel = Kernel(best.read_text(encoding="utf-8"), small_constants=small)
    return Ours(kernel, verdict_of(load_run(best.parent).outcome, device))


def verdict_of(result: RunResult, device: Device | None) -> dict[str, Any] | None:
    """The row of a run's last verdict; None if it was not measured on such a device."""
    is_of_here = device is not None and result.target == device.name and not result.estimated
    if not is_of_here or result.best is None:
        return None
    return _row_of(result.best.measurement, result.baselines, is_measured=True)


def _remembered(problem: Problem, database: Path, device: Device | None) -> Ours | None:
    registry = collect(build_plugin_manager())
    target = device or _TARGET
    with Memory(database) as memory:
        session = open_session(problem, Contract(), target, device is not None, registry, memory)
        hits = [hit for hit in memory.winners.recall(session.graph_key) if hit.exact]
        kernel = remembered_kernel(session, hits[0]) if hits else None
        return Ours(kernel) if kernel else None


# ---- without a GPU


def check_small(problem: Problem, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The independent check of their file as released, at small sizes in the interpreter."""
    interpret_as_the_judge()
    with tempfile.TemporaryDirectory() as place:
        small = at_small_sizes(problem, Path(place) / "small.py")
        given = {"problem": small.path, "kernels": {"theirs": asked["theirs"]}, "seconds": 0}
        with ImitatedDevice("cpu"):
            yield from look_at(given, "cpu")


if __name__ == "__main__":
    torch.set_num_threads(1)  # problems run beside each other, as many as --jobs has it
    for row in judge_rival(json.loads(sys.argv[1])):
        print(json.dumps(row), flush=True)
