"""The time of a kernel that passed every check, and whether it can be true: pairs against the best
baseline, floor, clocks, CUDA graph.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from kmem.host.lease import gpu_uuid
from kmem.measure.examine import Examination, Refused
from kmem.measure.loading import attach_once, detach
from kmem.measure.oracle.spots import Spots
from kmem.measure.resources import JudgeResources
from kmem.measure.timing.gpu_clock import (
    FIRST_CALLS,
    gpu_state,
    is_short,
    time_alone,
    time_graph,
    time_pairs,
)
from kmem.measure.timing.statistics import implausible_reason, physical_floor_ms, summarize_samples
from kmem.records import Baseline, Bound, Device, Status, Timing, fastest_baseline

#: A speedup over the best baseline beyond this wants a reason that the bound confirms.
SURPRISING_RATIO = 10.0


def time_against_best(
    examination: Examination,
    baselines: Sequence[Baseline],
    resources: JudgeResources,
    bound: Bound | None,
    device: Device,
    seed: int,
) -> tuple[Timing, Mapping[str, str]]:
    """Time a loaded kernel with the GPU to itself.

    Args: baselines: the best of them is started if it is not running; without any the timing has no
        ratio. bound: its time is the physical floor. seed: of the bootstrap.
    Returns: The timing and the state of the machine it was taken in. The raw samples go into the
        examination.
    Raises: Refused, ClocksDisagree: if the time cannot be true, or what a timed call returned is
        wrong. WorkerFailure, WorkerLost: if the candidate fails. ExecutorError: if the baseline
        fails.
    """
    inputs, reference = resources.timed_inputs(), resources.reference()
    inputs.refresh()
    best = fastest_baseline(baselines)
    baseline = resources.baseline_worker(best.name) if best is not None else None
    workers = [worker for worker in (examination.worker, baseline) if worker is not None]
    candidate = (examination.worker, examination.key)
    common = {"l2_bytes": device.l2_bytes, "timeout_s": examination.run_timeout_s}
    with ExitStack() as stack:
        stack.enter_context(inputs.while_timing())
        spots = None  # random numbers are others in every call
        if not reference.is_stochastic:
            assert examination.answer is not None, "a kernel is timed after its values were checked"
            calls = max(FIRST_CALLS, len(inputs.names))
            spots = stack.enter_context(
                Spots(reference, examination.answer, calls=calls, seed=resources.seed_for("spots"))
            )
        for worker in workers:
            inputs.show(worker)
            if spots is not None:
                attach_once(worker, spots.shared)
        with resources.hold_gpu(exclusive=True):
            if baseline is None:
                batches, host_ms = time_alone(
                    candidate, inputs.names, inputs.refresh, spots=spots, **common
                )
                timing = summarize_samples([sample for batch in batches for sample in batch])
                examination.samples_ms = {"candidate": tuple(batches)}
            else:
                against = (baseline, best.name, best.name)
                paired = time_pairs(
                    candidate,
                    against,
                    inputs.names,
                    inputs.refresh,
                    seed=seed,
                    spots=spots,
                    **common,
                )
                timing, host_ms = paired.timing, paired.host_ms
                examination.samples_ms = {
                    "candidate": paired.candidate_ms,
                    best.name: paired.reference_ms,
                }
            state = gpu_state(gpu_uuid())
            graph_ms = (
                time_graph(*candidate, inputs.names[0], **common)
                if is_short(timing.latency_ms)
                else None
            )
        if spots is not None:
            for worker in workers:
                detach(worker, spots.shared)
            examination.check_timed(spots, resources.seed_for("timed calls"))
    floor_ms = physical_floor_ms(bound, device, algebraic="algebraic" in examination.kernel.flags)
    kernels_ms = [time_us / 1e3 for _, time_us in examination.gpu_kernels]
    reason = implausible_reason(timing.latency_ms, host_ms, floor_ms, kernels_ms)
    if reason is not None:
        raise Refused(Status.IMPLAUSIBLE, reason)
    if timing.ratio is not None and timing.ratio > SURPRISING_RATIO:
        examination.flags.add("over_10x")
    environment = {**state, "host_ms": f"{host_ms:.4f}"}
    if is_short(timing.latency_ms):
        environment["graph_ms"] = "not capturable" if graph_ms is None else f"{graph_ms:.4f}"
    return timing, environment
