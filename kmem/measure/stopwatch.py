"""The time of a kernel that passed every check, and whether that time can be true.

In order: pairs against the best baseline (or the kernel alone), the state of the machine, a CUDA
graph for short kernels, what the timed calls returned, and the physical floor.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from kmem.host.lease import gpu_uuid
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.examine.provenance import kernels_once_more
from kmem.measure.examine.timed_calls import check_timed
from kmem.measure.oracle.spots import Spots
from kmem.measure.resources import JudgeResources
from kmem.measure.timing.baseline import COMPILE_TIMEOUT_S
from kmem.measure.timing.gpu_clock import (
    FIRST_CALLS,
    ClockSettings,
    HostTimes,
    LoadedModule,
    gpu_state,
    host_calls,
    is_short,
    least_host_ms,
    time_alone,
    time_graph,
    time_host,
    time_pairs,
)
from kmem.measure.timing.statistics import implausible_reason, physical_floor_ms
from kmem.problem.costs.bound import parameter_bytes
from kmem.records import Baseline, Status, Timing, fastest_baseline

#: A speedup over the best baseline beyond this wants a reason that the bound confirms.
SURPRISING_RATIO = 10.0
#: Calls that follow one another take this much longer than the device, or the host issues one call
#: for as long as it takes, but for this: a CUDA graph may save that.
_HOST_BOUND_RATIO = 1.05
#: A profiled call that took too long is profiled so often again, and the median counts: the turn of
#: another program on the GPU may have fallen into it. Source: H200, 2026-11-23: 2.86 ms of a kernel
#: of 0.505 ms, beside nine other judges.
_PROFILED_AGAIN = 2


def time_against_best(
    examination: Examination,
    baselines: Sequence[Baseline],
    resources: JudgeResources,
    seed: int,
) -> tuple[Timing, Mapping[str, str]]:
    """Time a loaded kernel with the GPU to itself.

    Args:
        baselines: the best of them is started if it is not running; without any the timing has no
            ratio.
        seed: of the bootstrap.

    Returns:
        The timing and the state of the machine it was taken in. The raw samples go into the
        examination.

    Raises:
        Refused, ClocksDisagree: if the time cannot be true, or what a timed call returned is wrong.
        WorkerFailure, WorkerLost: if the candidate fails.
        ExecutorError: if the baseline fails.
    """
    inputs, reference = resources.timed_inputs(), resources.reference()
    modules = [LoadedModule(examination.worker, examination.key)]
    best = fastest_baseline(baselines)
    if best is not None:
        left_s = max(1.0, examination.seconds_left())
        limit_s = min(COMPILE_TIMEOUT_S, left_s)
        worker = resources.baseline_worker(best.name, timeout_s=limit_s)
        modules.append(LoadedModule(worker, best.name))
    settings = ClockSettings(resources.traced.device.l2_bytes, examination.run_timeout_s)
    with ExitStack() as stack:
        stack.enter_context(inputs.while_timing())
        # random numbers are others in every call, and what depends on earlier calls is too
        spots = None
        if not (reference.is_stochastic or reference.remembers):
            assert examination.answer is not None, "a kernel is timed after its values were checked"
            calls = max(FIRST_CALLS, inputs.count)
            spots = stack.enter_context(
                Spots(reference, examination.answer, calls=calls, seed=resources.seed_for("spots"))
            )
            settings = replace(settings, spots=spots)
        for module in modules:
            inputs.show(module.worker)
            if spots is not None:
                module.worker.attach(spots.shared)
        with resources.hold_gpu("timing in pairs", exclusive=True):
            if best is None:
                taken = time_alone(*modules, inputs, settings)
            else:
                taken = time_pairs(*modules, inputs, settings, name=best.name, seed=seed)
            state = gpu_state(gpu_uuid())
            timing = taken.timing
            calls = host_calls(timing.latency_ms)
            hosts = [
                time_host(module, inputs.names(module.worker)[0], settings, calls)
                for module in modules
            ]
            host_ms = least_host_ms(modules[0], inputs, settings, taken)
            captures = _waits_for_host(hosts[0], timing.latency_ms) or is_short(timing.latency_ms)
            graphs_ms = [
                time_graph(module, inputs.names(module.worker)[0], settings) if captures else None
                for module in modules
            ]
            timing = replace(
                timing,
                first_call_s=examination.first_call_s,
                host_us=hosts[0].host_us,
                back_to_back_ms=hosts[0].back_to_back_ms,
                reference_back_to_back_ms=hosts[1].back_to_back_ms if best else None,
                graph_ms=graphs_ms[0],
                reference_graph_ms=graphs_ms[1] if best else None,
            )
        samples_ms = {"candidate": taken.candidate_ms}
        if best is not None:
            samples_ms[best.name] = taken.reference_ms
        examination.samples_ms = samples_ms
        if spots is not None:
            for module in modules:
                module.worker.detach(spots.shared)
            check_timed(examination, spots, resources.seed_for("timed calls"))
    _check_plausible(examination, timing, host_ms, resources)
    environment = {**state, "host_ms": f"{host_ms:.4f}"}
    if is_short(timing.latency_ms):
        graph_ms = timing.graph_ms
        environment["graph_ms"] = "not capturable" if graph_ms is None else f"{graph_ms:.4f}"
    return timing, environment


def _waits_for_host(host: HostTimes, latency_ms: float) -> bool:
    """Whether calls take as long as the host issues them, one after another or each by itself."""
    return (
        host.back_to_back_ms > _HOST_BOUND_RATIO * latency_ms
        or 1e-3 * host.host_us > latency_ms / _HOST_BOUND_RATIO
    )


def _check_plausible(
    examination: Examination, timing: Timing, host_ms: float, resources: JudgeResources
) -> None:
    """Raises Refused: if the time cannot be true. A surprising speedup is flagged "over_10x"."""
    traced = resources.traced
    algebraic = "algebraic" in examination.kernel.flags
    floor_ms = physical_floor_ms(
        traced.bound,
        traced.device,
        algebraic=algebraic,
        parameter_bytes=parameter_bytes(traced.graph) if traced.bound else 0,
    )
    issue_ms = (timing.host_us or 0.0) / 1e3

    def reason_with(kernels_ms: Sequence[float]) -> str | None:
        return implausible_reason(timing.latency_ms, host_ms, floor_ms, kernels_ms, issue_ms)

    kernels_ms = _milliseconds(examination.gpu_kernels)
    reason = reason_with(kernels_ms)
    if reason is not None and reason_with([]) is None:
        seed = resources.seed_for("verify", "provenance")
        more = [_milliseconds(kernels_once_more(examination, seed)) for _ in range(_PROFILED_AGAIN)]
        reason = reason_with(sorted([kernels_ms, *more], key=sum)[_PROFILED_AGAIN // 2])
    if reason is not None:
        raise Refused(Status.IMPLAUSIBLE, reason)
    if timing.ratio is not None and timing.ratio > SURPRISING_RATIO:
        examination.flags.add("over_10x")


def _milliseconds(kernels: Sequence[tuple[str, float]]) -> list[float]:
    return [time_us / 1e3 for _, time_us in kernels]
