"""What is made of an examination: the measurement, and the bundle that stands behind it."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import kmem
from kmem.measure.bundle import FORMAT, Bundle
from kmem.measure.examine.examination import Examination
from kmem.measure.oracle.inputs.families import FAMILIES
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.records import Baseline, Measurement, Status, Timing

#: In a measurement's environment: the input families that the module itself raises for, and what it
#: says. No candidate was given them.
REFUSED_FAMILIES = "refused_families"


def passed_measurement(
    examination: Examination,
    timing: Timing,
    environment: Mapping[str, str],
    *,
    estimated: bool,
) -> Measurement:
    """The verdict on a kernel that passed every check.

    Args:
        environment: the state of the machine that the timing was taken in.
        estimated: the timing is; no GPU is here.
    """
    refused = "; ".join(
        f"{name} ({examination.refused[name]})" for name in FAMILIES if name in examination.refused
    )
    seen = {
        **(examination.worker.ready or {}),
        "kmem": kmem.__version__,
        **environment,
        **({REFUSED_FAMILIES: refused} if refused else {}),
    }
    return _measurement(Status.PASSED, timing, "", examination, seen, estimated=estimated)


def failed_measurement(
    status: Status, log: str, examination: Examination | None, *, estimated: bool
) -> Measurement:
    """The verdict on a kernel that failed.

    Args:
        log: why, for people.
        examination: what was found until then; None if nothing ran.
        estimated: no GPU is here.
    """
    if examination is None:
        return Measurement(status, None, estimated, log=log)
    seen = examination.worker.ready or {}
    return _measurement(status, None, log, examination, seen, estimated=estimated)


def _measurement(
    status: Status,
    timing: Timing | None,
    log: str,
    examination: Examination,
    environment: Mapping[str, str],
    *,
    estimated: bool,
) -> Measurement:
    flags = tuple(sorted({*examination.flags, *examination.kernel.flags}))
    return Measurement(
        status,
        timing,
        estimated,
        tuple(examination.errors),
        flags,
        log,
        examination.share,
        environment,
    )


def make_bundle(
    examination: Examination,
    measurement: Measurement,
    baselines: Sequence[Baseline],
    traced: TracedProblem,
    settings: JudgeSettings,
) -> Bundle:
    """Everything that stands behind a verdict, so that `kmem verify` can repeat it."""
    kernel = examination.kernel
    return Bundle(
        format=FORMAT,
        problem=traced.problem,
        problem_hash=traced.problem.hash,
        kernel_source=kernel.source,
        kernel_hash=kernel.hash,
        kernel_flags=kernel.flags,
        kernel_small_constants=kernel.small_constants,
        contract=traced.contract,
        device=traced.device,
        measured=settings.gpu,
        seed=settings.seed,
        checkers=tuple(checker.name for checker in settings.checkers),
        measurement=measurement,
        baselines=tuple(baselines),
        samples_ms=examination.samples_ms,
        operators=examination.operators,
        gpu_kernels=examination.gpu_kernels,
        binaries=examination.binaries,
        command=shlex.join(sys.argv),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
