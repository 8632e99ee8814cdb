"""What a worker observes about one call: operators dispatched, Triton launches, GPU kernels by
time, and times by CUDA events.

Runs inside the worker, from a copy of this file (torch, triton and the standard library only), and
is imported before any candidate, so that the functions it uses are bound before a candidate could
replace them. Verdicts on what is seen here are the judge's.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

_LIBRARIES = (os.path.dirname(torch.__file__), os.path.dirname(triton.__file__))
_clock = time.perf_counter
_Event = torch.cuda.Event
_record, _elapsed_ms = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_synchronize, _sleep = torch.cuda.synchronize, torch.cuda._sleep


class OperatorLog(TorchDispatchMode):
    """Names of the operators that reach the dispatcher, with how often: {"aten.mm.default": 1}."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))


class LaunchCounter:
    """Counts Triton launches, compiled or interpreted, and can turn them into no-ops to see whether
    the answer needs them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.suppressed = False
        if triton.knobs.runtime.interpret:
            from triton.runtime.interpreter import GridExecutor

            self._wrap(GridExecutor, "__call__")
        else:
            from triton.runtime.jit import JITFunction

            self._wrap(JITFunction, "run")

    def _wrap(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def launch(function, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
            self.count += 1
            return None if self.suppressed else original(function, *args, **kwargs)

        setattr(owner, name, launch)


class Integrity:
    """Notices functions and global flags of torch, triton and time that a candidate has replaced,
    however it reached them.

    Compared by identity with what stood there when the worker started. Names added since are no
    concern, nor are torch's wrappers around its own functions: it imports lazily, and importing its
    compiler wraps some.
    """

    def __init__(self) -> None:
        import triton.language

        owners = (
            torch,
            torch.Tensor,
            torch.nn.Module,
            torch.nn.functional,
            torch.cuda,
            torch.cuda.Event,
            torch.linalg,
            triton,
            triton.language,
            triton.JITFunction,
            time,
        )
        self._names = {
            owner: {name: value for name, value in vars(owner).items() if callable(value)}
            for owner in owners
        }
        self._flags = _global_flags()

    def changed(self) -> list[str]:
        """Names of what is no longer what it was; empty if all is well."""
        found = [
            f"{owner.__name__}.{name}"
            for owner, names in self._names.items()
            for name, value in names.items()
            if (now := vars(owner).get(name)) is not value
            and not name.startswith("__")
            and not _wraps_itself(name, now)
        ]
        return found + [
            name for name, value in _global_flags().items() if value != self._flags[name]
        ]


def _wraps_itself(name: str, value: object) -> bool:
    """Whether this is a function of the libraries' own files that goes by the name it stands under."""
    code = getattr(value, "__code__", None)
    return (
        getattr(value, "__name__", None) == name
        and code is not None
        and code.co_filename.startswith(_LIBRARIES)
    )


