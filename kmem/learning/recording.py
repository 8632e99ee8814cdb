"""Record landscapes on a GPU: choose settings, write and compile them on all cores, then check and time each, a problem a file.

Two phases, for a short forward is timed wrongly while compilers fill every core: first every problem is traced, written and compiled
(prepared), then every problem is judged. Both run some problems at once, each in a process of a lane; the judges' lease lets checks
overlap and has each timing alone on the GPU. The judging itself is kmem's own screening, nothing else.
"""

import math
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kmem.codegen.module import WorkloadPlan, assemble_module
from kmem.explore.cover import find_options
from kmem.explore.recipe_author import write_kernel
from kmem.interfaces import Assignment
from kmem.learning.landscape import (
    FORMAT,
    Header,
    LandscapeDirectory,
    Point,
    judged,
    make_point,
    operator_family,
    record_sites,
    same_verdict,
)
from kmem.learning.sampling import leading_settings, sample_drafts
from kmem.measure.judge import Judge
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.graph import graph_sizes
from kmem.problem.load import execute_problem
from kmem.problem.trace import trace_problem
from kmem.profile.compile import CompilePool, CompileStatus
from kmem.profile.estimate import estimate_kernel_ms
from kmem.records import Bound, Contract, Device, Kernel, Move, Problem, Status, Task, Workload
from kmem.session import Session, open_session, versions

_COMPILE_TIMEOUT_S = 60.0
#: Compile processes of one problem while it is prepared; there are as many problems at once as fill the cores.
_COMPILERS = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What to record: on which device (`present` if it is here), how many settings a problem, judged for how long at most."""

    device: Device
    present: bool
    contract: Contract
    settings: int
    seed: int
    minutes: float  # to judge one problem
    jobs: int  # problems judged at once


@dataclass(frozen=True, slots=True)
class Prepared:
    """A problem ready to be judged: its kernels are compiled and in the cache."""

    header: Header
    workloads: dict[str, Workload]
    bound: Bound | None
    kernels: dict[str, Kernel]  # by source hash
    points: tuple[Point, ...]  # in the order of judging; those that did not compile are settled

    @property
    def name(self) -> str:
        return self.header.problem.name


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the recording stands: `done` of `total` steps (each problem is two), and what was finished last."""

    done: int
    total: int
    text: str


