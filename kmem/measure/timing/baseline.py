"""The unmodified module as the competition: eager, torch.compile and max-autotune.

Each is timed in a process that never saw a candidate.
"""

import math
import time
from collections.abc import Callable, Sequence
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
from kmem.measure.timing.statistics import summarize_samples, take_steady
from kmem.measure.worker.commands import Run
from kmem.records import Baseline, Status

#: Baseline name -> torch.compile mode; None is eager. CUDA graphs are left out: no candidate has
#: them either.
COMPILE_MODES: dict[str, str | None] = {
    "eager": None,
    "compile": "default",
    "max_autotune": "max-autotune-no-cudagraphs",
}
#: The one that may tune for minutes.
SLOW_BASELINE = "max_autotune"
#: Inductor's autotuning of large modules takes minutes.
COMPILE_TIMEOUT_S = 420.0
SAMPLES = 30


def start_baseline(
    baseline: LoadedModule, reference: Reference, *, timeout_s: float = COMPILE_TIMEOUT_S
) -> None:
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
        worker.request(replace(command, state=places), timeout_s=timeout_s)
        worker.detach(state)
    finally:
        state.remove()


def call_baseline(
    baseline: LoadedModule, inputs: str, *, timeout_s: float = COMPILE_TIMEOUT_S
) -> None:
    """One forward of a baseline that was started: compiles it, if no cache holds it.

    Raises WorkerFailure, WorkerLost.
    """
    command = Run(baseline.key, inputs, outputs=None, seed=0)
    baseline.worker.request(command, timeout_s=timeout_s)


def prepare_baseline(
    baseline: LoadedModule,
    inputs: Sequence[str],
    reference: Reference,
    turns: tuple[str, str] | None,
    *,
    l2_bytes: int,
    limit_s: float = math.inf,
) -> Baseline | None:
    """Load one baseline and compile it; what failed is a Baseline without timing and with its log.

    Args:
        baseline: a clean worker, and the baseline's name.
        inputs: names of attached lists of arguments, which the calls take in turn.
        turns: the lease of the GPU, which is held alone wherever Inductor tunes.
        limit_s: seconds from now; one that is not compiled by then is `timed_out`.
    """
    deadline = time.monotonic() + limit_s

    def prepare() -> None:
        start_baseline(baseline, reference, timeout_s=_settings(l2_bytes, deadline).timeout_s)
        batch = Batch(inputs, 1, warmup=1, turns=turns)
        sample_times(baseline, batch, _settings(l2_bytes, deadline))

    return _failure_of(prepare, baseline.key, limit_s)


def time_baseline(
    baseline: LoadedModule,
    inputs: Sequence[str],
    lease: GpuLease | None,
    *,
    l2_bytes: int,
    limit_s: float = math.inf,
) -> Baseline:
    """Time one baseline that was prepared, with the GPU to itself.

    Where its times spread, as on a busy host, they are taken again, and the quickest batch counts:
    a baseline that is slowed flatters kernels. A failure is a Baseline without timing and with its
    log.

    Args:
        baseline: its worker and its name.
        inputs: names of attached lists of arguments, which the calls take in turn.
        lease: of the GPU; None without one.
        limit_s: seconds from now; one that is not timed by then is `timed_out`.
    """
    deadline = time.monotonic() + limit_s
    failures: list[Baseline] = []

    def take() -> list[float]:
        samples: list[float] = []

        def step() -> None:
            batch = Batch(inputs, SAMPLES, warmup=WARMUP_CALLS)
            with lease.hold(exclusive=True, purpose="timing baselines") if lease else nullcontext():
                taken = sample_times(baseline, batch, _settings(l2_bytes, deadline))
            samples.extend(taken.event_ms)

        failed = _failure_of(step, baseline.key, limit_s)
        failures.extend([failed] if failed is not None else [])
        return samples

    samples = take_steady(take)
    if not samples:
        return failures[0]
    return Baseline(baseline.key, summarize_samples(samples), estimated=False)


def _settings(l2_bytes: int, deadline: float) -> ClockSettings:
    left_s = max(1.0, deadline - time.monotonic())
    return ClockSettings(l2_bytes, min(COMPILE_TIMEOUT_S, left_s))


def _failure_of(step: Callable[[], None], name: str, limit_s: float) -> Baseline | None:
    """The baseline that a step fails for; None if it does not."""
    try:
        step()
    except WorkerFailure as failure:
        return Baseline(name, None, estimated=False, log=f"{failure}\n{failure.traceback}")
    except WorkerLost as ex:
        if ex.status is Status.TIMED_OUT:
            return untimed_baseline(name, min(limit_s, COMPILE_TIMEOUT_S))
        return Baseline(name, None, estimated=False, log=str(ex))
    except ClocksDisagree as ex:
        return Baseline(name, None, estimated=False, log=str(ex))
    return None


def untimed_baseline(name: str, limit_s: float) -> Baseline:
    """A baseline whose time was up before it was timed."""
    log = f"timed out: not timed within {max(0.0, limit_s):.0f} s; --baseline-minutes gives it more"
    return Baseline(name, None, estimated=False, log=log, timed_out=True)
