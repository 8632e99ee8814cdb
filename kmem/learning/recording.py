"""Record landscapes on a GPU: choose settings, write and compile them on all cores, then check and
time each, a problem a file.

Every problem goes its own way: traced and written in a process of a lane, compiled by processes
that all problems share, judged in another lane as soon as it is compiled, while later problems
still compile. A timing is alone on the GPU (the judges' lease) and its clock starts with calls
queued ahead (kmem/measure/worker/clocks.py), so that busy cores do not show in it; the compilers
yield to the judges all the same. The judging itself is kmem's own screening, nothing else.

Whatever ends a recording, each setting that has its verdict is on the disk, and the settings that
were judged until then are an even sample of those chosen, the same at other sizes of a problem:
they are judged in the order of a hash of their knobs, some at a time.
"""

import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kmem.codegen.module import WorkloadPlan, assemble_module
from kmem.explore.recipes.author import write_kernel
from kmem.explore.recipes.cover import find_options
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
from kmem.measure.settings import JudgeSettings
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.graph import graph_sizes
from kmem.problem.load import execute_problem
from kmem.problem.trace import trace_problem
from kmem.problem.traced import TracedProblem
from kmem.profile.compile import CompilePool, CompileProcesses, CompileReport, CompileStatus
from kmem.profile.estimate import estimate_kernel_ms
from kmem.records import (
    Bound,
    Contract,
    Device,
    Kernel,
    Measurement,
    Move,
    Problem,
    Status,
    Task,
    content_hash,
)
from kmem.run.session import Session, open_session, versions

_COMPILE_TIMEOUT_S = 60.0
#: Cores left to the judges and to whoever started the recording.
_CORES_FOR_TIMING = 2
#: Cores for each lane that traces and writes: a problem is written in a small part of the time that
#: its kernels take to compile.
_CORES_PER_WRITER = 4
#: Judges want a core now and then, but at once.
_COMPILERS_NICENESS = 5
#: Settings checked and raced together. A race decides at its end, so what a kill costs is one of
#: these; fewer would be timed longer.
_SLICE = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What to record: on which device (`present` if it is here), how many settings a problem,
    judged for how long at most.
    """

    device: Device
    present: bool
    contract: Contract
    settings: int
    seed: int
    minutes: float  # to judge one problem
    jobs: int  # problems judged at once


@dataclass(frozen=True, slots=True)
class Written:
    """A problem whose settings are chosen and written.

    `known` are verdicts of an earlier recording, by source hash.
    """

    header: Header
    traced: TracedProblem  # named as in the header
    # with the cost model's times; the first is the module as it is
    kernels: tuple[tuple[Kernel, float | None], ...]
    known: dict[str, Point]

    @property
    def name(self) -> str:
        return self.header.problem.name


@dataclass(frozen=True, slots=True)
class Prepared:
    """A written problem ready to be judged: its kernels are compiled and in the cache."""

    written: Written
    points: tuple[Point, ...]  # in the order of the kernels, INTERRUPTED until they are judged


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the recording stands: `done` of `total` steps (each problem is two), and what was
    finished last.
    """

    done: int
    total: int
    text: str


