"""The competition of one problem: ways to run the module itself, timed each in a clean worker.

In order: processes come up at once, eager and torch.compile are loaded and compiled side by side
where there is room for both, then timed one after the other; max-autotune, which tunes for long,
comes last. Meanwhile another thread has kernels judged: both take turns on the GPU.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kmem.host.lease import GpuLease
from kmem.measure.examine.examination import Examination
from kmem.measure.oracle.running.forward import room_for
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.resources import JudgeResources, open_lease
from kmem.measure.timing.baseline import (
    SLOW_BASELINE,
    prepare_baseline,
    time_baseline,
    untimed_baseline,
)
from kmem.measure.timing.gpu_clock import LoadedModule
from kmem.measure.timing.inputs import TimedInputs
from kmem.records import Baseline, fastest_baseline

#: Two baselines are loaded at once if the device has so many times the bytes that the problem moves
#: at least: each holds parameters, inputs and intermediate values, beside those of candidates.
_SIDE_BY_SIDE_RATIO = 32
#: How often a verification that waits for baselines looks whether they are known, in seconds.
_LOOK_S = 0.02
_PURPOSE = "loading baselines"  # what the GPU is held for


@dataclass(frozen=True, slots=True)
class Awaited:
    """Baselines that are still being timed while a kernel is checked against the module."""

    is_settled: Callable[[], bool]  # whether waiting on has no use: they are known, or time is up
    known: Callable[[], Sequence[Baseline]]  # those that are known by now


def settle_baselines(
    examination: Examination, baselines: Sequence[Baseline] | Awaited
) -> Sequence[Baseline]:
    """The baselines to time a checked kernel against, waited for if they are awaited.

    Whoever times them gets the GPU meanwhile. Raises Refused: once the kernel's own time is over.
    """
    if not isinstance(baselines, Awaited):
        return baselines
    while not baselines.is_settled():
        examination.pause()
        time.sleep(_LOOK_S)
    return baselines.known()


class Competition:
    """Times the baselines of one judge, in one go; see `Judge.baselines`."""

    def __init__(
        self,
        resources: JudgeResources,
        workers: WorkerPool,
        locks: Path,
        limit_s: float,
        on_event: Callable[[str], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            locks: directory of the GPU's lease.
            limit_s: seconds from now; a baseline that is not timed by then is `timed_out`.
            on_event: told in a few words what is being done.
        """
        self._resources = resources
        self._pool = workers
        self._locks = locks
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s
        self._on_event = on_event
        self._workers: dict[str, WorkerProcess] = {}
        self._found: list[Baseline] = []

    def time_all(
        self, names: Sequence[str], on_found: Callable[[Baseline], None]
    ) -> tuple[Baseline, ...]:
        """Every baseline named, in this order; each is told the moment it is known."""
        quick = [name for name in names if name != SLOW_BASELINE]
        slow = [name for name in names if name == SLOW_BASELINE]
        for name in quick:
            self._start(name)
        self._resources.try_on_cpu()
        with open_lease(self._locks, self._on_event) as lease:  # this thread's own
            shared = lease.hold(exclusive=False, purpose=_PURPOSE)
            with shared, room_for(self._resources.traced.problem):
                inputs = self._resources.timed_inputs()
            groups = [quick] if self._has_room_for_all() else [[name] for name in quick]
            for group in [*(group for group in groups if group), *([slow] if slow else [])]:
                for baseline in self._time_group(group, inputs, lease):
                    self._found.append(baseline)
                    self._hand_on(is_last=baseline.name in (*quick[-1:], names[-1]))
                    for name in slow:  # its process comes up while the others are timed
                        self._start(name)
                    on_found(baseline)
        return tuple(self._found)

    def _has_room_for_all(self) -> bool:
        traced = self._resources.traced
        if traced.bound is None:
            return False
        return traced.bound.bytes * _SIDE_BY_SIDE_RATIO <= traced.device.memory_bytes

    def _start(self, name: str) -> None:
        """Begin a worker for a baseline, unless it has one, was timed or would be late."""
        was_timed = name in {baseline.name for baseline in self._found}
        if name not in self._workers and not was_timed and self._left_s() > 0:
            self._workers[name] = self._pool.start(clean=True)

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    def _time_group(
        self, names: Sequence[str], inputs: TimedInputs, lease: GpuLease
    ) -> Iterator[Baseline]:
        """Load and compile baselines side by side, then time one after the other."""
        device, reference = self._resources.traced.device, self._resources.reference()
        with ThreadPoolExecutor(len(names)) as threads:
            loading: dict[str, Future[Baseline | None]] = {}
            for name in names:
                if self._left_s() <= 0:
                    continue
                self._start(name)
                worker = self._workers[name].wait_ready()
                shared = lease.hold(exclusive=False, purpose=_PURPOSE)
                with shared, room_for(self._resources.traced.problem):
                    inputs.show(worker)
                    inputs.refresh(worker)
                loading[name] = threads.submit(
                    prepare_baseline,
                    LoadedModule(worker, name),
                    inputs.names(worker),
                    reference,
                    lease.place,
                    l2_bytes=device.l2_bytes,
                    limit_s=self._left_s(),
                )
            for name in names:
                if name not in loading:
                    yield untimed_baseline(name, self._limit_s)
                    continue
                self._on_event(f"timing baseline {name}")
                failed = loading[name].result()
                if failed is not None:
                    yield failed
                    continue
                worker = self._workers[name]
                yield time_baseline(
                    LoadedModule(worker, name),
                    inputs.names(worker),
                    lease,
                    l2_bytes=device.l2_bytes,
                    limit_s=self._left_s(),
                )

    def _hand_on(self, *, is_last: bool) -> None:
        """Keep the best baseline's worker for paired timing, and end those that lost.

        Device memory is wanted; but a worker that was handed on may be in use.

        Args:
            is_last: whether the best so far is to be at hand from now on.
        """
        best = fastest_baseline(self._found)
        timed = {baseline.name for baseline in self._found}
        for name in [name for name in self._workers if best is None or name != best.name]:
            if name in timed:
                self._pool.discard(self._workers.pop(name))
        if best is not None and is_last and best.name in self._workers:
            self._resources.keep_baseline_worker(best.name, self._workers.pop(best.name))
