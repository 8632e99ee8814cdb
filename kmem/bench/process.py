"""One problem in one process: `python -m kmem optimize PROBLEM --json`, followed to its end."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO

from kmem.bench.problems import BenchProblem
from kmem.bench.purse import Purse
from kmem.bench.results import Settings
from kmem.bench.rows import Exit
from kmem.errors import BUDGET_SPENT
from kmem.host.cores import POOL_VARIABLE, name_pool
from kmem.host.environment import CORES_VARIABLE
from kmem.host.lease import HOLDS_VARIABLE
from kmem.host.process_group import kill_group

#: A run's minutes do not count waiting for the GPU, nor baselines that have a limit of their own.
_LIMIT_OVER_BUDGET = 2.0
#: On a GPU a run compiles on so many times its share of the cores, of a pool for all: it compiles
#: in bursts, and for most of its time waits for the device. Source: 2 H200s, 32 cores, 10 runs at
#: once, 2026-11-22: 11.5 cores were busy on average.
_BURST_RATIO = 2
_LIMIT_EXTRA_S = 1200.0
#: How long an interrupted run may take to write down where it stands.
_GRACE_S = 20.0
_POLL_S = 0.1
_KMEM = (sys.executable, "-P", "-m", "kmem")
#: "stage text  [where it stands]", as kmem/cli/optimize.py prints it.
_PROGRESS = re.compile(r"(\w+) +(.*?)  \[(.*)\]")


class OptimizeProcess:
    """A runner for schedule.run_problems: each process sees the one GPU that fewest others see."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        gpus: Sequence[str] = (),
        *,
        jobs: int = 1,
        purse: Purse | None = None,
        find_begun: Callable[[Path], str | None] = lambda directory: None,
        candidates: Mapping[str, int] | None = None,
    ) -> None:
        """Share the GPUs and the cores out among the processes.

        Args:
            directory: the bench's; logs/ and runs/ in it belong to this class.
            gpus: as `visible_gpus` calls them, none without a GPU.
            jobs: problems at once on each.
            purse: what language models may cost; None: no limit.
            find_begun: the id of a run that memory knows, by its directory; for runs whose answers
                were paid for.
            candidates: of a round, by the key of the problem; by default those of the settings.
        """
        self._candidates = candidates or {}
        self._purse = purse
        self._find_begun = find_begun
        self.settings = settings
        self.directory = directory
        #: The word under which each hold of a GPU is written down.
        self.holds = f"bench-{os.getpid()}"
        self._places: queue.LifoQueue[dict[str, str]] = queue.LifoQueue()
        places = jobs * ([{"CUDA_VISIBLE_DEVICES": gpu} for gpu in reversed(gpus)] or [{}])
        every = len(os.sched_getaffinity(0))
        cores = max(1, every // len(places))
        # beside a GPU each run has a process of its own at work, which nothing holds up
        pool = max(1, every - min(len(places), every // 2)) if gpus else every
        bursts = min(pool, _BURST_RATIO * cores) if gpus else cores
        self._crowded = max(1.0, len(places) / every)
        plan = {
            CORES_VARIABLE: str(bursts),
            "OMP_NUM_THREADS": str(cores),
            POOL_VARIABLE: name_pool(directory / "cores", pool) if len(places) > 1 else "",
        }
        shared = {
            name: value
            for name, value in plan.items()
            if name not in os.environ and len(places) > 1
        }
        shared[HOLDS_VARIABLE] = self.holds
        for place in places:  # last in, first out: the first problems go to different GPUs
            self._places.put(shared | place)

    @contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        """The environment of one process, while there is a place for it."""
        place = self._places.get()
        try:
            yield {**os.environ, **place}
        finally:
            self._places.put(place)

    def __call__(
        self, problem: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit | None:
        """Run a problem to its end, as `run_at` does, at a place that is free."""
        with self._environment() as environment:
            return self.run_at(problem, on_stage, stop, environment)

    def run_at(
        self,
        problem: BenchProblem,
        on_stage: Callable[[str, str], None],
        stop: threading.Event,
        environment: dict[str, str],
    ) -> Exit | None:
        """Run a problem to its end.

        Args:
            on_stage: called with stage and text of each progress line, from another thread.

        Returns:
            None if `stop` was set meanwhile: the process is then ended and there is no outcome.
        """
        with self._purse.share(problem) if self._purse else nullcontext() as usd:
            ended = self._run(problem, on_stage, stop, environment, usd)
            if self._purse and ended is not None and BUDGET_SPENT in ended.stdout:
                self._purse.was_spent(problem)
            return ended

    def run_directory(self, problem: BenchProblem) -> Path:
        """Where the run of a problem keeps its files."""
        return self.directory / "runs" / problem.key

    def _run(
        self,
        problem: BenchProblem,
        on_stage: Callable[[str, str], None],
        stop: threading.Event,
        environment: dict[str, str],
        usd: float | None,
    ) -> Exit | None:
        run_directory = self.run_directory(problem)
        log, output = (
            self.directory / "logs" / f"{problem.key}.{suffix}" for suffix in ("log", "json")
        )
        begun = self._find_begun(run_directory) if self.settings.authors else None
        if begun is None:
            # left by a bench that was killed; its measurements would be taken for this run's
            shutil.rmtree(run_directory, ignore_errors=True)
        limit_s = self._crowded * run_limit_s(self.settings)
        started = time.monotonic()
        # The output goes to a file, so that only one pipe has to be read. A session of its own
        # keeps a Ctrl-C on the terminal away from the run: the schedule decides who is interrupted.
        # If the bench is killed, the run ends when it next reports on the broken pipe.
        with open(output, "w", encoding="utf-8") as stdout:
            process = subprocess.Popen(
                resume_command(begun) if begun else self.command(problem, run_directory, usd),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env=environment,
            )
        reader = threading.Thread(target=_follow, args=(process.stderr, log, on_stage), daemon=True)
        reader.start()
        stopped, timed_out = _wait(process, stop, started + limit_s)
        seconds = time.monotonic() - started
        reader.join(timeout=_GRACE_S)  # a grandchild that outlives the run may keep the pipe open
        if stopped:
            return None
        return Exit(
            process.returncode,
            output.read_text(errors="replace"),
            log.read_text(encoding="utf-8"),
            seconds,
            timed_out,
        )

    def command(
        self, problem: BenchProblem, run_directory: Path, usd: float | None = None
    ) -> list[str]:
        """The command line that runs a problem."""
        asked = settings_of(problem, self.settings, self._candidates)
        return [*_KMEM, *optimize_words(asked, problem.path, str(run_directory), usd)]


def settings_of(
    problem: BenchProblem, settings: Settings, candidates: Mapping[str, int]
) -> Settings:
    """Those of one problem, whose candidates may be counted by its key."""
    return replace(settings, candidates=candidates.get(problem.key, settings.candidates))


def run_limit_s(settings: Settings) -> float:
    """When a run that has not ended is ended, in seconds."""
    minutes = settings.minutes * _LIMIT_OVER_BUDGET
    return 60 * (minutes + (settings.baseline_minutes or 0.0)) + _LIMIT_EXTRA_S


def optimize_words(
    asked: Settings, problem: str, run_directory: str, usd: float | None = None
) -> list[str]:
    """What kmem is told to run a problem, without the program itself."""
    options = {
        "--precision": asked.precision,
        "--purity": asked.purity,
        "--memory": asked.memory,
        "--rounds": str(asked.rounds),
        "--strategy": asked.strategy,
        "--minutes": str(asked.minutes),
        "--candidates": str(asked.candidates),
        "--baselines": asked.baselines,
    }
    if asked.baseline_minutes is not None:
        options["--baseline-minutes"] = str(asked.baseline_minutes)
    if asked.target:
        options["--target"] = asked.target
    if usd is not None and asked.authors:
        options["--usd"] = f"{usd:.6f}"
    options["--out"] = run_directory
    words = ["optimize", problem, *chain.from_iterable(options.items())]
    return [*words, *asked.authors, "--json"]


def resume_command(run_id: str) -> list[str]:
    """The command line that goes on with a run."""
    return [*_KMEM, "runs", "resume", run_id, "--json"]


def _follow(stderr: IO[str], log: Path, on_stage: Callable[[str, str], None]) -> None:
    """Keep what a run says and pass its progress on."""
    with stderr, open(log, "w", encoding="utf-8", buffering=1) as kept:
        for line in stderr:
            kept.write(line)
            if stage := read_stage(line.rstrip("\n")):
                on_stage(*stage)


def read_stage(line: str) -> tuple[str, str] | None:
    """Stage and text of a progress line; None if it is none."""
    match = _PROGRESS.fullmatch(line)
    return (match[1], match[2]) if match else None


def _wait(process: subprocess.Popen, stop: threading.Event, deadline: float) -> tuple[bool, bool]:
    """Wait for a process, or end it with its whole group.

    Returns:
        Whether it was stopped, and whether its time was over.
    """
    while process.poll() is None:
        if stop.wait(_POLL_S):
            _end(process)
            return True, False
        if time.monotonic() > deadline:
            _end(process)
            return False, True
    return False, False


def _end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        process.wait()
