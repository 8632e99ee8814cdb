"""How fast a composed model is beside the model and other ways to run it, on a GPU, in pairs.

The L2 cache is emptied before each call; times are the device's own. Every way to run the model is
timed as it is called and as one CUDA graph; what is compared was launched alike. A graph of a
compiled model is a graph of its calls, so that both ways have the same kernels.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kmem.errors import first_line
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.whole.composing.binding import Composed, ModelHandle, bind
from kmem.whole.graphs.source import Built
from kmem.whole.proving.oracle import training_step
from kmem.whole.turns import gpu_alone

Call = Callable[[], object]

#: Pairs of timings, and what is written between two calls to empty the L2 cache, in bytes.
_PAIRS, _FLUSHED_BYTES = 25, 256 * 2**20
#: Calls before the first that is timed.
_WARM_UP = 5
#: Of so many ratios in order, the places between which the median lies with 95%. Source: the
#: binomial distribution of 25 coins.
_LOW, _HIGH = 7, 17
EAGER = "eager"
#: The compiled ways to run a model: modes of torch.compile by the names of baselines.
COMPILED = {"compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}
#: Those that are chosen by timing, and so are compiled with the GPU for themselves.
_TUNED = ("max_autotune",)
#: What names of ways that are launched as one CUDA graph end in.
GRAPH = "_graph"
#: The most seconds for all compiled ways of a model together.
LONGEST_COMPILE_S = 200.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be timed.

    `baselines` names other ways to run the model; `against` ways that the composed model is timed
    in pairs with, besides eager; `without` names pieces. With `backward` a call goes on to the
    gradients of the parameters. `compile_s` is for all compiled ways together, in seconds; what is
    not ready by then is left out, and said.
    """

    baselines: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    backward: bool = False
    compile_s: float = LONGEST_COMPILE_S


