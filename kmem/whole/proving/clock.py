"""How fast a composed model is beside the model and other ways to run it, on a GPU, in pairs.

The L2 cache is emptied before each call; times are the device's own. Every way to run the model is
timed as it is called and as one CUDA graph; what is compared was launched alike. A graph of a
compiled model is a graph of its calls, so that both ways have the same kernels.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kmem.errors import first_line
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.whole.composing.binding import (
    Composed,
    SegmentForward,
    forwards_of,
    installed,
    why_not_compiled,
)
from kmem.whole.composing.compose import EAGER_REST
from kmem.whole.graphs.source import Built
from kmem.whole.process import leave_caches_of_kernels
from kmem.whole.proving.gpu_clock import Call, Clock
from kmem.whole.proving.oracle import training_step
from kmem.whole.turns import lacks_memory

#: Pairs of timings.
_PAIRS = 25
#: Calls before the first that is timed.
_WARM_UP = 5
#: Of so many ratios in order, the places between which the median lies with 95%. Source: the
#: binomial distribution of 25 coins.
_LOW, _HIGH = 7, 17
EAGER = "eager"
#: The compiled ways to run a model: modes of torch.compile by the names of baselines.
COMPILED = {"compile": "default", "max_autotune": "max-autotune-no-cudagraphs"}
#: The composed model among the ways to run one.
COMPOSED = "composed"
#: What names of ways that are launched as one CUDA graph end in.
GRAPH = "_graph"
#: Between names of pieces without which a model is timed at once.
TOGETHER = "+"
LATE = "it was not ready in time"
NO_MEMORY = "it ran out of device memory"
#: The most seconds for all compiled ways of a model together.
LONGEST_COMPILE_S = 200.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be timed.

    `baselines` names other ways to run the model; `against` ways that the composed model is timed
    in pairs with, besides eager; `without` names pieces. With `backward` a call goes on to the
    gradients of the parameters. `compile_s` is for all compiled ways together, in seconds; what is
    not ready by then is left out, and said. `rests` has the ways to run the composed model: what is
    outside of its kernels is eager, or compiled.
    """

    baselines: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    backward: bool = False
    compile_s: float = LONGEST_COMPILE_S
    rests: tuple[str, ...] = (EAGER_REST,)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to run the model, as it is called and as one CUDA graph."""

    name: str
    call: Call
    graph: Call | None


def is_graph(name: str) -> bool:
    """Whether a way to run a model, by its name, is launched as one CUDA graph."""
    return name.endswith(GRAPH)


def time_whole(
    built: Built,
    composed: Composed,
    wanted: Wanted,
    clock: Clock | None = None,
    known: Mapping[str, Sequence[SegmentForward]] | None = None,
    tell: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """The times of a `Proof`, by its fields.

    Args:
        known: the composed model by the way in which its rest runs, where it has been called before
            and so is compiled.
        tell: told the same before each compiled way, which may take too long.
    """
    timing = _Timing(built, composed, clock or Clock(), backward=wanted.backward)
    timing.known = known or {}
    return timing.find(wanted, tell)


class _Timing:
    """One model, composed, on one clock: what was timed, and what could not be, by ways."""

    def __init__(self, built: Built, composed: Composed, clock: Clock, *, backward: bool) -> None:
        self.module, self.composed = built.module, composed
        self.clock = clock
        self.peaks: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        self.until = 0.0  # when compiled ways are to be ready
        self.known: Mapping[str, Sequence[SegmentForward]] = {}

        def call() -> object:
            return built.module(*built.args, **built.kwargs)

        self.call = training_step(built) if backward else call

    def find(self, wanted: Wanted, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        self.until = time.monotonic() + wanted.compile_s
        eager = _Way(EAGER, self.call, self._noted(EAGER, self.call))
        gains: dict[str, tuple[float, float]] = {}
        without: dict[str, list[list[float]]] = {}
        rest, ours = EAGER_REST, None
        if self.composed.kernels:
            rests = dict.fromkeys((EAGER_REST, *wanted.rests))
            found = {each: self._composed(each) for each in rests}
            rest, ours = self._faster({each: way for each, way in found.items() if way})
            self._rename(ours.name, COMPOSED)
            gains |= self._gains(eager, ours)
            without = {name: self._without(name, eager, ours, rest) for name in wanted.without}
        names = dict.fromkeys(name.removesuffix(GRAPH) for name in wanted.against)
        against = tuple(name for name in names if name in COMPILED)
        leave_caches_of_kernels()
        for name in (*wanted.baselines, *against):
            tell(self._known(rest, gains, without))
            gains |= self._compiled(name, ours if name in against else None)
        return self._known(rest, gains, without)

    def _known(
        self,
        rest: str,
        gains: Mapping[str, tuple[float, float]],
        without: Mapping[str, list[list[float]]],
    ) -> dict[str, Any]:
        """What is known so far, by the fields of a `Proof`."""
        compared = gains.get(EAGER, (None, None))
        apart = (EAGER, COMPOSED)
        return {
            "eager_ms": self.times[EAGER],
            "composed_ms": self.times.get(COMPOSED),
            "rest": rest,
            "ratio": compared[0],
            "ratio_low": compared[1],
            "baselines_ms": {name: ms for name, ms in self.times.items() if name not in apart},
            "peak_bytes": dict(self.peaks),
            "missing": dict(self.missing),
            "gains": {name: list(found) for name, found in gains.items()},
            "without": {name: found for name, found in without.items() if found},
        }

    def _composed(self, rest: str, only: Sequence[str] | None = None) -> _Way | None:
        """The composed model with its rest run in one way; None if it could not be, which is said.

        Args:
            only: names of the pieces whose kernels are used.
        """
        name = f"{COMPOSED}_{rest}"
        forwards = self.known.get(rest) if only is None else None
        if forwards is None:
            composed = self.composed.with_rest(rest)
            forwards = forwards_of(self.module, composed, only=only)
        call = self._call_of(forwards)
        fault = "" if rest == EAGER_REST else self._compile(call, forwards)
        if fault:
            self.missing[name] = fault
            return None
        return _Way(name, call, self._noted(name, call))

    def _compile(self, call: Call, forwards: Sequence[SegmentForward]) -> str:
        """Have a rest compiled by a first call; why it is not, or ""."""
        try:
            with deadline(max(1.0, self.until - time.monotonic())):
                call()
        except DeadlinePassed:
            return LATE
        return why_not_compiled(forwards)

    def _faster(self, ways: Mapping[str, _Way]) -> tuple[str, _Way]:
        """Of ways to run a rest the faster, called and as a graph together."""

        def took(rest: str) -> float:
            called = self.times[ways[rest].name]
            return math.sqrt(called * self.times.get(ways[rest].name + GRAPH, called))

        rest = min(ways, key=took)
        return rest, ways[rest]

    def _rename(self, name: str, new: str) -> None:
        for held in (self.times, self.peaks, self.missing):
            for suffix in ("", GRAPH):
                if name + suffix in held:
                    held[new + suffix] = held.pop(name + suffix)

    def _noted(self, name: str, call: Call) -> Call | None:
        """Time a way, called and as a graph; returns the graph."""
        with self.clock.tuning() if name in COMPILED else nullcontext():
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
            else:
                self.missing[name + GRAPH] = "it could not be captured"
            return made[0]

    def _compiled(self, name: str, ours: _Way | None) -> dict[str, tuple[float, float]]:
        """Time a compiled way to run the model, or say why there is none; its time over ours.

        Args:
            ours: what it is compared with in pairs.
        """
        try:
            with deadline(max(1.0, self.until - time.monotonic())):
                try:
                    return self._compiled_now(name, ours)
                except RuntimeError as ex:
                    if not lacks_memory(ex):
                        raise
                torch.compiler.reset()
                self.clock.make_room()
                return self._compiled_now(name, ours)
        except DeadlinePassed:
            why = LATE
        except Exception as ex:  # noqa: BLE001 - compilers raise anything
            why = NO_MEMORY if lacks_memory(ex) else _reason(ex)
        if name in self.times:
            name += GRAPH
        if name not in self.times:
            self.missing[name] = why
        return {}

    def _compiled_now(self, name: str, ours: _Way | None) -> dict[str, tuple[float, float]]:
        compiled = self.clock.compile(self.module.forward, COMPILED[name])
        call = _with_forward(self.module, compiled, self.call)
        way = _Way(name, call, self._noted(name, call))
        return self._gains(way, ours) if ours is not None else {}

    def _gains(self, other: _Way, ours: _Way) -> dict[str, tuple[float, float]]:
        """Another way's time over ours, called and as graphs: the median and its lower end."""
        found = {}
        pairs = ((other.call, ours.call), (other.graph, ours.graph))
        for suffix, (one, two) in zip(("", GRAPH), pairs, strict=True):
            if one is not None and two is not None:
                ratios = self._ratios(one, two)
                found[other.name + suffix] = statistics.median(ratios), ratios[_LOW]
        return found

    def _without(self, name: str, eager: _Way, ours: _Way, rest: str) -> list[list[float]]:
        """The time with a piece over that without, called and as graphs: median and upper end.

        What it is held to runs as fast as it can: its rest as eager operators or, where the whole's
        is, compiled, with what the kernel replaces. Without any kernel the model itself is eager.
        """
        gone = name.split(TOGETHER)
        others = [each for each in self.composed.kernels if each not in gone]
        before = dict(self.times), dict(self.peaks)
        missing = dict(self.missing)
        ways = {EAGER_REST: self._composed(EAGER_REST, others) if others else eager}
        if rest != EAGER_REST:
            ways[rest] = self._composed(rest, others)
            if ways[rest] is None:  # then both are held to one another among eager operators
                ours = self._composed(EAGER_REST) or ours
        _, best = self._faster({each: way for each, way in ways.items() if way})
        found = []
        for one, two in ((ours.call, best.call), (ours.graph, best.graph)):
            if one is not None and two is not None:
                ratios = self._ratios(one, two)
                found.append([statistics.median(ratios), ratios[_HIGH]])
        self.times, self.peaks = before
        self.missing = missing
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

    def _call_of(self, forwards: Sequence[SegmentForward]) -> Call:
        """The call with kernels in place, which stay out of every other call."""

        def run() -> object:
            with installed(forwards):
                return self.call()

        return run


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


def _reason(error: Exception) -> str:
    """What a compiler says, which may stand in an error that says where it stood."""
    return first_line(getattr(error, "inner_exception", None) or error)
