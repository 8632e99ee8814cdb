"""The processes of one run's evaluator: compilers and the judge's workers.

They need nothing of the session, so they come up while the problem is traced.
"""

import os
import tempfile
import time
from pathlib import Path

from kmem.host.cores import Cores
from kmem.host.environment import own_cores
from kmem.host.project_modules import imported_directories
from kmem.measure.pool.workers import WorkerPool
from kmem.profile.compile.pool import CompileProcesses
from kmem.records import Problem

#: Cores that compiling leaves to the processes that time the baselines meanwhile.
_CORES_FOR_TIMING = 2
#: Compile processes that come up before there is anything to compile: one for each kernel that is
#: measured ahead of the others.
_COMPILERS_AHEAD = 4
#: Compilers yield to the processes that time: a forward of many small kernels takes as long as its
#: host issues them. Source: 2 H200s, 32 cores, 8 runs at once, 2026-11-28: a network of 1.4 ms
#: measured at 9.3. Not so far that a baseline's own compilers, which do not yield, starve them.
_COMPILERS_NICENESS = 5


class EvaluatorProcesses:
    """Compilers and the judge's workers, for one evaluator. A context manager.

    With a GPU the processes start at once, before there is a session: their imports take as long as
    tracing the problem does, and otherwise the GPU would wait for both. Without a GPU processes
    start when they are first needed, because the interpreter takes minutes anyway.
    """

    def __init__(
        self,
        out_dir: Path,
        cache_dir: Path,
        problem: Problem | None = None,
        *,
        present: bool,
        baselines: int = 0,
    ) -> None:
        """Start the processes if there is a GPU.

        Args:
            out_dir: the run's directory.
            cache_dir: compiled kernels and locks, shared by all runs.
            problem: whose project's modules candidates may import.
            present: whether there is a GPU to judge on.
            baselines: how many of them are to be loaded at once as soon as there is a session.

        Raises:
            ExecutorError: if a process cannot be started.
            OSError: if out_dir cannot be written.
        """
        #: A run's minutes begin here.
        self.started_at = time.monotonic()
        self.cache_dir = cache_dir
        self.cores = Cores()
        cores, scratch = len(os.sched_getaffinity(0)), out_dir / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        self.workers = WorkerPool(
            Path(tempfile.mkdtemp(prefix="workers-", dir=scratch)),
            "cuda:0" if present else "cpu",
            cache_dir,
            keep_spare=present,
            reads=imported_directories(problem.source, problem.path) if problem else (),
        )
        processes = own_cores() or (max(1, cores - _CORES_FOR_TIMING) if present else cores)
        niceness = _COMPILERS_NICENESS if present else 0
        self.compilers = CompileProcesses(
            processes, cache_dir / "triton", niceness=niceness, cores=self.cores
        )
        try:
            if present:
                self.workers.prepare()
                self.workers.prepare_clean(baselines)
                self.compilers.start(min(_COMPILERS_AHEAD, processes))
        except BaseException:  # a started process must not outlive an interrupt or a full disk
            self.close()
            raise

    def __enter__(self) -> "EvaluatorProcesses":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; a second time does nothing."""
        self.workers.close()
        self.compilers.close()
