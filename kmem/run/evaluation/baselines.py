"""How fast the unmodified module is: remembered, timed beside the search, or estimated.

Memory keeps baselines by the module's text, workload, device, precision and the versions of torch
and Triton, so that a problem is tuned once on a machine, whichever command wants to know. Against
the winner the best of them is timed again, in pairs.
"""

import math
import re
import threading
import time
from collections.abc import Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from kmem.measure.timing.baseline import SLOW_BASELINE
from kmem.memory.store import Memory
from kmem.problem.source.load import FULL
from kmem.problem.traced import TracedProblem
from kmem.records import BASELINES, Baseline, Budget, Contract, Device, Problem, fastest_baseline
from kmem.run.evaluation.evaluator import Evaluator
from kmem.run.setup.session import Session, versions
from kmem.run.state.history import History
from kmem.run.state.progress import Announce

#: What the time of the unmodified module depends on, besides what it is and where it runs.
_COMPONENTS = ("torch", "triton", "cuda")
#: In the log of a baseline that failed: what may be otherwise another time.
_PASSING = re.compile(r"out of memory|OutOfMemory|CUDA error|the worker ", re.IGNORECASE)
#: How long max-autotune waits at most for the first verified kernel, in seconds since the baselines
#: were begun, and which part of what the search has left then: tuning takes turns on the GPU with
#: that kernel's checks, and nobody waits for it before the end.
_TUNING_AFTER_S, _TUNING_AFTER_PART = 20.0, 1 / 3
#: What timing the baselines is given at least.
_LEAST_S = 1.0


def known_baselines(memory: Memory, traced: TracedProblem) -> tuple[Baseline, ...]:
    """The baselines that memory holds for a problem as it would be timed here; empty if none."""
    return tuple(memory.devices.baselines(*_key(traced)))


def count_loaded_at_once(
    memory: Memory, problem: Problem, device: Device, contract: Contract, names: Collection[str]
) -> int:
    """How many baselines a run on a GPU loads as soon as its problem is traced.

    These are the quick ones that are not remembered; or else one of those that are.

    Args:
        names: of the baselines that the run asks for.
    """
    key = _make_key(problem, FULL.name, device, contract)
    known = {baseline.name for baseline in memory.devices.baselines(*key)}
    return len({*names} - known - {SLOW_BASELINE}) or min(1, len({*names} & known))


def keep_baselines(memory: Memory, traced: TracedProblem, found: tuple[Baseline, ...]) -> None:
    """Keep what was found here for every later command.

    What timed out is tried again there, and so is what failed for want of memory or lost its
    device: another time it may have more room, and a baseline that is missing flatters kernels.
    """
    lasting = [
        baseline
        for baseline in found
        if not baseline.timed_out and (baseline.timing or not _PASSING.search(baseline.log))
    ]
    memory.devices.put_baselines(*_key(traced), lasting)


def _key(traced: TracedProblem) -> tuple[str, str, str, Contract, dict[str, str]]:
    return _make_key(traced.problem, traced.workload.name, traced.device, traced.contract)


def _make_key(
    problem: Problem, workload: str, device: Device, contract: Contract
) -> tuple[str, str, str, Contract, dict[str, str]]:
    return (
        problem.hash,
        workload,
        device.full_name,
        Contract(contract.precision),  # what kernels may call does not change the module
        {name: version for name, version in versions().items() if name in _COMPONENTS},
    )


@dataclass(frozen=True, slots=True)
class BackgroundTiming:
    """Where baselines are timed beside the search, and what a run asked of them."""

    threads: Executor
    budget: Budget

    def limit_s(self, evaluator: Evaluator) -> float:
        """How long timing the baselines may take, in seconds from now.

        Without a limit of their own it is until half of what is kept for the final verification is
        left: a winner is timed once more against a baseline that comes last.
        """
        if self.budget.baseline_minutes is not None:
            return 60 * self.budget.baseline_minutes
        return max(_LEAST_S, evaluator.seconds_left - evaluator.reserve_s / 2)


