"""How fast a composed model is beside the model, on a GPU: in pairs, with and without each piece.

The L2 cache is emptied before each call; times are the device's own.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kmem.whole.binding import Composed, bind
from kmem.whole.source import Built

#: Pairs of timings, and what is written between two calls to empty the L2 cache, in bytes.
_PAIRS, _FLUSHED_BYTES = 25, 256 * 2**20
#: Modes of torch.compile by the names of baselines; the last two run under CUDA graphs.
_COMPILED = {
    "compile": "default",
    "max_autotune": "max-autotune-no-cudagraphs",
    "compile_graph": "reduce-overhead",
    "max_autotune_graph": "max-autotune",
}
#: No further baseline is begun after so many seconds.
_BASELINES_S = 240.0


def time_whole(built: Built, composed: Composed, *, compiled: bool) -> dict[str, Any]:
    """The times of a `Proof`, by its fields."""
    module = built.module

    def original() -> object:
        return module(*built.args, **built.kwargs)

    peaks = {"eager": _peak(original)}
    with bind(module, composed):
        peaks["composed"] = _peak(original)
    pairs = _pairs(original, _bound(original, module, composed, None))
    ratios = sorted(one / other for one, other in pairs)
    found: dict[str, Any] = {
        "eager_ms": statistics.median(one for one, _ in pairs),
        "composed_ms": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[int(0.05 * len(ratios))],
        "peak_bytes": peaks,
        "baselines_ms": {},
        "without": {},
    }
    names = composed.kernels
    for name in names if len(names) > 1 else ():
        others = [each for each in names if each != name]
        pairs = _pairs(
            _bound(original, module, composed, None), _bound(original, module, composed, others)
        )
        found["without"][name] = statistics.median(one / other for one, other in pairs)
    if compiled:
        found["baselines_ms"] = _baselines(original, module, composed)
    return found


def _baselines(
    call: Callable[[], object], module: nn.Module, composed: Composed
) -> dict[str, float]:
    """Other ways to run the model, as far as they can be had in some minutes."""
    found: dict[str, float | None] = {"eager_graph": _graph_time(call)}
    with bind(module, composed):
        found["composed_graph"] = _graph_time(call)
    until = time.monotonic() + _BASELINES_S
    for name, mode in _COMPILED.items():
        if time.monotonic() < until:
            found[name] = _compiled_time(call, module, mode)
    return {name: ms for name, ms in found.items() if ms is not None}


def _compiled_time(call: Callable[[], object], module: nn.Module, mode: str) -> float | None:
    """None where the model cannot be compiled."""
    torch.compiler.reset()
    before = vars(module).get("forward")
    module.forward = torch.compile(module.forward, mode=mode)
    try:
        times = [_timed(call) for _ in range(_PAIRS + 5)]
        return statistics.median(times[5:])
    except Exception:  # noqa: BLE001 - compilers raise anything
        return None
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _bound(
    call: Callable[[], object],
    module: nn.Module,
    composed: Composed,
    only: Sequence[str] | None,
) -> Callable[[], object]:
    """The call with kernels in place, which stay out of every other call."""
    handle = bind(module, composed, only=only)
    forwards = handle.forwards
    for each in forwards:
        each.remove()

    def run() -> object:
        for each in forwards:
            each.install()
        try:
            return call()
        finally:
            for each in forwards:
                each.remove()

    return run


def _pairs(one: Callable[[], object], other: Callable[[], object]) -> list[tuple[float, float]]:
    for _ in range(5):
        one()
        other()
    found = []
    for number in range(_PAIRS):
        if number % 2:
            second = _timed(other)
            found.append((_timed(one), second))
        else:
            first = _timed(one)
            found.append((first, _timed(other)))
    return found


def _timed(call: Callable[[], object]) -> float:
    """Milliseconds of the device's clock, from a cold L2 cache."""
    torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda").zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _peak(call: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def _graph_time(call: Callable[[], object]) -> float | None:
    """The time of a CUDA graph of a call; None where it cannot be captured."""
    try:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return statistics.median(_timed(graph.replay) for _ in range(_PAIRS))
    except RuntimeError:
        return None
