"""Orders times from workers on a GPU: single samples for a race, A B B A blocks for a paired ratio.

The judge decides when and how often; the samples come from the `EventClock` of the worker
(clocks.py); statistics.py says what they mean.

    settings = ClockSettings(l2_bytes=device.l2_bytes, timeout_s=60.0)
    candidate = LoadedModule(worker, key)
    seen = sample_times(candidate, Batch(inputs.names(worker), count=5, warmup=1), settings)
    paired = time_pairs(candidate, baseline, inputs, settings, name="compile", seed=1)
"""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.measure.oracle.spots import Spots
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.timing.inputs import TimedInputs
from kmem.measure.timing.statistics import (
    GRAPH_BELOW_MS,
    HOST_RATIO,
    pair_samples,
    summarize_samples,
)
from kmem.measure.worker.commands import Time, TimeGraph, TimeHost
from kmem.records import Timing

#: Blocks of one round. The interval decides whether another one follows, never the ratio itself.
#: Source: 251 timings of levels 1, 2 and 3 on H100s, 2026-11-28, of 40 blocks or more: after ten,
#: 221 were narrow. What was known then was 0.03% from what all blocks said in the median, 1.0% at
#: most, and the blocks that would have been left out lay within the interval in 95.5%.
ROUND_BLOCKS, MAX_ROUNDS = 10, 16
#: How long the calls of a round may take, about: what is short is called on several sets in a row.
ROUND_BUDGET_S = 1.5
#: An interval is narrow that reaches no further than this to either side. Of a large gain or loss a
#: share of it is narrow enough: nobody chooses by the third digit of a sevenfold one.
WIDEST_INTERVAL = 0.005
SHARE_OF_GAIN, WIDEST_OF_ALL = 0.02, 0.02
#: No further round is begun after so long: drawing inputs takes longer than many a call, and nobody
#: else can use the GPU meanwhile. Source: level 3 of KernelBench on two H100s, 2026-11-28: 31
#: timings took 10 s each, up to 44 s, a third of all that a GPU was held.
PAIRING_LIMIT_S = 4.0
WARMUP_CALLS = 3
#: Calls of the first batch of a kernel, whose event times choose the number of blocks and are not
#: kept.
FIRST_CALLS = 5
#: Samples, at least, where there is no baseline to pair with.
UNPAIRED_SAMPLES = 30
#: The judge's own clock around a whole batch, over what the worker says, per call: flush and
#: channel take a little, a lie takes more.
BATCH_RATIO, BATCH_OFFSET_MS = 3.0, 2.0
#: Batches of one timing, of both sides together, that may be taken again because that clock saw
#: much more.
STALLS_FORGIVEN = 3
#: Calls of a CUDA graph that are timed.
_GRAPH_CALLS = 20
#: Calls whose host time is taken: few enough for the queue of the device, and not long in all.
_HOST_CALLS, _HOST_BUDGET_MS = 20, 100.0


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A candidate or a baseline, by the key under which a worker has loaded it."""

    worker: WorkerProcess
    key: str


@dataclass(frozen=True, slots=True)
class ClockSettings:
    """What all batches of one timing have in common.

    `l2_bytes` is the size of the cache that is cleared before each call. `spots` is where workers
    leave spots of what the calls return; None for none.
    """

    l2_bytes: int
    timeout_s: float
    spots: Spots | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that are timed in one go: `count` by events, `host_count` more by the host's clock.

    `inputs` names lists of arguments, which the calls take in turn. `seeds` are those of the inputs
    of each call; None if the spots that the calls leave are of no interest. `turns` is the lease
    that Inductor takes, alone, whenever it times alternatives of its own; only where nobody holds
    it for the worker already.
    """

    inputs: Sequence[str]
    count: int
    warmup: int = 0
    host_count: int = 0
    seeds: Sequence[int] | None = None
    turns: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one batch: by events, and by the host's clock."""

    event_ms: list[float]
    host_ms: list[float]


@dataclass(frozen=True, slots=True)
class TimedSamples:
    """A timing with the samples behind it in ms, by A B B A block, or by batch if it is unpaired.

    `host_ms` is the least host time of a candidate's call.
    """

    timing: Timing
    host_ms: float
    candidate_ms: tuple[tuple[float, ...], ...]
    reference_ms: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The host's microseconds for issuing a call, and wall ms of one of many without a pause."""

    host_us: float
    back_to_back_ms: float


class ClocksDisagree(Exception):
    """The worker's times cannot be what the judge's clock saw."""


