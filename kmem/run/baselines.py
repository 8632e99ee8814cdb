"""How fast the unmodified module is: remembered, timed in the background, or estimated.

Memory keeps baselines by problem, workload, device, contract and versions, so that a problem is
timed once on a machine, whichever command wants to know.
"""

from concurrent.futures import Executor, Future

from kmem.memory.store import Memory
from kmem.problem.traced import TracedProblem
from kmem.records import Baseline, Contract
from kmem.run.evaluator import Evaluator
from kmem.run.history import History
from kmem.run.progress import Announce
from kmem.run.session import Session, versions


def known_baselines(memory: Memory, traced: TracedProblem) -> tuple[Baseline, ...]:
    """The baselines that memory holds for a problem as it would be timed here; empty if none."""
    return tuple(memory.devices.baselines(*_key(traced)))


def keep_baselines(memory: Memory, traced: TracedProblem, found: tuple[Baseline, ...]) -> None:
    """Keep what was timed here for every later command."""
    memory.devices.put_baselines(*_key(traced), found)


def _key(traced: TracedProblem) -> tuple[str, str, str, Contract, dict[str, str]]:
    return (
        traced.problem.hash,
        traced.workload.name,
        traced.device.full_name,
        traced.contract,
        versions(),
    )


class RunBaselines:
    """The baselines of one run; once they are known, the history has them too."""

    def __init__(
        self,
        session: Session,
        memory: Memory,
        history: History,
        evaluator: Evaluator,
        background: Executor,
    ) -> None:
        """Nothing is timed yet.

        Args:
            background: runs the timing while the first candidates compile.
        """
        self._session = session
        self._memory = memory
        self._history = history
        self._evaluator = evaluator
        self._background = background
        self._timing: Future[tuple[Baseline, ...]] | None = None

    def start(self, announce: Announce) -> None:
        """Begin to find out how fast the module is, while the first candidates compile."""
        if not self._session.present:
            self._history.baselines = self._evaluator.baselines()
            return
        self._history.baselines = known_baselines(self._memory, self._session.traced)
        if not self._history.baselines:
            announce("measure", "timing the module itself: eager, compiled, max-autotune")
            self._timing = self._background.submit(self._evaluator.baselines)

    def wait(self) -> tuple[Baseline, ...]:
        """The baselines; those that were just timed are kept in memory."""
        if self._timing is not None:
            self._history.baselines = self._timing.result()
            self._timing = None
            keep_baselines(self._memory, self._session.traced, self._history.baselines)
        return self._history.baselines
