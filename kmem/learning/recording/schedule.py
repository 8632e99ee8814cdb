"""Record landscapes on a GPU: many problems at once, each in a file of its own.

Every problem goes its own way: traced and written in a process of a lane, compiled by processes
that all problems share, judged in another lane as soon as it is compiled, while later problems
still compile. A timing is alone on the GPU (the judges' lease) and its clock starts with calls
queued ahead (kmem/measure/worker/clocks.py), so that busy cores do not show in it; the compilers
yield to the judges all the same. The judging itself is kmem's own screening, nothing else.

Whatever ends a recording, each setting that has its verdict is on the disk. The settings that were
judged until then are an even sample of those chosen, the same at other sizes of a problem: they are
judged in the order of a hash of their knobs, some at a time.
"""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kmem.learning.landscape import LandscapeDirectory
from kmem.learning.recording.compile import compile_written
from kmem.learning.recording.outlook import by_turns, graph_class
from kmem.learning.recording.request import Asked, cache_of, is_same_work
from kmem.learning.recording.screen import screen_settings
from kmem.learning.recording.write import write_problem
from kmem.profile.compile.pool import CompileProcesses
from kmem.records import Problem

#: Cores left to the judges and to whoever started the recording.
_CORES_FOR_TIMING = 2
#: Cores for each lane that traces and writes: a problem is written in a small part of the time that
#: its kernels take to compile.
_CORES_PER_WRITER = 4
#: Judges want a core now and then, but at once: compilers yield.
_COMPILERS_NICENESS = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the recording stands, and what was finished last.

    `done` of `total` steps are done; each problem is two.
    """

    done: int
    total: int
    text: str


def record_landscapes(
    problems: Sequence[Problem],
    root: Path,
    asked: Asked,
    on_progress: Callable[[Progress], None],
    only: str | None = None,
    within_minutes: float | None = None,
) -> None:
    """Record every problem that has no finished landscape in `root` yet.

    A problem that was begun goes on where it stopped. Classes of graphs of which nothing is
    recorded come first.

    Args:
        on_progress: called by one thread at a time, not always the same.
        only: the name of the one problem to record; the others choose settings with it.
        within_minutes: after which everything ends, whatever is under way; None: no limit.

    Raises:
        ProblemError: for a problem that breaks the contract; the others are recorded first.
        LandscapeError: if `root` cannot be written.
        KeyboardInterrupt: what was judged until then is kept.
    """
    until = None if within_minutes is None else time.monotonic() + 60 * within_minutes
    directory = LandscapeDirectory(root)
    missing = [each for each in problems if not is_recorded(directory, each, asked)]
    recorded = [graph_class(each) for each in problems if each not in missing]
    waiting = [each for each in by_turns(missing, recorded) if only in (None, each.name)]
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
                write_problem, problem, siblings_of(problem, problems), asked, root, scratch
            ).result()
            prepared = compile_written(written, asked, compilers)
            settings, seconds = len(prepared.points) - 1, time.monotonic() - started
            tell(f"{problem.name}: {settings} settings compiled after {seconds:.0f} s", 1)
            steps_left -= 1
            tell(judges.submit(screen_settings, prepared, asked, root, scratch).result(), 1)
        except Exception as ex:
            if not interrupted.is_set():  # then everything ends, in errors that say nothing
                tell(f"{problem.name}: {type(ex).__name__}: {ex}", steps_left)
            raise

    cores = len(os.sched_getaffinity(0))
    failures: list[BaseException] = []
    with (
        suppress(TimeoutError),  # the minutes are used up
        ThreadPoolExecutor(len(waiting)) as followers,
        CompileProcesses(
            max(1, cores - _CORES_FOR_TIMING),
            cache_of(scratch) / "triton",
            niceness=_COMPILERS_NICENESS,
        ) as compilers,
        _lanes(max(1, cores // _CORES_PER_WRITER)) as writers,
        _lanes(asked.jobs) as judges,
    ):
        try:
            records = [followers.submit(record, problem) for problem in waiting]
            for ended in as_completed(records, _left_s(until)):
                # costs its problem only, and is raised at the very end
                error = ended.exception()
                if error is not None:
                    failures.append(error)
        except BaseException:
            interrupted.set()
            raise
    if failures:
        raise failures[0]
    if interrupted.is_set():
        tell("the minutes are used up; what is judged is kept", 0)
        return
    shutil.rmtree(scratch, ignore_errors=True)


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def is_recorded(directory: LandscapeDirectory, problem: Problem, asked: Asked) -> bool:
    """Whether there is a finished landscape of a problem, recorded as it is asked for."""
    landscape = directory.find(problem.name)
    return (
        landscape is not None
        and directory.is_finished(problem.name)
        and is_same_work(landscape.header, problem, asked)
    )


def siblings_of(problem: Problem, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The same file at other sizes."""
    return tuple(
        other for other in problems if other.path == problem.path and other.hash != problem.hash
    )


@contextmanager
def _lanes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that work through steps.

    If an exception leaves the context, their work is dropped: what they have on the disk counts.
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
    """Ignore a Ctrl-C, which goes to every process of the terminal.

    The process that started the lanes decides what an interrupt ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