def sample_times(module: LoadedModule, batch: Batch, settings: ClockSettings) -> Samples:
    """Event and host times, cross-checked against the judge's clock.

    Raises:
        ClocksDisagree, WorkerLost, WorkerFailure.
    """
    spots = settings.spots
    command = Time(
        key=module.key,
        inputs=list(batch.inputs),
        count=batch.count,
        warmup=batch.warmup,
        host_count=batch.host_count,
        l2_bytes=settings.l2_bytes,
        spots=spots.aim() if spots is not None else None,
        turns=batch.turns,
    )
    started = time.perf_counter()
    answer = module.worker.request(command, timeout_s=settings.timeout_s)
    wall_ms = (time.perf_counter() - started) * 1e3
    event_ms = [float(value) for value in answer["event_ms"]]
    host_ms = [float(value) for value in answer["host_ms"]]
    if len(event_ms) != batch.count or any(value <= 0 for value in event_ms):
        raise ClocksDisagree(
            f"{len(event_ms)} times for {batch.count} calls, the shortest "
            f"{min(event_ms, default=0.0)} ms"
        )
    calls = batch.count + batch.host_count
    most_ms = BATCH_RATIO * max(event_ms) + BATCH_OFFSET_MS + 50.0 / calls
    if not batch.warmup and wall_ms / calls > most_ms:
        raise ClocksDisagree(
            f"events say {max(event_ms):.4f} ms a call, the judge's clock {wall_ms / calls:.4f} ms"
        )
    if spots is not None and batch.seeds is not None:
        spots.collect(batch.seeds, answer["results"])
    return Samples(event_ms, host_ms)


class _Batches:
    """Batches of one timing: one call on each set of inputs, with values that were never there.

    On a busy host a process may stand still for longer than a batch takes. Then the batch says
    nothing and is taken again, on other values; but not often: a kernel that could have batches
    taken again at will would keep those that went well.
    """

    def __init__(
        self, inputs: TimedInputs, settings: ClockSettings, calls: int | None = None
    ) -> None:
        """Nothing is timed yet.

        Args:
            calls: how many sets of inputs each uses; all by default.
        """
        self._inputs = inputs
        self._settings = settings
        self._calls = calls or inputs.count
        self._stalls = 0

    def sample(self, module: LoadedModule, *, with_seeds: bool) -> list[float]:
        """Event times, ms, of the next batch. Raises as `sample_times`."""
        names = self._inputs.names(module.worker)[: self._calls]
        while True:
            seeds = self._inputs.refresh(module.worker, self._calls)
            batch = Batch(names, len(names), seeds=seeds if with_seeds else None)
            try:
                return sample_times(module, batch, self._settings).event_ms
            except ClocksDisagree:
                self._stalls += 1
                if self._stalls > STALLS_FORGIVEN:
                    raise


