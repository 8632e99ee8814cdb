"""The problems of a bench on the workers of a crew: a runner for kmem/bench/schedule.py."""

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TypeAlias

from kmem.away.errand import Asked, Errand
from kmem.away.prefetch import Prefetch
from kmem.bench.command import optimize_words, read_stage, run_limit_s
from kmem.bench.problems import BenchProblem
from kmem.bench.purse import Purse
from kmem.bench.results import Settings
from kmem.bench.rows import Exit
from kmem.engines.desk import Desk
from kmem.engines.executor import JobResult
from kmem.engines.scheduler import Work
from kmem.errors import BUDGET_SPENT

#: Makes an errand of what is asked, who is told each line, and who is given the result.
MakeErrand: TypeAlias = Callable[
    [Asked, Callable[[str], None], Callable[[JobResult], None]], Errand
]
#: Where runs and compiling share workers, runs go first: they count as taking longer.
_BEFORE_COMPILING = 1.0
_POLL_S = 0.2


class CrewRunner:
    """Runs each problem as a work of a desk; called from a thread for each problem."""

    def __init__(
        self,
        desk: Desk,
        settings_of: Callable[[BenchProblem], Settings],
        directory: Path,
        make_errand: MakeErrand,
        *,
        gpu: bool,
        crowded: float = 1.0,
        purse: Purse | None = None,
        prefetch: Prefetch | None = None,
    ) -> None:
        """Nothing is run yet.

        Args:
            directory: the bench's; logs/ and runs/ in it are written.
            gpu: whether runs are measured.
            crowded: runs get so many times their limit.
            purse: what language models may cost; None: no limit.
            prefetch: has begun to compile for the problems; None: nobody has.
        """
        self._desk = desk
        self._settings_of = settings_of
        self._directory = directory
        self._make_errand = make_errand
        self._gpu = gpu
        self._crowded = crowded
        self._purse = purse
        self._prefetch = prefetch
        self._asked = 0
        self._lock = threading.Lock()

    def __call__(
        self, problem: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit | None:
        """Run a problem to its end; None if `stop` was set meanwhile: the run is then ended.

        Args:
            on_stage: called with stage and text of each progress line, from another thread.
        """
        with self._purse.share(problem) if self._purse else nullcontext() as usd:
            ended = self._run(problem, on_stage, stop, usd)
            if self._purse and ended is not None and BUDGET_SPENT in ended.stdout:
                self._purse.was_spent(problem)
            return ended

    def _run(
        self,
        problem: BenchProblem,
        on_stage: Callable[[str, str], None],
        stop: threading.Event,
        usd: float | None,
    ) -> Exit | None:
        with self._lock:
            self._asked += 1
            key = f"{problem.key}@{self._asked}"  # one that is run once more is another work
        over = threading.Event()
        found: list[JobResult] = []

        def end(result: JobResult) -> None:
            found.append(result)
            over.set()

        settings = self._settings_of(problem)
        asked = Asked(
            Path(problem.path),
            lambda file, out: optimize_words(settings, file, out, usd),
            self._directory / "runs" / problem.key,
            settings.memory,
            bool(settings.authors),
            compiled=lambda: self._prefetch.take(problem) if self._prefetch else None,
        )
        log, output = (
            self._directory / "logs" / f"{problem.key}.{suffix}" for suffix in ("log", "json")
        )
        with open(log, "w", encoding="utf-8", buffering=1) as kept:
            errand = self._make_errand(asked, lambda line: _keep(line, kept, on_stage), end)
            limit_s = self._crowded * run_limit_s(settings)
            self._desk.add(Work(key, errand.job, errand, _BEFORE_COMPILING, limit_s, self._gpu))
            while not over.wait(_POLL_S):
                self._desk.check()
                if stop.is_set():
                    self._desk.cancel(key)
                    return None
        result = found[0]
        output.write_text(result.stdout, encoding="utf-8")
        code = -signal.SIGKILL if result.exit_code is None else result.exit_code
        timed_out = result.exit_code is None
        return Exit(code, result.stdout, result.stderr, result.seconds, timed_out)


def _keep(line: str, log: IO[str], on_stage: Callable[[str, str], None]) -> None:
    if not log.closed:
        log.write(line + "\n")
    if stage := read_stage(line):
        on_stage(*stage)
