"""The times of calls: by CUDA events after the L2 cache was cleared, and by the host's clock.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
functions it uses are bound before a candidate could replace them. Whether a time can be true is for
the judge to say.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from results import Result

_clock = time.perf_counter
_median = statistics.median
_Event = torch.cuda.Event
_record, _elapsed_ms = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_synchronize, _sleep = torch.cuda.synchronize, torch.cuda._sleep
_allclose = torch.allclose
#: How far apart elements of two calls may be that sum in another order.
_ALIKE = 1e-2
#: How long the device idles before the first call, and at most before any, while the host queues
#: the call; without that an event pair also times how long the host takes to launch. Seen on a busy
#: machine: 0.2 to 0.6 ms for three launches that take 0.07 ms.
_FIRST_LEAD_S = _LONGEST_LEAD_S = 1e-3
#: Lead over the longest time that the host took for a call so far.
_LEAD_RATIO, _LEAD_EXTRA_S = 2.0, 5e-5
#: Of the SM clock, at most; a slower one makes the lead longer.
_CYCLES_PER_S = 2.0e9


class EventClock:
    """Times calls by CUDA events, with the whole device joined before the clock is read."""

    def __init__(self, l2_bytes: int) -> None:
        # Twice the L2 and more: nothing of the inputs survives it. int32, so that zero_ is a plain
        # fill.
        self._flush = torch.empty(
            max(5 * l2_bytes // 2, 2**27) // 4, dtype=torch.int32, device="cuda"
        )

    def time_calls(
        self,
        calls: list[Callable[[], object]],
        count: int,
        host_count: int = 0,
        look: Callable[[int, object], None] = lambda index, result: None,
    ) -> dict[str, list[float]]:
        """Event times in ms of `count` calls, and host times in ms of `host_count` more.

        `event_ms` is the device's time: a call waits on the device until the host has queued all of
        it, or for a millisecond; of a forward that the host issues for longer, what goes beyond is
        in its time, as its callers see it (`time_graph` leaves that out). `host_ms` is the wall
        time of call plus device-wide synchronisation, so that work on any stream is in it.

        Args:
            calls: taken in turn; one for each set of inputs.
            look: shown the number of each call and what it returned, after its end was recorded.
        """
        events = []
        lead_s, longest_s = _FIRST_LEAD_S, 0.0
        for index in range(count):
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            _sleep(int(lead_s * _CYCLES_PER_S))
            began = _clock()
            self._flush.zero_()
            _record(start)
            result = calls[index % len(calls)]()
            _record(end)
            longest_s = max(longest_s, _clock() - began)
            lead_s = min(_LONGEST_LEAD_S, _LEAD_RATIO * longest_s + _LEAD_EXTRA_S)
            events.append((start, end))
            look(index, result)
            del result
        _synchronize()
        event_ms = [_elapsed_ms(start, end) for start, end in events]
        return {
            "event_ms": event_ms,
            "host_ms": [self._host_ms(calls[index % len(calls)]) for index in range(host_count)],
        }

    def _host_ms(self, call: Callable[[], object]) -> float:
        self._flush.zero_()
        return host_seconds(call) * 1e3

    def time_graph(self, call: Callable[[], Result], count: int) -> list[float] | None:
        """Event times in ms of `count` launches of the call, captured as a CUDA graph.

        That is kernel time without the overhead of launches. None if it cannot be captured, or if
        the graph leaves something else than the call returns: a call may know that it is captured.
        A module that draws random numbers counts among these.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                captured = call()
        # a call that synchronises or allocates on the host side cannot be captured, nor one that a
        # compiler guards; that is no fault
        except Exception:  # noqa: BLE001
            _synchronize()
            return None
        times = self.time_calls([graph.replay], count)["event_ms"]
        return times if _are_alike(captured.leaves, call().leaves) else None


class Timed:
    """A call, and the wall time in seconds of its last one."""

    def __init__(self, call: Callable[[], Result], *, on_gpu: bool) -> None:
        """Not called yet.

        Args:
            on_gpu: the device is joined before and after.
        """
        self._call, self._on_gpu = call, on_gpu
        self.seconds = 0.0

    def __call__(self) -> Result:
        self._join()
        started = _clock()
        result = self._call()
        self._join()
        self.seconds = _clock() - started
        return result

    def _join(self) -> None:
        if self._on_gpu:
            _synchronize()


def _are_alike(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether the results of two calls are the same but for rounding."""
    return all(
        _allclose(one, two, rtol=_ALIKE, atol=_ALIKE, equal_nan=True)
        for one, two in zip(results, others, strict=True)
    )


def time_host(call: Callable[[], object], count: int) -> dict[str, float]:
    """What the host takes for a call, in microseconds, and calls without a pause, in ms each.

    `host_us` is the time in which a call is issued while the device is busy with something else, so
    that nothing waits for the device, the median of so many: one at a time, for a device takes no
    more than about a thousand launches ahead, and then the host waits after all.
    `back_to_back_ms` is wall time, the device joined at the end.
    """
    expected_s = host_seconds(call)
    issued_s = []
    for _ in range(count):
        _synchronize()
        _sleep(int(2 * expected_s * _CYCLES_PER_S))
        started = _clock()
        call()
        issued_s.append(_clock() - started)
    _synchronize()
    started = _clock()
    for _ in range(count):
        call()
    _synchronize()
    wall_s = _clock() - started
    return {"host_us": 1e6 * _median(issued_s), "back_to_back_ms": 1e3 * wall_s / count}


def host_seconds(call: Callable[[], object]) -> float:
    """The wall time of a call, with the device idle before it and joined after it."""
    _synchronize()
    started = _clock()
    call()
    _synchronize()
    return _clock() - started