def time_graph(module: LoadedModule, inputs: str, settings: ClockSettings) -> float | None:
    """Median time in ms of a CUDA graph of one call; None if the forward cannot be captured."""
    command = TimeGraph(module.key, inputs, _GRAPH_CALLS, warmup=1, l2_bytes=settings.l2_bytes)
    samples = module.worker.request(command, timeout_s=settings.timeout_s)["event_ms"]
    return sorted(samples)[len(samples) // 2] if samples else None


def host_calls(latency_ms: float) -> int:
    """How many calls to time by the host's clock."""
    return max(3, min(_HOST_CALLS, int(_HOST_BUDGET_MS / latency_ms)))


def time_host(module: LoadedModule, inputs: str, settings: ClockSettings, count: int) -> HostTimes:
    """What the host takes to issue a call, and calls that follow one another without a pause."""
    command = TimeHost(module.key, inputs, count)
    answer = module.worker.request(command, timeout_s=settings.timeout_s)
    return HostTimes(float(answer["host_us"]), float(answer["back_to_back_ms"]))


def time_pairs(
    candidate: LoadedModule,
    reference: LoadedModule,
    inputs: TimedInputs,
    settings: ClockSettings,
    *,
    name: str,
    seed: int,
) -> TimedSamples:
    """Time two modules block by block, A B B A, one at a time on the GPU.

    Every timed call sees values that were not seen before. Spots are taken of both sides, so that
    they are timed alike; those of the candidate are collected.

    Args:
        inputs: each set is used once per side of a block; one set alone where calls are long.
        name: of the baseline that the reference is.
        seed: of the bootstrap.
    """
    ours = _first_look(candidate, inputs, settings, host_count=FIRST_CALLS)
    theirs = _first_look(reference, inputs, settings)
    pair_ms = max(ours.event_ms) + max(theirs.event_ms) + 0.2
    batches = _Batches(inputs, settings, calls_in_a_row(pair_ms, inputs.count))
    candidate_ms: list[tuple[float, ...]] = []
    reference_ms: list[tuple[float, ...]] = []
    started = time.monotonic()
    for _ in range(MAX_ROUNDS):
        for _ in range(ROUND_BLOCKS):
            sides: dict[str, list[float]] = {"a": [], "b": []}
            for side in "abba":
                module = candidate if side == "a" else reference
                sides[side] += batches.sample(module, with_seeds=side == "a")
            candidate_ms.append(tuple(sides["a"]))
            reference_ms.append(tuple(sides["b"]))
        timing = pair_samples(candidate_ms, reference_ms, name, seed=seed)
        if is_narrow(timing) or time.monotonic() - started > PAIRING_LIMIT_S:
            break
    return TimedSamples(timing, min(ours.host_ms), tuple(candidate_ms), tuple(reference_ms))


def calls_in_a_row(pair_ms: float, sets: int) -> int:
    """Calls of one side in a row, each on another set of inputs.

    Args:
        pair_ms: a call of either side.
        sets: of inputs, at most so many calls in a row.
    """
    fitting = int(ROUND_BUDGET_S * 1e3 / (2 * ROUND_BLOCKS * pair_ms))
    return max(1, min(sets, fitting))


def is_narrow(timing: Timing) -> bool:
    """Whether the interval of a paired ratio tells enough."""
    assert timing.ratio is not None and timing.ratio_low is not None
    assert timing.ratio_high is not None
    of_gain = min(WIDEST_OF_ALL, SHARE_OF_GAIN * abs(timing.ratio - 1))
    widest = max(WIDEST_INTERVAL, of_gain) * timing.ratio
    return timing.ratio_high - timing.ratio_low <= 2 * widest


def time_alone(
    candidate: LoadedModule, inputs: TimedInputs, settings: ClockSettings
) -> TimedSamples:
    """Time a module where there is nothing to pair it with; every call sees fresh values."""
    first = _first_look(candidate, inputs, settings, host_count=FIRST_CALLS)
    batches = _Batches(inputs, settings)
    taken = tuple(
        tuple(batches.sample(candidate, with_seeds=True))
        for _ in range(-(-UNPAIRED_SAMPLES // inputs.count))
    )
    timing = summarize_samples([sample for batch in taken for sample in batch])
    return TimedSamples(timing, min(first.host_ms), taken)


def least_host_ms(
    module: LoadedModule, inputs: TimedInputs, settings: ClockSettings, taken: TimedSamples
) -> float:
    """The least host time of a call, ms, over more calls where they are short or took long.

    Beside a short call any pause of a busy host is long, and few calls may all meet one. What took
    much longer than by events may have been the first calls alone; work elsewhere is in each.
    """
    latency_ms = taken.timing.latency_ms
    if not is_short(latency_ms) and taken.host_ms <= HOST_RATIO * latency_ms:
        return taken.host_ms
    names, calls = inputs.names(module.worker), host_calls(latency_ms)
    more = sample_times(module, Batch(names, count=1, host_count=calls), settings)
    return min(taken.host_ms, *more.host_ms)


def _first_look(
    module: LoadedModule, inputs: TimedInputs, settings: ClockSettings, *, host_count: int = 0
) -> Samples:
    """A first batch, which says how long a call takes."""
    inputs.refresh(module.worker)
    names = inputs.names(module.worker)
    batch = Batch(names, FIRST_CALLS, warmup=WARMUP_CALLS, host_count=host_count)
    return sample_times(module, batch, settings)


def is_short(latency_ms: float) -> bool:
    """Whether host overhead is worth telling apart."""
    return latency_ms < GRAPH_BELOW_MS


def gpu_state(uuid: str) -> dict[str, str]:
    """Clocks, temperature and throttling of one GPU right now, by nvidia-smi; empty without it."""
    query = "clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", "-i", uuid, f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0 or not done.stdout.strip():
        return {}
    names = ("sm_clock", "memory_clock", "temperature_c", "throttle", "driver")
    return dict(
        zip(names, (part.strip() for part in done.stdout.splitlines()[0].split(",")), strict=False)
    )