def _global_flags() -> dict[str, object]:
    return {
        "the default dtype": str(torch.get_default_dtype()),
        "the default device": str(torch.get_default_device()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled(),
        "the number of threads": torch.get_num_threads(),
    }


#: The CUDA allocator serves requests up to 1 MiB from a pool of their own, in blocks of 512 bytes
#: and up. Source: c10/cuda/CUDACachingAllocator.cpp.
_SMALL_BLOCK_BYTES = 2**20
_SMALL_BLOCKS = 32
_LARGE_BLOCKS = 8


def poison_free_memory(
    layouts: list[tuple[tuple[int, ...], torch.dtype]], device: torch.device, reserved_bytes: int
) -> None:
    """Fill free blocks of the sizes of the outputs with NaN (or the largest integer), so that an
    unwritten output shows.

    One block of each size is not enough: a scratch buffer of the candidate may take it, and its
    output then lands in another block that still holds the right answer of an earlier call.

    Args: reserved_bytes: what the allocator held after the last call, whether or not it has given
        it back to the driver since.
    """
    blocks = []
    for shape, dtype in layouts:
        try:
            block = torch.empty(shape, dtype=dtype, device=device)
            blocks.append(block)
            for _ in range(_free_blocks(block, reserved_bytes) - 1):
                blocks.append(torch.empty_like(block))
        except torch.OutOfMemoryError:  # then there is no free block left that is not poisoned
            break
    for block in blocks:
        if block.dtype.is_floating_point or block.dtype.is_complex:
            block.fill_(float("nan"))
        else:
            block.fill_(True if block.dtype is torch.bool else torch.iinfo(block.dtype).max)


def _free_blocks(block: torch.Tensor, reserved_bytes: int) -> int:
    """About how many free blocks of this size the allocator may hold, this one included."""
    size = max(1, block.numel() * block.element_size())
    if size <= _SMALL_BLOCK_BYTES:
        return _SMALL_BLOCKS
    if block.device.type != "cuda":
        return 2
    return min(_LARGE_BLOCKS, max(1, 1 + (reserved_bytes - torch.cuda.memory_allocated()) // size))


def gpu_kernels(call: Callable[[], object]) -> list[list]:
    """[name, microseconds] of each GPU kernel, copy and fill of one call, by CUPTI through
    torch.profiler.
    """
    from torch.profiler import ProfilerActivity, profile

    call()
    _synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as session:
        call()
        _synchronize()
    return [
        [event.name, event.device_time_total]
        for event in session.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.device_time_total > 0
    ]


def compiled_ptx(function: object) -> list[str]:
    """The PTX of every variant of a `@triton.jit` function compiled in this process; empty where
    Triton interprets or keeps none.
    """
    caches = getattr(function, "device_caches", {})  # the interpreter's functions have none
    kernels = [kernel for per_device in caches.values() for kernel in per_device[0].values()]
    return [kernel.asm["ptx"] for kernel in kernels if "ptx" in getattr(kernel, "asm", {})]


#: How long the device idles before the first call, and at most before any, while the host queues
#: the call; without that an event pair also times how long the host takes to launch. Seen on a busy
#: machine: 0.2 to 0.6 ms for three launches that take 0.07 ms.
_FIRST_LEAD_S = _LONGEST_LEAD_S = 1e-3
#: Lead over the longest time that the host took for a call so far.
_LEAD_RATIO, _LEAD_EXTRA_S = 2.0, 5e-5
#: Of the SM clock, at most; a slower one makes the lead longer.
_CYCLES_PER_S = 2.0e9


class EventClock:
    """Times calls by CUDA events, each after the L2 cache was overwritten, with the whole device
    joined before the clock is read.
    """

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
        """Event times of `count` calls, in ms, taken in turn from `calls` (one per set of inputs),
        and host times of `host_count` more.

        `event_ms` is the device's time: a call waits on the device until the host has queued all of
        it. `host_ms` is the wall time of call plus device-wide synchronisation, so that work on any
        stream is in it.

        Args:
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
        return _host_s(call) * 1e3

    def time_graph(self, call: Callable[[], object], count: int) -> list[float] | None:
        """Event times in ms of the call replayed as a CUDA graph: kernel time without launch
        overhead. None if it cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        # a call that synchronises or allocates on the host side cannot be captured; that is no
        # fault
        except RuntimeError:
            _synchronize()
            return None
        return self.time_calls([graph.replay], count)["event_ms"]


#: Inductor compiles all alternatives of a kernel first and then times one after the other; between
#: two it loads the next. Whoever gave the GPU back there would wait for others' checks thirty times
#: (a minute for a convolution, beside five other runs).
_LINGER_S = 0.2


class _Turn:
    """A lease held alone while this context is entered, as often as one likes, and for `_LINGER_S`
    after it was left.
    """

    def __init__(self, lease: object) -> None:
        self._lease, self._held = lease, ExitStack()
        # how deep it is entered now, and how often that has changed
        self._depth, self._changes = 0, 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            self._changes += 1  # whoever is about to give the GPU back comes too late
            # does nothing where it is held
            self._held.enter_context(self._lease.hold(exclusive=True))
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
                self._held.close()

    def close(self) -> None:
        with self._lock:
            self._changes += 1
            self._held.close()
            self._lease.close()


#: An alternative that takes longer is timed once.
_SLOW_S = 0.1


def _once_if_slow(method: Callable) -> Callable:
    """`method` (which times a callable), but for one so slow that a single call is a time: Inductor
    would call it seven times, with the GPU to itself, and keep one. Some convolution templates take
    seconds. The second call decides: the first also loads the kernel.
    """

    def benchmark(call, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
        # one that cannot be launched is the method's own to report: some it calls infinitely slow
        with suppress(Exception):
            if (
                kwargs.get("return_mode") != "all"
                and _host_s(call) > _SLOW_S
                and (seconds := _host_s(call)) > _SLOW_S
            ):
                return 1e3 * seconds
        return method(call, *args, **kwargs)

    return benchmark


def _host_s(call: Callable) -> float:
    _synchronize()
    started = _clock()
    call()
    _synchronize()
    return _clock() - started


@contextmanager
def tuning_in_turn(turns: tuple[str, str] | None) -> Iterator[None]:
    """Have the GPU alone whenever Inductor times alternatives of a kernel meanwhile, so that it
    chooses as it would on a quiet machine and disturbs nobody's times. `turns`: directory and GPU
    of the lease; None: nobody else is there.

    The GPU is kept for `_LINGER_S` after each: alternatives are mostly timed in a row, and every
    turn may have to be waited for. Source: torch/_inductor/runtime/benchmarking.py; every autotuner
    of Inductor goes through the methods of its `benchmarker`.
    """
    if turns is None:
        yield
        return
    import lease  # a copy of kmem/host/lease.py, beside this file in a worker
    from torch._inductor.runtime import benchmarking

    tool = benchmarking.benchmarker
    turn = _Turn(lease.GpuLease(Path(turns[0]), turns[1], lambda text: None))

    def alone(method: Callable) -> Callable:
        def benchmark(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202 - a pass-through
            with turn:
                return method(*args, **kwargs)

        return benchmark

    methods = [
        name
        for name in ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")
        if hasattr(tool, name)
    ]
    for name in methods:
        method = getattr(tool, name)
        setattr(tool, name, alone(_once_if_slow(method) if name == "benchmark_gpu" else method))
    try:
        yield
    finally:
        for name in methods:
            delattr(tool, name)
        turn.close()
