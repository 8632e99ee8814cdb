"""The time of a kernel that passed every check, and whether it can be true: pairs against the best baseline, floor, clocks, CUDA graph."""

import random
from collections.abc import Mapping, Sequence

from kmem.measure.apparatus import Apparatus
from kmem.measure.examine import Examination, Refused
from kmem.measure.expected import KEPT_BYTES
from kmem.measure.gpu_clock import KEPT_BATCHES, WARMUP_CALLS, gpu_state, is_short, keep_results, sample_times, time_graph, time_pairs
from kmem.measure.lease import gpu_uuid
from kmem.measure.timing import implausible_reason, physical_floor_ms, summarize_samples
from kmem.records import Baseline, Bound, Device, Status, Timing, fastest_baseline

#: Samples where there is no baseline to pair with.
UNPAIRED_SAMPLES = 30
#: A speedup over the best baseline beyond this wants a reason that the bound confirms.
SURPRISING_RATIO = 10.0


def time_against_best(
    examination: Examination, baselines: Sequence[Baseline], apparatus: Apparatus, bound: Bound | None, device: Device, seed: int
) -> tuple[Timing, Mapping[str, str]]:
    """Time a loaded kernel with the GPU to itself.

    Args:
        baselines: the best of them is started if it is not running; without any the timing has no ratio.
        bound: its time is the physical floor. seed: of the bootstrap.
    Returns:
        The timing and the state of the machine it was taken in. The raw samples go into the examination.
    Raises:
        Refused, ClocksDisagree: if the time cannot be true, or what a timed call returned is wrong. WorkerFailure, WorkerLost: if the
            candidate fails.
        ExecutorError: if the baseline fails.
    """
    inputs = apparatus.timed_inputs()
    inputs.refresh()
    inputs.show(examination.worker)
    best = fastest_baseline(baselines)
    against = (apparatus.baseline_worker(best.name), best.name, best.name) if best is not None else None
    candidate = (examination.worker, examination.key)
    keep_all = examination.output_bytes * len(inputs.names) * KEPT_BATCHES <= KEPT_BYTES
    common = {"l2_bytes": device.l2_bytes, "timeout_s": examination.run_timeout_s}
    with apparatus.hold_gpu(exclusive=True):
        if against is None:
            seen = sample_times(*candidate, inputs.names, UNPAIRED_SAMPLES, warmup=WARMUP_CALLS, host_count=5, **common)
            timing, host_ms = summarize_samples(seen["event_ms"]), sorted(seen["host_ms"])[2]
            examination.samples_ms = {"candidate": (tuple(seen["event_ms"]),)}
            kept = keep_results(candidate, inputs.names, inputs.refresh, random.Random(seed), keep_all=keep_all, **common)
        else:
            paired = time_pairs(candidate, against, inputs.names, inputs.refresh, seed=seed, keep_all=keep_all, **common)
            timing, host_ms, kept = paired.timing, paired.host_ms, paired.kept
            examination.samples_ms = {"candidate": paired.candidate_ms, against[2]: paired.reference_ms}
        state = gpu_state(gpu_uuid())
        graph_ms = time_graph(*candidate, inputs.names[0], **common) if is_short(timing.latency_ms) else None
    for name, kept_seed in kept:
        examination.check_timed(name, kept_seed)
    floor_ms = physical_floor_ms(bound, device, algebraic="algebraic" in examination.kernel.flags)
    reason = implausible_reason(timing.latency_ms, host_ms, floor_ms)
    if reason is not None:
        raise Refused(Status.IMPLAUSIBLE, reason)
    if timing.ratio is not None and timing.ratio > SURPRISING_RATIO:
        examination.flags.add("over_10x")
    environment = {**state, "host_ms": f"{host_ms:.4f}"}
    if is_short(timing.latency_ms):
        environment["graph_ms"] = "not capturable" if graph_ms is None else f"{graph_ms:.4f}"
    return timing, environment
