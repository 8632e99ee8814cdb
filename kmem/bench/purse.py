"""The dollars of a bench: what is left for the next problem, and when there is too little.

What problems cost is asked anew each time, from the records of their runs, so that a bench that was
killed goes on with what is left. A problem that starts is given its share of what nobody holds.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kmem.bench.problems import BenchProblem


class Purse:
    """What the language models of a bench may still cost. Safe to use from several threads."""

    def __init__(
        self,
        usd: float,
        problems: Sequence[BenchProblem],
        spent_usd: Callable[[BenchProblem], float],
        *,
        jobs: int = 1,
    ) -> None:
        """Nothing is held yet.

        Args:
            usd: for all problems together.
            spent_usd: what a problem's run has cost so far; 0 if there is none.
            jobs: problems at once.
        """
        self._usd = usd
        self._problems = problems
        self._spent_usd = spent_usd
        self._jobs = jobs
        self._too_little = 0.0  # dollars that did not pay for a question
        self._held: dict[str, float] = {}  # by problem under way, counted in it what it has spent
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether what is left does not pay for a further problem, by what others took so far."""
        with self._lock:
            ended = [spent for spent in self._by_problem().values() if spent > 0]
            usual = sum(ended) / len(ended) if ended else 0.0
            left = self._left()
            return left <= self._too_little or left < usual

    @property
    def spent(self) -> float:
        """What all problems have cost so far, in dollars."""
        with self._lock:
            return sum(self._spent(problem) for problem in self._problems)

    @contextmanager
    def share(self, problem: BenchProblem) -> Iterator[float]:
        """Dollars for one problem in all, earlier sittings included, while it runs."""
        with self._lock:
            free = max(1, self._jobs - len(self._held))
            had = self._spent(problem)
            self._held[problem.key] = max(0.0, self._left()) / free + had
            share = self._held[problem.key]
        try:
            yield share
        finally:
            with self._lock:
                self._held.pop(problem.key)

    def was_spent(self, problem: BenchProblem) -> None:
        """Note that the share of a problem under way did not pay for its next question."""
        with self._lock:
            rest = self._held[problem.key] - self._spent(problem)
            self._too_little = max(self._too_little, rest)

    def _left(self) -> float:
        return self._usd - sum(self._by_problem().values()) - sum(self._held.values())

    def _by_problem(self) -> dict[str, float]:
        """What each problem that does not run now has cost."""
        return {
            problem.key: self._spent(problem)
            for problem in self._problems
            if problem.key not in self._held
        }

    def _spent(self, problem: BenchProblem) -> float:
        return self._spent_usd(problem)