def record_landscapes(problems: Sequence[Problem], root: Path, asked: Asked, on_progress: Callable[[Progress], None]) -> None:
    """Record every problem that has no finished landscape in `root` yet; a problem that was begun goes on where it stopped.

    Raises:
        ProblemError: for a problem that breaks the contract. LandscapeError: if `root` cannot be written.
        KeyboardInterrupt: what was judged until then is kept.
    """
    directory = LandscapeDirectory(root)
    waiting = [problem for problem in problems if not _is_finished(directory, problem, asked)]
    total, done = 2 * len(problems), 2 * (len(problems) - len(waiting))
    if not waiting:
        on_progress(Progress(done, total, "everything is recorded already"))
        return
    scratch = root / "scratch"

    failures: list[Exception] = []

    def follow(steps: dict[Future, str]) -> Iterator[object]:
        """What the steps made, as they end; one that fails costs its problem only, and is raised at the very end."""
        nonlocal done
        for step in as_completed(steps):
            error = step.exception()
            done += 1
            if error is None:
                text, result = step.result()
                yield result
            elif isinstance(error, Exception):
                failures.append(error)
                text = f"{steps[step]}: {type(error).__name__}: {error}"
            else:
                raise error
            on_progress(Progress(done, total, text))

    cores = len(os.sched_getaffinity(0))
    with _lanes(max(1, cores // _COMPILERS)) as lanes:
        steps = {lanes.submit(_prepare, problem, _siblings(problem, problems), asked, scratch): problem.name for problem in waiting}
        prepared = {entry.name: entry for entry in follow(steps)}
    with _lanes(asked.jobs) as lanes:
        ready = [problem.name for problem in waiting if problem.name in prepared]  # in the order of the suite
        for _ in follow({lanes.submit(_judge, prepared[name], asked, root, scratch): name for name in ready}):
            pass
    if failures:
        raise failures[0]
    shutil.rmtree(scratch, ignore_errors=True)


def _is_finished(directory: LandscapeDirectory, problem: Problem, asked: Asked) -> bool:
    landscape = directory.find(problem.name)
    return landscape is not None and directory.is_finished(problem.name) and _same_work(landscape.header, problem, asked)


def _same_work(header: Header, problem: Problem, asked: Asked) -> bool:
    """Whether a landscape is of this problem on this device; its rates are measured anew each time, so only the name counts."""
    found = (header.problem.hash, header.device.full_name, header.contract, header.estimated, header.seed, header.settings)
    return found == (problem.hash, asked.device.full_name, asked.contract, not asked.present, asked.seed, asked.settings)


def _siblings(problem: Problem, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The same file at other sizes."""
    return tuple(other for other in problems if other.path == problem.path and other.hash != problem.hash)


@contextmanager
def _lanes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that work through steps. Left by an exception, their work is dropped: what they have on the disk counts."""
    # Spawned, not forked: torch's threads and CUDA do not survive a fork.
    lanes = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_signals_alone)
    try:
        yield lanes
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        lanes.shutdown(cancel_futures=True)


def _leave_signals_alone() -> None:
    """A Ctrl-C goes to every process of the terminal; the one that started the lanes decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# ---- in a lane


def _prepare(problem: Problem, siblings: Sequence[Problem], asked: Asked, scratch: Path) -> tuple[str, Prepared]:
    """Trace a problem, choose and write its settings, and compile them."""
    started = time.monotonic()
    registry = collect(build_plugin_manager())
    place = scratch / problem.name
    place.mkdir(parents=True, exist_ok=True)
    memory = Memory(place / "kmem.db")  # recording remembers nothing: a session wants one to keep its library in
    try:
        session = open_session(problem, asked.contract, asked.device, asked.present, registry, memory)
    finally:
        memory.close()
    drafts = _write(session, siblings, asked)
    kernels = [kernel for kernel, _ in drafts]
    processes = min(len(kernels), _COMPILERS)
    workload = session.workloads["full"]
    with CompilePool(problem, workload, asked.contract, asked.device, processes=processes, cache_dir=_cache(scratch) / "triton") as pool:
        reports = pool.compile(kernels, timeout_s=_COMPILE_TIMEOUT_S)
    points = []
    for (kernel, estimated_ms), report in zip(drafts, reports, strict=True):
        compiled_ms = estimate_kernel_ms(report.launches, session.bound, asked.device) if report.status is CompileStatus.OK else math.inf
        estimate = estimated_ms if asked.present else compiled_ms
        points.append(make_point(kernel.hash, kernel.choices, kernel.flags, estimate, report))
    prepared = Prepared(
        _header(session, asked), dict(session.workloads), session.bound, {kernel.hash: kernel for kernel in kernels}, tuple(points)
    )
    return f"{problem.name}: {len(points) - 1} settings compiled in {time.monotonic() - started:.0f} s", prepared


def _write(session: Session, siblings: Sequence[Problem], asked: Asked) -> list[tuple[Kernel, float | None]]:
    """Kernels with the cost model's times: the module as it is first, then one per setting."""
    options = find_options(session.graphs, session.recipes, asked.contract, asked.device)
    elsewhere = []
    for sibling in siblings:
        graph = trace_problem(execute_problem(sibling), asked.contract.precision)
        found = find_options({"full": graph}, session.recipes, asked.contract, asked.device)
        elsewhere.append(leading_settings(found, asked.settings))
    drafts = sample_drafts(session.graph, options, asked.contract, asked.device, count=asked.settings, seed=asked.seed, elsewhere=elsewhere)
    plans = [WorkloadPlan(name, graph, ()) for name, graph in session.graphs.items()]
    written: list[tuple[Kernel, float | None]] = [
        (Kernel(assemble_module(f"{session.problem.name}: as it is", session.problem.source, plans)), None)
    ]
    for draft in drafts:
        task = Task(Move.SEED, draft.skill, None, 1, "a setting of the landscape")
        assignment = Assignment(
            problem=session.problem, graphs=session.graphs, device=asked.device, contract=asked.contract, parent=None, diagnosis=None,
            prescriptions=(), history=(), recipes=session.recipes, seed=asked.seed, task=task,
        )  # fmt: skip
        written.append((write_kernel(assignment, draft.cover, draft.settings, draft.choices), draft.estimated_ms))
    return written


def _header(session: Session, asked: Asked) -> Header:
    sites = record_sites(find_options(session.graphs, session.recipes, asked.contract, asked.device))
    return Header(
        format=FORMAT,
        problem=replace(session.problem, path=f"{session.problem.name}.py"),  # where the file lay here means nothing elsewhere
        family=operator_family(sites),
        operators=session.operators,
        sites=sites,
        graph_hash=session.graph.hash,
        structure_hash=session.graph.structure_hash,
        sizes=graph_sizes(session.graph),
        device=asked.device,
        contract=asked.contract,
        estimated=not asked.present,
        seed=asked.seed,
        settings=asked.settings,
        versions=versions(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _judge(prepared: Prepared, asked: Asked, root: Path, scratch: Path) -> tuple[str, None]:
    """Screen every setting that has no verdict yet, one of each binary, and write the landscape."""
    started = time.monotonic()
    directory, name = LandscapeDirectory(root), prepared.name
    settled = _settled(directory, prepared, asked)

    def settle(point: Point) -> None:
        if point.status is not Status.INTERRUPTED and point.source_hash not in settled:
            settled[point.source_hash] = point
            directory.append(name, point)

    first_of: dict[str, Point] = {}  # of the points that compile to the same binaries and grids, by binary
    for point in prepared.points:
        settle(point)
        first_of.setdefault(_binary(point), point)
    waiting = [point for point in first_of.values() if point.source_hash not in settled]
    estimates = {point.source_hash: point.estimated_ms for point in prepared.points}
    with Judge(
        prepared.header.problem, prepared.workloads, asked.contract, asked.device, prepared.bound, seed=asked.seed,
        work_dir=scratch / name, gpu=asked.present, estimate_ms=lambda kernel: estimates[kernel.hash], cache_dir=_cache(scratch),
    ) as judge:  # fmt: skip
        kernels = [prepared.kernels[point.source_hash] for point in waiting]
        judge.screen(kernels, lambda index, found: settle(judged(waiting[index], found)), deadline_s=60 * asked.minutes)
    for point in prepared.points:
        first = settled.get(first_of[_binary(point)].source_hash)
        if first is not None:
            settle(same_verdict(point, first))
    missing = len(prepared.points) - len(settled)
    if not missing:
        directory.pack(name)
    passed = sum(point.status is Status.PASSED for point in settled.values())
    rest = f", {missing} left for another time" if missing else ""
    return f"{name}: {passed} of {len(prepared.points)} passed{rest} in {time.monotonic() - started:.0f} s", None


def _settled(directory: LandscapeDirectory, prepared: Prepared, asked: Asked) -> dict[str, Point]:
    """What an earlier recording found out, by source hash; a landscape of other work is started over."""
    kept = directory.find(prepared.name)
    if kept is None or not _same_work(kept.header, prepared.header.problem, asked):
        directory.begin(prepared.header)
        return {}
    wanted = {point.source_hash for point in prepared.points}
    return {point.source_hash: point for point in kept.points if point.source_hash in wanted}


def _binary(point: Point) -> str:
    """What the device would run; the module as it is stands for itself."""
    return point.ptx_hash if point.choices and point.ptx_hash is not None else point.source_hash


def _cache(scratch: Path) -> Path:
    """Compiled kernels and the lock of the GPU, shared by all lanes; kept until everything is recorded."""
    return scratch / "cache"
