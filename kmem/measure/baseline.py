"""The unmodified module as the competition: eager, torch.compile and max-autotune, each in a
process that never saw a candidate.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.measure.loading import attach_once, load_module
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess
from kmem.measure.timing.gpu_clock import WARMUP_CALLS, ClocksDisagree, sample_times
from kmem.measure.timing.statistics import summarize_samples
from kmem.records import Baseline

if TYPE_CHECKING:
    from kmem.measure.resources import JudgeResources  # which lends baseline workers in its turn

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


def start_baseline(worker: WorkerProcess, name: str, source: str, reference: Reference) -> None:
    """Load the module into a clean worker under the key of its name.

    Raises WorkerFailure, WorkerLost.
    """
    path = Path(worker.directory) / "module_under_test.py"
    path.write_text(source, encoding="utf-8")
    attach_once(worker, reference.state)
    load_module(
        worker,
        name,
        path,
        "Model",
        reference,
        timeout_s=COMPILE_TIMEOUT_S,
        compile_mode=COMPILE_MODES[name],
    )


def call_baseline(worker: WorkerProcess, name: str, inputs: str) -> None:
    """One forward of a baseline that was started: compiles it, if no cache holds it.

    Raises WorkerFailure, WorkerLost.
    """
    worker.request(
        "run",
        timeout_s=COMPILE_TIMEOUT_S,
        key=name,
        inputs=inputs,
        outputs=None,
        seed=0,
        suppress=False,
        keep=None,
    )


def time_baseline(
    worker: WorkerProcess,
    name: str,
    inputs: Sequence[str],
    resources: "JudgeResources",
    *,
    l2_bytes: int,
) -> Baseline:
    """Load and time one baseline, with the GPU to itself while it is timed; a failure is a Baseline
    without timing and with its log.
    """
    common = {"l2_bytes": l2_bytes, "timeout_s": COMPILE_TIMEOUT_S}
    try:
        start_baseline(worker, name, resources.problem.source, resources.reference())
        turns = resources.lease.place if resources.lease is not None else None
        # compiles, and has the GPU alone wherever Inductor tunes
        sample_times(worker, name, inputs, 1, warmup=1, turns=turns, **common)
        with resources.hold_gpu(exclusive=True):
            samples = sample_times(worker, name, inputs, SAMPLES, warmup=WARMUP_CALLS, **common)[
                "event_ms"
            ]
    except WorkerFailure as failure:
        return Baseline(name, None, estimated=False, log=f"{failure}\n{failure.traceback}")
    except (WorkerLost, ClocksDisagree) as ex:
        return Baseline(name, None, estimated=False, log=str(ex))
    return Baseline(name, summarize_samples(samples), estimated=False)
