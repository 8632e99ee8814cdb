"""Order times from workers on a GPU: single samples for racing, A B B A blocks for a paired ratio,
and what the machine was doing.

The judge decides when and how often; the samples come from observe.EventClock in the worker;
statistics.py says what they mean.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kmem.measure.oracle.spots import Spots
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.timing.statistics import GRAPH_BELOW_MS, pair_samples
from kmem.records import Timing

#: How long all blocks together may take, and how many there are at least and at most.
PAIRING_BUDGET_S = 1.5
MIN_BLOCKS, MAX_BLOCKS = 10, 40
#: While the interval is wider than this to either side (something else disturbed the machine), so
#: many times as many blocks are taken.
WIDEST_INTERVAL = 0.005
MAX_EXTENSIONS = 3
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


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """A paired timing with the samples behind it, ms, by A B B A block, and the least host time of
    a candidate call, ms.
    """

    timing: Timing
    host_ms: float
    candidate_ms: tuple[tuple[float, ...], ...]
    reference_ms: tuple[tuple[float, ...], ...]


class ClocksDisagree(Exception):
    """The worker's times cannot be what the judge's clock saw."""


def sample_times(
    worker: WorkerProcess,
    key: str,
    inputs: Sequence[str],
    count: int,
    *,
    l2_bytes: int,
    timeout_s: float,
    warmup: int = 0,
    host_count: int = 0,
    spots: Spots | None = None,
    seeds: Sequence[int] | None = None,
    turns: tuple[str, str] | None = None,
) -> Mapping[str, list[float]]:
    """Event and host times, ms, cross-checked against the judge's clock.

    Args: spots: where the worker leaves spots of what the calls return. seeds: of the inputs of
        each call; None if what was left is of no interest. turns: the lease that Inductor takes,
        alone, whenever it times alternatives of its own; only where nobody holds it for the worker
        already.
    Raises:
        ClocksDisagree, WorkerLost, WorkerFailure.
    """
    aim = spots.aim() if spots is not None else None
    started = time.perf_counter()
    answer = worker.request(
        "time",
        timeout_s=timeout_s,
        key=key,
        inputs=list(inputs),
        count=count,
        warmup=warmup,
        l2_bytes=l2_bytes,
        graph=False,
        host_count=host_count,
        spots=aim,
        turns=turns,
    )
    wall_ms = (time.perf_counter() - started) * 1e3
    event_ms = [float(value) for value in answer["event_ms"]]
    host_ms = [float(value) for value in answer["host_ms"]]
    if len(event_ms) != count or any(value <= 0 for value in event_ms):
        raise ClocksDisagree(
            f"{len(event_ms)} times for {count} calls, the shortest {min(event_ms, default=0.0)} ms"
        )
    if not warmup and wall_ms / (count + host_count) > BATCH_RATIO * max(
        event_ms
    ) + BATCH_OFFSET_MS + 50.0 / (count + host_count):
        raise ClocksDisagree(
            f"events say {max(event_ms):.4f} ms a call, the judge's clock "
            f"{wall_ms / (count + host_count):.4f} ms"
        )
    if spots is not None and seeds is not None:
        spots.collect(seeds, answer["results"])
    return {"event_ms": event_ms, "host_ms": host_ms}


class _Batches:
    """Batches of one timing: event times, ms, of one call on each of the inputs, with values that
    were never there before.

    On a busy host a process may stand still for longer than a batch takes. Then the batch says
    nothing and is taken again, on other values; but not often: a kernel that could have batches
    taken again at will would keep those that went well.
    """

    def __init__(
        self, inputs: Sequence[str], refresh: Callable[[], Sequence[int]], **common: object
    ) -> None:
        self._inputs = inputs
        self._refresh = refresh
        self._common = common
        self._stalls = 0

    def sample(self, worker: WorkerProcess, key: str, *, with_seeds: bool) -> list[float]:
        """The next batch. Raises as `sample_times`."""
        while True:
            seeds = self._refresh()
            try:
                seen = sample_times(
                    worker,
                    key,
                    self._inputs,
                    len(self._inputs),
                    seeds=seeds if with_seeds else None,
                    **self._common,
                )
            except ClocksDisagree:
                self._stalls += 1
                if self._stalls > STALLS_FORGIVEN:
                    raise
            else:
                return seen["event_ms"]


def time_graph(
    worker: WorkerProcess, key: str, inputs: str, *, l2_bytes: int, timeout_s: float
) -> float | None:
    """Median time of a CUDA graph replay in ms; None if the forward cannot be captured."""
    answer = worker.request(
        "time",
        timeout_s=timeout_s,
        key=key,
        inputs=[inputs],
        count=20,
        warmup=1,
        l2_bytes=l2_bytes,
        graph=True,
        host_count=0,
        spots=None,
        turns=None,
    )
    samples = answer["event_ms"]
    return sorted(samples)[len(samples) // 2] if samples else None


def time_pairs(
    candidate: tuple[WorkerProcess, str],
    reference: tuple[WorkerProcess, str, str],
    inputs: Sequence[str],
    refresh: Callable[[], Sequence[int]],
    *,
    l2_bytes: int,
    timeout_s: float,
    seed: int,
    spots: Spots | None = None,
) -> PairedTiming:
    """Time two workers' modules block by block, A B B A, one at a time on the GPU; every timed call
    sees values that were not seen before.

    Args: candidate: worker and key. reference: worker, key and the baseline's name. inputs: names
        of lists of arguments, each used once per side of a block. refresh: puts fresh values into
        all of them, and tells their seeds. spots: taken of both sides, so that they are timed
        alike; those of the candidate are collected.
    """
    common = {"l2_bytes": l2_bytes, "timeout_s": timeout_s, "spots": spots}
    ours = sample_times(
        *candidate, inputs, FIRST_CALLS, warmup=WARMUP_CALLS, host_count=FIRST_CALLS, **common
    )
    theirs = sample_times(*reference[:2], inputs, FIRST_CALLS, warmup=WARMUP_CALLS, **common)
    block_ms = 2 * len(inputs) * (max(ours["event_ms"]) + max(theirs["event_ms"]) + 0.2)
    blocks = max(MIN_BLOCKS, min(MAX_BLOCKS, int(PAIRING_BUDGET_S * 1e3 / block_ms)))
    batches = _Batches(inputs, refresh, **common)
    candidate_ms: list[tuple[float, ...]] = []
    reference_ms: list[tuple[float, ...]] = []
    for _ in range(1 + MAX_EXTENSIONS):
        for _ in range(blocks):
            sides: dict[str, list[float]] = {"a": [], "b": []}
            for side in "abba":
                sides[side] += batches.sample(
                    *(candidate if side == "a" else reference[:2]), with_seeds=side == "a"
                )
            candidate_ms.append(tuple(sides["a"]))
            reference_ms.append(tuple(sides["b"]))
        timing = pair_samples(candidate_ms, reference_ms, reference[2], seed=seed)
        if timing.ratio_high - timing.ratio_low <= 2 * WIDEST_INTERVAL * timing.ratio:
            break
    return PairedTiming(timing, min(ours["host_ms"]), tuple(candidate_ms), tuple(reference_ms))


def time_alone(
    candidate: tuple[WorkerProcess, str],
    inputs: Sequence[str],
    refresh: Callable[[], Sequence[int]],
    *,
    l2_bytes: int,
    timeout_s: float,
    spots: Spots | None = None,
) -> tuple[list[tuple[float, ...]], float]:
    """Event times, ms, by batch, and the least host time of a call, ms, where there is nothing to
    pair with. Arguments as above.
    """
    common = {"l2_bytes": l2_bytes, "timeout_s": timeout_s, "spots": spots}
    first = sample_times(
        *candidate, inputs, FIRST_CALLS, warmup=WARMUP_CALLS, host_count=FIRST_CALLS, **common
    )
    batches = _Batches(inputs, refresh, **common)
    taken = [
        tuple(batches.sample(*candidate, with_seeds=True))
        for _ in range(-(-UNPAIRED_SAMPLES // len(inputs)))
    ]
    return taken, min(first["host_ms"])


def is_short(latency_ms: float) -> bool:
    """Whether host overhead is worth telling apart."""
    return latency_ms < GRAPH_BELOW_MS


def gpu_state(uuid: str) -> dict[str, str]:
    """Clocks, temperature and throttling of one GPU right now, by nvidia-smi; empty where there is
    none.
    """
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