def record_landscapes(
    problems: Sequence[Problem], root: Path, asked: Asked, on_progress: Callable[[Progress], None]
) -> None:
    """Record every problem that has no finished landscape in `root` yet; a problem that was begun
    goes on where it stopped.

    Args:
        on_progress: called by one thread at a time, not always the same.
    Raises: ProblemError: for a problem that breaks the contract; the others are recorded first.
        LandscapeError: if `root` cannot be written. KeyboardInterrupt: what was judged until then
        is kept.
    """
    directory = LandscapeDirectory(root)
    waiting = [problem for problem in problems if not _is_finished(directory, problem, asked)]
    total, done = 2 * len(problems), 2 * (len(problems) - len(waiting))
    if not waiting:
        on_progress(Progress(done, total, "everything is recorded already"))
        return
    scratch = root / "scratch"
    turn = threading.Lock()
    interrupted = threading.Event()

    def tell(text: str, steps: int) -> None:
        nonlocal done
        with turn:
            done += steps
            on_progress(Progress(done, total, text))

    def record(problem: Problem) -> None:
        steps_left = 2
        try:
            started = time.monotonic()
            written = writers.submit(
                _write_problem, problem, _siblings(problem, problems), asked, root, scratch
            ).result()
            prepared = _compile(written, asked, compilers)
            tell(
                (
                    f"{problem.name}: {len(prepared.points) - 1} settings compiled after "
                    f"{time.monotonic() - started:.0f} s"
                ),
                1,
            )
            steps_left -= 1
            tell(judges.submit(_judge, prepared, asked, root, scratch).result(), 1)
        except Exception as ex:
            if not interrupted.is_set():  # then everything ends, in errors that say nothing
                tell(f"{problem.name}: {type(ex).__name__}: {ex}", steps_left)
            raise

    cores = len(os.sched_getaffinity(0))
    failures: list[BaseException] = []
    with (
        ThreadPoolExecutor(len(waiting)) as followers,
        CompileProcesses(
            max(1, cores - _CORES_FOR_TIMING),
            _cache(scratch) / "triton",
            niceness=_COMPILERS_NICENESS,
        ) as compilers,
        _lanes(max(1, cores // _CORES_PER_WRITER)) as writers,
        _lanes(asked.jobs) as judges,
    ):
        try:
            for recorded in as_completed(
                [followers.submit(record, problem) for problem in waiting]
            ):
                # costs its problem only, and is raised at the very end
                error = recorded.exception()
                if error is not None:
                    failures.append(error)
        except BaseException:
            interrupted.set()
            raise
    if failures:
        raise failures[0]
    shutil.rmtree(scratch, ignore_errors=True)


def _is_finished(directory: LandscapeDirectory, problem: Problem, asked: Asked) -> bool:
    landscape = directory.find(problem.name)
    return (
        landscape is not None
        and directory.is_finished(problem.name)
        and _same_work(landscape.header, problem, asked)
    )


def _same_work(header: Header, problem: Problem, asked: Asked) -> bool:
    """Whether a landscape is of this problem on this device; its rates are measured anew each time,
    so only the name counts.
    """
    found = (
        header.problem.hash,
        header.device.full_name,
        header.contract,
        header.estimated,
        header.seed,
        header.settings,
    )
    return found == (
        problem.hash,
        asked.device.full_name,
        asked.contract,
        not asked.present,
        asked.seed,
        asked.settings,
    )


def _siblings(problem: Problem, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The same file at other sizes."""
    return tuple(
        other for other in problems if other.path == problem.path and other.hash != problem.hash
    )


@contextmanager
def _lanes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that work through steps.

    Left by an exception, their work is dropped: what they have on the disk counts.
    """
    # Spawned, not forked: torch's threads and CUDA do not survive a fork.
    lanes = ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_signals_alone
    )
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


def _compile(written: Written, asked: Asked, compilers: CompileProcesses) -> Prepared:
    """Compile what has no verdict yet."""
    fresh = [kernel for kernel, _ in written.kernels if kernel.hash not in written.known]
    with CompilePool(written.traced, processes=compilers) as pool:
        reports = {
            report.kernel: report for report in pool.compile(fresh, timeout_s=_COMPILE_TIMEOUT_S)
        }
    points = [
        written.known.get(kernel.hash)
        or _compiled(kernel, estimated_ms, reports[kernel.hash], written.traced.bound, asked)
        for kernel, estimated_ms in written.kernels
    ]
    return Prepared(written, tuple(points))


def _compiled(
    kernel: Kernel,
    estimated_ms: float | None,
    report: CompileReport,
    bound: Bound | None,
    asked: Asked,
) -> Point:
    if not asked.present:
        estimated_ms = (
            estimate_kernel_ms(report.launches, bound, asked.device)
            if report.status is CompileStatus.OK
            else math.inf
        )
    return make_point(kernel.hash, kernel.choices, kernel.flags, estimated_ms, report)


# ---- in a lane


def _write_problem(
    problem: Problem, siblings: Sequence[Problem], asked: Asked, root: Path, scratch: Path
) -> Written:
    """Trace a problem, choose and write its settings, and begin its landscape if it is not begun."""
    registry = collect(build_plugin_manager())
    place = scratch / problem.name
    place.mkdir(parents=True, exist_ok=True)
    # recording remembers nothing: a session wants one to keep its library in
    memory = Memory(place / "kmem.db")
    try:
        session = open_session(
            problem, asked.contract, asked.device, asked.present, registry, memory
        )
    finally:
        memory.close()
    kernels = _write(session, siblings, asked)
    header = _header(session, asked)
    known = _known(
        LandscapeDirectory(root), header, problem, asked, {kernel.hash for kernel, _ in kernels}
    )
    return Written(header, replace(session.traced, problem=header.problem), tuple(kernels), known)


def _write(
    session: Session, siblings: Sequence[Problem], asked: Asked
) -> list[tuple[Kernel, float | None]]:
    """Kernels with the cost model's times: the module as it is first, then one per setting."""
    options = find_options(session.traced.graphs, session.recipes, asked.contract, asked.device)
    elsewhere = []
    for sibling in siblings:
        graph = trace_problem(execute_problem(sibling), asked.contract.precision)
        found = find_options({"full": graph}, session.recipes, asked.contract, asked.device)
        elsewhere.append(leading_settings(found, asked.settings))
    drafts = sample_drafts(
        session.traced.graph,
        options,
        asked.contract,
        asked.device,
        count=asked.settings,
        seed=asked.seed,
        elsewhere=elsewhere,
    )
    plans = [WorkloadPlan(name, graph, ()) for name, graph in session.traced.graphs.items()]
    problem = session.traced.problem
    written: list[tuple[Kernel, float | None]] = [
        (
            Kernel(assemble_module(f"{problem.name}: as it is", problem.source, plans)),
            None,
        )
    ]
    for draft in drafts:
        task = Task(Move.SEED, draft.skill, None, 1, "a setting of the landscape")
        assignment = Assignment(
            traced=session.traced,
            parent=None,
            diagnosis=None,
            prescriptions=(),
            history=(),
            recipes=session.recipes,
            seed=asked.seed,
            task=task,
        )
        written.append(
            (
                write_kernel(assignment, draft.cover, draft.settings, draft.choices),
                draft.estimated_ms,
            )
        )
    return written


def _header(session: Session, asked: Asked) -> Header:
    problem, graph = session.traced.problem, session.traced.graph
    sites = record_sites(
        find_options(session.traced.graphs, session.recipes, asked.contract, asked.device)
    )
    return Header(
        format=FORMAT,
        # where the file lay here means nothing elsewhere
        problem=replace(problem, path=f"{problem.name}.py"),
        family=operator_family(sites),
        operators=session.operators,
        sites=sites,
        graph_hash=graph.hash,
        structure_hash=graph.structure_hash,
        sizes=graph_sizes(graph),
        device=asked.device,
        contract=asked.contract,
        estimated=not asked.present,
        seed=asked.seed,
        settings=asked.settings,
        versions=versions(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _judge(prepared: Prepared, asked: Asked, root: Path, scratch: Path) -> str:
    """Screen every setting that has no verdict yet, one of each binary, and write the landscape.

    Returns how it went.
    """
    started = time.monotonic()
    written = prepared.written
    directory, name = LandscapeDirectory(root), written.name
    traced = written.traced
    settled = dict(written.known)

    def settle(point: Point) -> None:
        if point.status is not Status.INTERRUPTED and point.source_hash not in settled:
            settled[point.source_hash] = point
            directory.append(name, point)

    # the points that compile to the same binaries and grids, by binary
    alike: dict[str, list[Point]] = {}
    for point in prepared.points:
        settle(point)
        alike.setdefault(_binary(point), []).append(point)

    def settle_all(point: Point, found: Measurement) -> None:
        first = judged(point, found)
        for twin in alike[_binary(point)]:
            settle(first if twin.source_hash == first.source_hash else same_verdict(twin, first))

    waiting: list[Point] = []  # one of each binary that nothing is known of
    for twins in alike.values():
        verdict = next(
            (settled[twin.source_hash] for twin in twins if twin.source_hash in settled), None
        )
        if verdict is None:
            waiting.append(twins[0])
        else:
            for twin in twins:
                settle(same_verdict(twin, verdict))
    waiting.sort(key=lambda point: _turn(point, asked.seed))
    kernels = {kernel.hash: kernel for kernel, _ in written.kernels}
    estimates = {point.source_hash: point.estimated_ms for point in prepared.points}
    deadline = started + 60 * asked.minutes
    settings = JudgeSettings(
        seed=asked.seed, gpu=asked.present, work_dir=scratch / name, cache_dir=_cache(scratch)
    )
    with Judge(traced, settings, estimate_ms=lambda kernel: estimates[kernel.hash]) as judge:

        def judge_together(points: Sequence[Point]) -> None:
            drafts = [kernels[point.source_hash] for point in points]
            judge.screen(
                drafts,
                lambda index, found: settle_all(points[index], found),
                deadline_s=deadline - time.monotonic(),
            )

        for begin in range(0, len(waiting), _SLICE):
            judge_together(waiting[begin : begin + _SLICE])
    missing = len(prepared.points) - len(settled)
    if not missing:
        directory.pack(name)
    passed = sum(point.status is Status.PASSED for point in settled.values())
    rest = f", {missing} left for another time" if missing else ""
    return (
        f"{name}: {passed} of {len(prepared.points)} passed{rest} in "
        f"{time.monotonic() - started:.0f} s"
    )


def _turn(point: Point, seed: int) -> tuple[bool, str]:
    """When a setting is judged: the module as it is first, then by hash of the knobs."""
    return bool(point.choices), content_hash(
        str(seed), *(repr((choice.recipe, choice.knobs)) for choice in point.choices)
    )


def _known(
    directory: LandscapeDirectory, header: Header, problem: Problem, asked: Asked, wanted: set[str]
) -> dict[str, Point]:
    """What an earlier recording found out, by source hash; a landscape of other work is started
    over.
    """
    kept = directory.find(problem.name)
    if kept is None or not _same_work(kept.header, problem, asked):
        directory.begin(header)
        return {}
    return {point.source_hash: point for point in kept.points if point.source_hash in wanted}


def _binary(point: Point) -> str:
    """What the device would run; the module as it is stands for itself."""
    return point.ptx_hash if point.choices and point.ptx_hash is not None else point.source_hash


def _cache(scratch: Path) -> Path:
    """Compiled kernels and the lock of the GPU, shared by all lanes; kept until everything is
    recorded.
    """
    return scratch / "cache"
