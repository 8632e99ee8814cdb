"""Lets Inductor tune a baseline while nobody else uses the GPU.

Runs inside the worker, from a copy of this file. Inductor then chooses as it would on a quiet
machine, and it disturbs nobody's times.

Source: torch._inductor.runtime.benchmarking; every autotuner of Inductor goes through the methods
of its `benchmarker`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch
from clocks import host_seconds
from lease import GpuLease

_synchronize = torch.cuda.synchronize
#: Inductor compiles all alternatives of a kernel first and then times one after the other; between
#: two it loads the next. A lease that was given back there would have to wait for others' checks
#: thirty times (a minute for a convolution, beside five other runs).
_LINGER_S = 0.2
#: How long the lease is kept through alternatives that follow each other closely: then whoever
#: waits goes first, once. A tuning of half a minute so waits fifteen times at most.
_LONGEST_S = 2.0
#: An alternative that takes longer is timed once.
_SLOW_S = 0.1
_METHODS = ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")


@contextmanager
def tuning_in_turn(lease: GpuLease | None) -> Iterator[None]:
    """Meanwhile hold the lease alone whenever Inductor times alternatives of a kernel.

    The lease is kept for `_LINGER_S` after each: alternatives are mostly timed in a row, and every
    turn may have to be waited for. In the end it is closed.

    Args:
        lease: of the GPU; None if nobody else is there.
    """
    if lease is None:
        yield
        return
    # only a baseline's worker needs Inductor, whose import takes seconds
    from torch._inductor.runtime import benchmarking

    tool = benchmarking.benchmarker
    turn = _Turn(lease)

    def alone(method: Callable) -> Callable:
        def benchmark(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202 - a pass-through
            with turn:
                return method(*args, **kwargs)

        return benchmark

    methods = [name for name in _METHODS if hasattr(tool, name)]
    for name in methods:
        method = getattr(tool, name)
        setattr(tool, name, alone(_once_if_slow(method) if name == "benchmark_gpu" else method))
    try:
        yield
    finally:
        for name in methods:
            delattr(tool, name)
        turn.close()


class _Turn:
    """A lease held alone while this context is entered, and for `_LINGER_S` after it was left.

    The context may be entered again while it is entered.
    """

    def __init__(self, lease: GpuLease) -> None:
        self._lease, self._held = lease, ExitStack()
        # how deep it is entered now, and how often that has changed
        self._depth, self._changes = 0, 0
        self._held_since: float | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            since = self._held_since
            if self._depth == 0 and since is not None and time.monotonic() - since > _LONGEST_S:
                self._let_go()
            self._depth += 1
            self._changes += 1  # a timer that is about to give the GPU back comes too late
            # does nothing where it is held
            hold = self._lease.hold(exclusive=True, purpose="tuning by Inductor")
            self._held.enter_context(hold)
            if self._held_since is None:
                self._held_since = time.monotonic()
            if self._depth == 1:
                _synchronize()

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._depth -= 1
            self._changes += 1
            if self._depth == 0:
                timer = threading.Timer(_LINGER_S, self._give_back, (self._changes,))
                timer.daemon = True
                timer.start()

    def _give_back(self, changes: int) -> None:
        with self._lock:
            if changes == self._changes:
                self._let_go()

    def _let_go(self) -> None:
        self._held.close()
        self._held_since = None

    def close(self) -> None:
        with self._lock:
            self._changes += 1
            self._let_go()
            self._lease.close()


def _once_if_slow(method: Callable) -> Callable:
    """`method`, which times a callable, but for one so slow that a single call is a time.

    Inductor would call such a one seven times, with the GPU to itself, and keep one time. Some
    convolution templates take seconds. The second call decides: the first also loads the kernel.
    """

    def benchmark(call, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
        # a kernel that cannot be launched is the method's own to report: some it calls infinitely
        # slow
        with suppress(Exception):
            if (
                kwargs.get("return_mode") != "all"
                and host_seconds(call) > _SLOW_S
                and (seconds := host_seconds(call)) > _SLOW_S
            ):
                return 1e3 * seconds
        return method(call, *args, **kwargs)

    return benchmark
