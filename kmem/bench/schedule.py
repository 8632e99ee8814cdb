"""Many problems, some at once: what is started when, what is kept, and what an interrupt does."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.bench.problems import BenchProblem
from kmem.bench.results import BenchDirectory, read_rows
from kmem.bench.rows import Exit, Row, make_row

#: Runs one problem, reporting (stage, text); returns None if the event was set meanwhile.
Runner: TypeAlias = Callable[
    [BenchProblem, Callable[[str, str], None], threading.Event], Exit | None
]


@dataclass(frozen=True, slots=True)
class BenchEvent:
    """Something happened to a problem: `row` is set when it ended.

    `rows` are all so far, of `total`.
    """

    problem: BenchProblem
    stage: str
    text: str
    row: Row | None
    rows: tuple[Row, ...]
    total: int


@dataclass(frozen=True, slots=True)
class _Report:
    """What the thread of a problem says.

    `end` is set when the problem ended, or to the error that ended its thread.
    """

    problem: BenchProblem
    stage: str
    text: str
    end: Exit | BaseException | None = None


def run_problems(
    problems: Sequence[BenchProblem],
    runner: Runner,
    directory: BenchDirectory,
    on_event: Callable[[BenchEvent], None],
    *,
    jobs: int,
    measured: bool,
    may_start: Callable[[], bool] = lambda: True,
) -> list[Row]:
    """Run every problem that the directory has no row of, and return the rows of all.

    Rows are in the order of `problems`. `jobs` problems run at once. One that found no room beside
    others, that crashed or lost a process is run once more, alone, when all others have ended. Each
    row is on the disk before the next problem starts.

    Args:
        may_start: whether a further problem may be started; else those that run are waited for, and
            the rest has no row.

    Raises:
        KeyboardInterrupt: after the problems that run have been ended. They have no row, those that
            ended before have.
    """
    wanted = {problem.key for problem in problems}
    rows = {row.key: row for row in read_rows(directory.root) if row.key in wanted}
    pending = [problem for problem in reversed(problems) if problem.key not in rows]
    reports: queue.SimpleQueue[_Report] = queue.SimpleQueue()
    stop = threading.Event()
    threads: dict[str, threading.Thread] = {}
    alone: set[str] = set()  # run again with nothing beside them

    def work(problem: BenchProblem) -> None:
        try:
            ended = runner(
                problem, lambda stage, text: reports.put(_Report(problem, stage, text)), stop
            )
        # a thread's error is raised where the schedule waits
        except BaseException as ex:  # noqa: BLE001
            reports.put(_Report(problem, "failed", str(ex), ex))
        else:
            if ended is not None:
                reports.put(_Report(problem, "ended", "", ended))

    def announce(problem: BenchProblem, stage: str, text: str, row: Row | None = None) -> None:
        on_event(BenchEvent(problem, stage, text, row, tuple(rows.values()), len(problems)))

    try:
        while pending or threads:
            while (
                pending
                and len(threads) < (jobs if pending[-1].key not in alone else 1)
                and may_start()
            ):
                problem = pending.pop()
                announce(problem, "start", "")
                threads[problem.key] = threading.Thread(target=work, args=(problem,), daemon=True)
                threads[problem.key].start()
            if not threads:
                break
            report = reports.get()
            problem = report.problem
            if isinstance(report.end, BaseException):
                raise report.end
            if report.end is None:
                announce(problem, report.stage, report.text)
                continue
            row = make_row(problem, report.end, measured=measured)
            threads.pop(problem.key).join()
            # one that had no neighbours finds no more room another time
            if row.may_pass and problem.key not in alone and (threads or not row.lacked_room):
                alone.add(problem.key)
                pending.insert(0, problem)
                announce(problem, "later", f"once more, alone, at the end: {row.reason}")
                continue
            directory.append(row)
            rows[problem.key] = row
            announce(problem, row.status.value, row.reason, row)
    except BaseException:
        stop.set()
        for thread in threads.values():
            if thread.is_alive():  # the interrupt may have come before it was started
                thread.join()
        raise
    return [rows[problem.key] for problem in problems if problem.key in rows]
