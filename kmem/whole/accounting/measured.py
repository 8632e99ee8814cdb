"""What a forward takes operator by operator, measured: the graph run under torch's profiler.

Each node runs in a range of its own, so that every kernel is known by the operator that launched
it. The wall time is that of the model's own forward without the profiler; what it has beyond its
kernels are gaps between launches.
"""

import logging
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kmem.errors import ExecutorError
from kmem.problem.graph import OpGraph
from kmem.problem.tracing.evaluate import evaluate_node
from kmem.records import Contract, Device, Precision
from kmem.whole.cutting.pieces import Cost, estimate_cost
from kmem.whole.cutting.values import given_values
from kmem.whole.graphs.capture import Captured, build_real, capture
from kmem.whole.graphs.source import Built, ModelSource, read_source
from kmem.whole.process import answer, ask
from kmem.whole.turns import gpu_alone

logger = logging.getLogger(__name__)

_WARM_UP, _REPEATS = 3, 10
_RANGE = "kmem:"
_TIMEOUT_S = 300.0


def find_cost(
    source: ModelSource, captured: Captured, device: Device, contract: Contract, *, present: bool
) -> Cost:
    """What a forward takes: measured if the device is here, else, or if that fails, estimated."""
    if present:
        try:
            found = measure_cost(source, captured, contract.precision, "cuda")
        except ExecutorError as ex:
            logger.warning("Times are estimated, for measuring failed: %s", ex)
            found = None
        if found is not None:
            return found
    return estimate_cost(captured, device, contract)


def measure_cost(
    source: ModelSource, captured: Captured, precision: Precision, device: str
) -> Cost | None:
    """The cost of a model that was captured whole; None for one that was cut at module borders.

    It is measured in a process of its own.

    Args:
        device: "cuda", or "cpu" to see how the tables look.

    Raises ExecutorError: if the model fails there.
    """
    if captured.segments[0].path:
        return None
    asked = {
        "model": source.text,
        "inputs": list(source.inputs),
        "mode": source.mode,
        "precision": precision.value,
        "device": device,
    }
    found = ask("kmem.whole.accounting.measured", asked, gpu=device == "cuda", timeout_s=_TIMEOUT_S)
    launches = tuple((name, ms) for name, ms in found["launches"])
    return Cost((found["nodes"],), False, found["wall_ms"], launches)


def _measure(asked: dict[str, Any]) -> dict[str, Any]:
    """In the process: milliseconds of each node, of a forward, and of each launch."""
    device = asked["device"]
    precision = Precision(asked["precision"])
    source = read_source(asked["model"], asked["inputs"], mode=asked["mode"])
    graph = capture(source, precision).segments[0].graph
    with torch.no_grad():
        built = build_real(source, precision, device)
        given = given_values(graph, built)
        waits = gpu_alone() if device == "cuda" else nullcontext()
    with torch.no_grad(), waits:
        wall_ms = _time(lambda: built.module(*built.args, **built.kwargs), device)
        _run(graph, given, device)
        with profile(activities=_activities(device)) as seen:
            _run(graph, given, device)
            _wait(device)
        nodes = _by_node(seen, graph, device)
        return {"nodes": nodes, "wall_ms": wall_ms, "launches": _launches(built, device)}


def _activities(device: str) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]


def _run(graph: OpGraph, given: dict[str, object], device: str) -> None:
    values = dict(given)
    place = torch.device(device)
    for each in graph.placeholders:
        if each.kind == "constant":
            dtype = getattr(torch, each.spec.dtype)
            values[each.name] = torch.tensor(each.value, dtype=dtype, device=place).expand(
                each.spec.shape
            )
    last = {name: number for number, node in enumerate(graph.nodes) for name in node.refs()}
    for number, node in enumerate(graph.nodes):
        with record_function(f"{_RANGE}{node.name}"):
            values[node.name] = evaluate_node(node, values, device=place)
        for name in set(node.refs()):
            if last[name] == number:
                values.pop(name)


def _by_node(seen: profile, graph: OpGraph, device: str) -> dict[str, float]:
    """Milliseconds of each node's kernels; on the CPU of the operator itself."""
    found = dict.fromkeys((node.name for node in graph.nodes), 0.0)
    for event in seen.key_averages():
        if event.key.startswith(_RANGE):
            # on a GPU a range has two entries, of the host and of the device, one of which may be 0
            us = event.device_time_total if device == "cuda" else event.cpu_time_total
            name = event.key.removeprefix(_RANGE)
            found[name] = max(found[name], us / 1e3)
    return found


def _launches(built: Built, device: str) -> tuple[tuple[str, float], ...]:
    """The kernels of one forward of the model itself, in order; on the CPU its operators."""
    with profile(activities=_activities(device)) as seen:
        built.module(*built.args, **built.kwargs)
        _wait(device)
    wanted = "DeviceType.CUDA" if device == "cuda" else "DeviceType.CPU"
    events = [
        event
        for event in seen.events()
        if str(event.device_type) == wanted and (device == "cuda" or event.cpu_parent is None)
    ]
    events.sort(key=lambda event: event.time_range.start)
    return tuple((event.name, event.time_range.elapsed_us() / 1e3) for event in events)


def _time(call: Callable[[], object], device: str) -> float:
    """The median wall time of a call in milliseconds."""
    times = []
    for _ in range(_WARM_UP + _REPEATS):
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[_WARM_UP:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer(lambda asked, tell: _measure(asked))
