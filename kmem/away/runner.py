"""The problems of a bench on the workers of a crew: a runner for kmem/bench/schedule.py."""

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from kmem.away.errand import Asked, Errand
from kmem.away.home import Home
from kmem.bench.problems import BenchProblem
from kmem.bench.process import optimize_words, read_stage, run_limit_s, settings_of
from kmem.bench.results import Settings
from kmem.bench.rows import Exit
from kmem.engines.desk import Desk
from kmem.engines.executor import JobResult
from kmem.engines.scheduler import Work

_POLL_S = 0.2


class CrewRunner:
    """Runs each problem as a work of a desk; called from a thread for each problem."""

    def __init__(
        self,
        desk: Desk,
        home: Home,
        settings: Settings,
        directory: Path,
        *,
        gpu: bool,
        reference: str | None = None,
        ceilings: str | None = None,
        candidates: Mapping[str, int] | None = None,
    ) -> None:
        """Nothing is run yet.

        Args:
            directory: the bench's; logs/ and runs/ in it are written.
            gpu: whether runs are measured.
            reference: the card that all figures are to come from, as JSON.
            ceilings: the device with the rates that bounds are made of, as JSON.
            candidates: as those of `OptimizeProcess`.
        """
        self._desk = desk
        self._home = home
        self._settings = settings
        self._directory = directory
        self._gpu = gpu
        self._reference = reference
        self._ceilings = ceilings
        self._candidates = candidates or {}
        self._asked = 0
        self._lock = threading.Lock()

    def __call__(
        self, problem: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit | None:
        """Run a problem to its end; None if `stop` was set meanwhile: the run is then ended."""
        with self._lock:
            self._asked += 1
            key = f"{problem.key}@{self._asked}"  # one that is run once more is another work
        over = threading.Event()
        found: list[JobResult] = []

        def end(result: JobResult) -> None:
            found.append(result)
            over.set()

        limit_s = run_limit_s(self._settings)
        asked = settings_of(problem, self._settings, self._candidates)
        with open(
            self._directory / "logs" / f"{problem.key}.log", "w", encoding="utf-8", buffering=1
        ) as log:
            errand = Errand(
                Asked(
                    Path(problem.path),
                    lambda file, out: optimize_words(asked, file, out),
                    self._directory / "runs" / problem.key,
                    self._settings.memory,
                    self._reference,
                    self._ceilings,
                ),
                self._home,
                lambda line: _keep(line, log, on_stage),
                end,
            )
            self._desk.add(Work(key, errand.job, errand, limit_s=limit_s, gpu=self._gpu))
            while not over.wait(_POLL_S):
                self._desk.check()
                if stop.is_set():
                    self._desk.cancel(key)
                    return None
        result = found[0]
        output = self._directory / "logs" / f"{problem.key}.json"
        output.write_text(result.stdout, encoding="utf-8")
        code = -signal.SIGKILL if result.exit_code is None else result.exit_code
        timed_out = result.exit_code is None
        return Exit(code, result.stdout, result.stderr, result.seconds, timed_out)


def _keep(line: str, log: IO[str], on_stage: Callable[[str, str], None]) -> None:
    if not log.closed:
        log.write(line + "\n")
    if stage := read_stage(line):
        on_stage(*stage)
