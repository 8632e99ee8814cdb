"""The unmodified module as the competition: eager, torch.compile and max-autotune.

Each is timed in a process that never saw a candidate.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from kmem.host.lease import GpuLease
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.process import WorkerFailure, WorkerLost
from kmem.measure.timing.gpu_clock import (
    WARMUP_CALLS,
    Batch,
    ClocksDisagree,
    ClockSettings,
    LoadedModule,
    sample_times,
)
from kmem.measure.timing.statistics import summarize_samples
from kmem.measure.worker.commands import Run
from kmem.records import Baseline

#: Baseline name -> torch.compile mode; None is eager. CUDA graphs are left out: no candidate has
#: them either.
COMPILE_MODES: dict[str, str | None] = {
    "eager": None,
    "compile": "default",
    "max_autotune": "max-autotune-no-cudagraphs",
}
#: Inductor's autotuning of large modules takes minutes.
COMPILE_TIMEOUT_S = 420.0
SAMPLES = 30


def start_baseline(baseline: LoadedModule, reference: Reference) -> None:
    """Load the module into a clean worker under the name of the baseline.

    Raises WorkerFailure, WorkerLost.
    """
    worker = baseline.worker
    path = Path(worker.directory) / "module_under_test.py"
    source = reference.problem.source
    path.write_text(source, encoding="utf-8")
    command = reference.load_command(
        baseline.key, str(path), source, "Model", compile_mode=COMPILE_MODES[baseline.key]
    )
    # in memory of its own, which no candidate's worker sees
    values = list(reference.module.initial_state.values())
    state = reference.new_arguments("baseline-state", values)
    try:
        state.write(values)
        worker.attach(state)
        places = [[name, state.name, index] for index, name in enumerate(reference.state_names)]
        worker.request(replace(command, state=places), timeout_s=COMPILE_TIMEOUT_S)
        worker.detach(state)
    finally:
        state.remove()


def call_baseline(baseline: LoadedModule, inputs: str) -> None:
    """One forward of a baseline that was started: compiles it, if no cache holds it.

    Raises WorkerFailure, WorkerLost.
    """
    command = Run(baseline.key, inputs, outputs=None, seed=0)
    baseline.worker.request(command, timeout_s=COMPILE_TIMEOUT_S)


def time_baseline(
    baseline: LoadedModule,
    inputs: Sequence[str],
    reference: Reference,
    lease: GpuLease | None,
    *,
    l2_bytes: int,
) -> Baseline:
    """Load and time one baseline, with the GPU to itself while it is timed.

    A failure is a Baseline without timing and with its log.

    Args:
        baseline: a clean worker, and the baseline's name.
        inputs: names of attached lists of arguments, which the calls take in turn.
        lease: of the GPU; None without one.
    """
    name = baseline.key
    settings = ClockSettings(l2_bytes, COMPILE_TIMEOUT_S)
    turns = lease.place if lease is not None else None
    try:
        start_baseline(baseline, reference)
        # compiles, and has the GPU alone wherever Inductor tunes
        sample_times(baseline, Batch(inputs, 1, warmup=1, turns=turns), settings)
        with lease.hold(exclusive=True) if lease is not None else nullcontext():
            samples = sample_times(
                baseline, Batch(inputs, SAMPLES, warmup=WARMUP_CALLS), settings
            ).event_ms
    except WorkerFailure as failure:
        return Baseline(name, None, estimated=False, log=f"{failure}\n{failure.traceback}")
    except (WorkerLost, ClocksDisagree) as ex:
        return Baseline(name, None, estimated=False, log=str(ex))
    return Baseline(name, summarize_samples(samples), estimated=False)