class Clock:
    """Calls run and timed on the GPU; a stand-in for it serves tests."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the GPU for this process, as every run that times something on it does."""
        with gpu_alone():
            yield

    def time(self, call: Call) -> float:
        """Milliseconds of the device's clock, from a cold L2 cache."""
        torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda").zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    def peak(self, call: Call) -> int:
        """The most bytes that are allocated in a call, those that were before it included."""
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())

    def graph(self, call: Call) -> Call | None:
        """A call as one CUDA graph; None where it cannot be captured."""
        try:
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            return graph.replay
        except RuntimeError:
            return None

    def compile(self, forward: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """What torch.compile makes of a forward."""
        torch.compiler.reset()
        return torch.compile(forward, mode=mode)


def is_graph(name: str) -> bool:
    """Whether a way to run a model, by its name, is launched as one CUDA graph."""
    return name.endswith(GRAPH)


def time_whole(
    built: Built, composed: Composed, wanted: Wanted, clock: Clock | None = None
) -> dict[str, Any]:
    """The times of a `Proof`, by its fields."""
    return _Timing(built, composed, clock or Clock(), backward=wanted.backward).find(wanted)


class _Timing:
    """One model, composed, on one clock: what was timed, and what could not be, by ways."""

    def __init__(self, built: Built, composed: Composed, clock: Clock, *, backward: bool) -> None:
        self.module, self.composed = built.module, composed
        self.clock = clock
        self.peaks: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        self.until = 0.0  # when compiled ways are to be ready

        def call() -> object:
            return built.module(*built.args, **built.kwargs)

        self.call = training_step(built) if backward else call

    def find(self, wanted: Wanted) -> dict[str, Any]:
        self.until = time.monotonic() + wanted.compile_s
        eager_graph = self._noted(EAGER, self.call)
        gains: dict[str, tuple[float, float]] = {}
        with self._bound(None) as ours:
            ours_graph = self._noted("composed", ours) if self.composed.kernels else None
            if self.composed.kernels:
                gains |= self._gains(EAGER, (self.call, eager_graph), (ours, ours_graph))
            for _ in self._compiled(wanted.baselines):
                pass
            names = dict.fromkeys(name.removesuffix(GRAPH) for name in wanted.against)
            named = tuple(name for name in names if name in COMPILED)
            for name, other, graph in self._compiled(named):
                gains |= self._gains(name, (other, graph), (ours, ours_graph))
            without = {name: self._without(name, (ours, ours_graph)) for name in wanted.without}
        eager = gains.get(EAGER, (None, None))
        baselines = {name: ms for name, ms in self.times.items() if name not in (EAGER, "composed")}
        return {
            "eager_ms": self.times[EAGER],
            "composed_ms": self.times.get("composed"),
            "ratio": eager[0],
            "ratio_low": eager[1],
            "baselines_ms": baselines,
            "peak_bytes": self.peaks,
            "missing": self.missing,
            "gains": {name: list(found) for name, found in gains.items()},
            "without": {name: found for name, found in without.items() if found},
        }

    def _noted(self, name: str, call: Call) -> Call | None:
        """Time a way, called and as a graph; returns the graph."""
        if name not in _TUNED:  # what compiles alone disturbs nobody
            for _ in range(_WARM_UP):
                call()
        with self.clock.alone():
            for _ in range(_WARM_UP):
                call()
            self.peaks[name] = self.clock.peak(call)
            self.times[name] = statistics.median(self.clock.time(call) for _ in range(_PAIRS))
            made: list[Call | None] = []
            peak = self.clock.peak(lambda: made.append(self.clock.graph(call)))
            if made[0] is not None:
                self.peaks[name + GRAPH] = peak
                self.times[name + GRAPH] = statistics.median(
                    self.clock.time(made[0]) for _ in range(_PAIRS)
                )
            return made[0]

    def _compiled(self, names: Sequence[str]) -> Iterator[tuple[str, Call, Call | None]]:
        """Compiled ways one after another, each with its graph; what fails is left out."""
        original = self.module.forward
        for name in names:
            try:
                with deadline(max(1.0, self.until - time.monotonic())):
                    compiled = self.clock.compile(original, COMPILED[name])
                    call = _with_forward(self.module, compiled, self.call)
                    graph = self._noted(name, call)
            except DeadlinePassed:
                self.missing[name] = "it was not ready in time"
                continue
            except Exception as ex:  # noqa: BLE001 - compilers raise anything
                self.missing[name] = first_line(ex)
                continue
            yield name, call, graph

    def _gains(
        self,
        name: str,
        other: tuple[Call, Call | None],
        ours: tuple[Call, Call | None],
    ) -> dict[str, tuple[float, float]]:
        """Another way's time over ours, called and as graphs: the median and its lower end."""
        found = {}
        for suffix, one, two in zip(("", GRAPH), other, ours, strict=True):
            if one is not None and two is not None:
                ratios = self._ratios(one, two)
                found[name + suffix] = statistics.median(ratios), ratios[_LOW]
        return found

    def _without(self, name: str, ours: tuple[Call, Call | None]) -> list[list[float]]:
        """The time with a piece over that without, called and as graphs: median and upper end."""
        others = [each for each in self.composed.kernels if each != name]
        with self._bound(others) as call:
            found = []
            graph = self.clock.graph(call) if ours[1] is not None else None
            for one, two in zip(ours, (call, graph), strict=True):
                if one is not None and two is not None:
                    ratios = self._ratios(one, two)
                    found.append([statistics.median(ratios), ratios[_HIGH]])
            return found

    def _ratios(self, one: Call, other: Call) -> list[float]:
        """In order: of the times of pairs, in turns."""
        found = []
        with self.clock.alone():
            for _ in range(_WARM_UP):
                one()
                other()
            for number in range(_PAIRS):
                if number % 2:
                    second = self.clock.time(other)
                    found.append(self.clock.time(one) / second)
                else:
                    first = self.clock.time(one)
                    found.append(first / self.clock.time(other))
        return sorted(found)

    @contextmanager
    def _bound(self, only: Sequence[str] | None) -> Iterator[Call]:
        """The call with kernels in place, which stay out of every other call."""
        handle: ModelHandle = bind(self.module, self.composed, only=only)
        forwards = handle.forwards
        for each in forwards:
            each.remove()

        def run() -> object:
            for each in forwards:
                each.install()
            try:
                return self.call()
            finally:
                for each in forwards:
                    each.remove()

        yield run


def _with_forward(module: nn.Module, forward: Callable[..., Any], call: Call) -> Call:
    def run() -> object:
        before = vars(module).get("forward")
        module.forward = forward
        try:
            return call()
        finally:
            _put_forward(module, before)

    return run


def _put_forward(module: nn.Module, before: Callable[..., Any] | None) -> None:
    if before is not None:
        module.forward = before
    else:
        vars(module).pop("forward", None)
