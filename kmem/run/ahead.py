"""What a run begins with, compiled before the run: on another machine, or while another runs."""

from collections.abc import Callable, Sequence, Set
from pathlib import Path

from kmem.errors import KmemError
from kmem.host.environment import own_cores
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileStatus
from kmem.records import Attempt, Baseline, Device, Kernel, Measurement, Profile, Run
from kmem.run.evaluation.evaluator import Admitted, Evaluator
from kmem.run.loop import optimize
from kmem.run.setup.session import open_session

#: For all candidates of a first round; what is not compiled by then is left to the run.
_WITHIN_S = 600.0
_TIMEOUT_S = 120.0
#: Runs that measure on this machine meanwhile go first.
_NICENESS = 10


def compile_beginning(
    run: Run, device: Device, present: bool, registry: Registry, memory: Memory, cache_dir: Path
) -> int:
    """Compile the candidates of a run's first round into a cache; how many compiled.

    Args:
        run: is begun in memory, and goes no further: a memory that is thrown away afterwards.
        present: whether the run will find the device; here it may be missing.
        cache_dir: Triton's.

    Raises:
        KmemError: if the problem cannot be run.
    """
    session = open_session(run.problem, run.contract, device, present, registry, memory)
    memory.runs.start(run)
    cores = own_cores() or 1  # what a worker without a GPU has
    with (
        CompileProcesses(cores, cache_dir, niceness=_NICENESS) as processes,
        CompilePool(session.traced, processes=processes, read_binaries=False) as pool,
    ):
        try:
            optimize(
                run, session, memory, registry, _ignore, open_evaluator=lambda _: _Beginning(pool)
            )
        except _Compiled as found:
            return found.count
    return 0


def _ignore(event: object) -> None:
    """Nobody is told."""


class _Compiled(KmemError):
    """The end of a run that is only begun."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} candidates are compiled")
        self.count = count


class _Beginning(Evaluator):
    """Compiles what a run is about to ask for first, and ends it once it would go on with that."""

    measures = False

    def __init__(self, pool: CompilePool) -> None:
        self._pool = pool
        self._compiled = 0

    @property
    def seconds_left(self) -> float:
        return _WITHIN_S

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        return

    def expect(self, kernels: Sequence[Kernel]) -> None:
        reports = self._pool.compile(kernels, timeout_s=_TIMEOUT_S, within_s=_WITHIN_S)
        self._compiled += sum(report.status is CompileStatus.OK for report in reports)

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        raise _Compiled(self._compiled)

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        raise NotImplementedError

    def verify(self, kernel: Kernel, baselines: object) -> Measurement:
        raise NotImplementedError

    def profile(self, attempt: Attempt) -> Profile:
        raise NotImplementedError

    def close(self) -> None:
        """Whoever opened the pool ends it."""