class RunBaselines:
    """The baselines of one run; once they are known, the history has them too."""

    def __init__(
        self,
        session: Session,
        memory: Memory,
        history: History,
        evaluator: Evaluator,
        timing: BackgroundTiming,
    ) -> None:
        """Nothing is timed yet."""
        self._session = session
        self._memory = memory
        self._history = history
        self._evaluator = evaluator
        self._timing = timing
        self._names = tuple(name for name in BASELINES if name in timing.budget.baselines)
        self._found: dict[str, Baseline] = {}
        self._kept: set[str] = set()
        self._changed = threading.Condition()
        self._may_tune = threading.Event()
        self._tune_at = math.inf  # by time.monotonic()
        self._task: Future[None] | None = None

    def start(self, announce: Announce) -> None:
        """Begin to find out how fast the module is, beside all that follows."""
        if not self._session.present:
            self._time(self._names)  # estimates are there at once
            self._publish()
            return
        for baseline in known_baselines(self._memory, self._session.traced):
            if baseline.name in self._names:
                self._found[baseline.name] = baseline
                self._kept.add(baseline.name)
        missing = tuple(name for name in self._names if name not in self._found)
        if missing:
            announce("measure", f"timing the module itself beside the search: {', '.join(missing)}")
            left_s = self._evaluator.seconds_left * _TUNING_AFTER_PART
            self._tune_at = time.monotonic() + min(_TUNING_AFTER_S, max(0.0, left_s))
            self._task = self._timing.threads.submit(self._time, missing)
        elif (best := fastest_baseline(tuple(self._found.values()))) is not None:
            self._timing.threads.submit(self._evaluator.load_baseline, best.name)
        self._publish()

    @property
    def is_quick_known(self) -> bool:
        """Whether those baselines are known that take seconds to time."""
        with self._changed:
            return self._are_quick_found()

    def wait_for_first(self, at_most_s: float) -> tuple[Baseline, ...]:
        """The baselines that are known once one has a time, all have come, or the wait is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    any(each.timing for each in self._found.values()) or self._are_quick_found()
                ),
                max(0.0, at_most_s),
            )
        return self._publish()

    def wait_for_quick(self, at_most_s: float = math.inf) -> tuple[Baseline, ...]:
        """The baselines that are known once eager and torch.compile are, or the wait is over.

        Args:
            at_most_s: how long to wait, in seconds.
        """
        with self._changed:
            self._changed.wait_for(
                self._are_quick_found, at_most_s if math.isfinite(at_most_s) else None
            )
        if self._task is not None and self._task.done():
            self._task.result()  # raises what ended it
        return self._publish()

    def let_tune(self) -> None:
        """Let max-autotune begin: the search has a verified kernel, or ends."""
        self._may_tune.set()

    def wait(self) -> tuple[Baseline, ...]:
        """All baselines, at the latest when their limit is reached; waiting costs no minutes."""
        self.let_tune()
        if self._task is not None:
            started = time.monotonic()
            self._task.result()
            self._task = None
            self._evaluator.grant_s(time.monotonic() - started)
        return self._publish()

    def _time(self, names: tuple[str, ...]) -> None:
        """In the background: time what is missing, and wake whoever waits, whatever happens."""
        try:
            self._evaluator.baselines(names, self._timing.limit_s(self._evaluator), self._take)
        finally:
            with self._changed:
                self._names = tuple(self._found)  # nothing else is to come
                self._changed.notify_all()

    def _take(self, baseline: Baseline) -> None:
        """Keep a baseline; whoever times them goes on to max-autotune once that may begin."""
        with self._changed:
            self._found[baseline.name] = baseline
            self._changed.notify_all()
            is_next = SLOW_BASELINE in self._names and self._are_quick_found()
        if is_next and SLOW_BASELINE not in self._found:
            self._may_tune.wait(max(0.0, self._tune_at - time.monotonic()))

    def _are_quick_found(self) -> bool:
        return all(name in self._found for name in self._names if name != SLOW_BASELINE)

    def _publish(self) -> tuple[Baseline, ...]:
        """Tell the history what is known by now, and keep in memory what is new."""
        with self._changed:
            found = tuple(self._found[name] for name in BASELINES if name in self._found)
        fresh = tuple(baseline for baseline in found if baseline.name not in self._kept)
        if fresh and self._session.present:
            keep_baselines(self._memory, self._session.traced, fresh)
            self._kept.update(baseline.name for baseline in fresh)
        self._history.baselines = found
        return found
