"""The suite of `kmem.run.evaluation.evaluator.Evaluator`.

Covered: what each answer must hold, that a resumed run is answered alike, and that every kernel is
judged once. Not covered: whether verdicts are true.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kmem.errors import ProfilerError
from kmem.records import (
    BASELINES,
    Attempt,
    Baseline,
    Candidate,
    Kernel,
    Measurement,
    Move,
    Profile,
    Status,
    Task,
)
from kmem.testing.wording import check_line

if TYPE_CHECKING:  # imports torch
    from kmem.run.evaluation.evaluator import Admitted, Evaluator


#: What the suite gives an evaluator for the baselines.
_BASELINES_S = 600.0


def check_evaluator(open_evaluator: "Callable[[], Evaluator]", kernels: Sequence[Kernel]) -> None:
    """Hold an evaluator to its contract with the first round of a run, and with the run resumed.

    Args:
        open_evaluator: makes an evaluator as a run does when it begins; called twice.
        kernels: the candidates of a round; at least one of them should pass.
    Raises:
        AssertionError: naming what the contract says and the evaluator does otherwise.
    """
    evaluator = open_evaluator()
    try:
        _check_seconds(evaluator.seconds_left)
        baselines = _baselines(evaluator)
        admitted = _admit(evaluator, kernels)
        verdicts = _screen(evaluator, admitted.ready)
        for kernel, verdict in zip(admitted.ready, verdicts, strict=True):
            if verdict.status is Status.PASSED:
                _check_winner(evaluator, kernel, verdict, baselines)
                break
        _check_seconds(evaluator.seconds_left)
    finally:
        evaluator.close()
    resumed = open_evaluator()
    try:
        again = _admit(resumed, kernels)
    finally:
        resumed.close()
    assert again == admitted, (
        "admit() must answer alike in a resumed run about the same kernels in the same order"
    )


def _check_seconds(seconds: float) -> None:
    assert isinstance(seconds, float) and not math.isnan(seconds), (
        f"seconds_left is a number of seconds, not {seconds!r}"
    )


def _baselines(evaluator: "Evaluator") -> tuple[Baseline, ...]:
    found: list[Baseline] = []
    evaluator.baselines(BASELINES, _BASELINES_S, found.append)
    baselines = tuple(found)
    names = [baseline.name for baseline in baselines]
    assert len(set(names)) == len(names), f"every baseline has a name of its own: {names}"
    for baseline in baselines:
        if baseline.timing is None:
            assert baseline.log, f"the log of a baseline without a time says why: {baseline.name}"
        else:
            assert baseline.timing.latency_ms > 0, f"{baseline.name}: {baseline.timing.latency_ms}"
    return baselines


def _admit(evaluator: "Evaluator", kernels: Sequence[Kernel]) -> "Admitted":
    admitted = evaluator.admit(kernels)
    answered = [kernel.hash for kernel, _ in admitted.failed]
    answered += [kernel.hash for kernel in admitted.ready]
    assert len(set(answered)) == len(answered), (
        "a kernel failed or is ready to be judged, once and not both"
    )
    assert set(answered) <= {kernel.hash for kernel in kernels}, (
        "admit() answers about the kernels that it was asked about, and no others"
    )
    for kernel, log in admitted.failed:
        assert log.strip(), f"the log of kernel {kernel.hash[:12]}, which failed, says why"
    return admitted


def _screen(evaluator: "Evaluator", kernels: Sequence[Kernel]) -> list[Measurement]:
    told: list[tuple[int, Measurement]] = []

    def on_result(index: int, measurement: Measurement) -> None:
        told.append((index, measurement))

    evaluator.screen(kernels, on_result)
    assert sorted(index for index, _ in told) == list(range(len(kernels))), (
        f"screen() gives a verdict on each of {len(kernels)} kernels once, not on "
        f"{sorted(index for index, _ in told)}"
    )
    verdicts = dict(told)
    for verdict in verdicts.values():
        assert isinstance(verdict, Measurement), f"a verdict is a Measurement, not {verdict!r}"
        assert verdict.status is Status.PASSED or verdict.log, (
            f"the log of a kernel that is {verdict.status.value} says why"
        )
    return [verdicts[index] for index in range(len(kernels))]


def _check_winner(
    evaluator: "Evaluator",
    kernel: Kernel,
    screened: Measurement,
    baselines: Sequence[Baseline],
) -> None:
    """What is asked about a kernel that passed: everything the judge has, and its profile."""
    verdict = evaluator.verify(kernel, baselines)
    assert isinstance(verdict, Measurement), f"verify() returns a Measurement, not {verdict!r}"
    timed = {baseline.name for baseline in baselines if baseline.timing is not None}
    if verdict.timing is not None and timed:
        assert verdict.timing.reference in timed, (
            f"verify() times against the best baseline, one of {sorted(timed)}, not against "
            f"{verdict.timing.reference!r}"
        )
    candidate = Candidate(kernel, Task(Move.SEED, "unaided", None, 1, "conformance"), "conformance")
    try:
        profile = evaluator.profile(Attempt(0, candidate, screened, None))
    except ProfilerError as ex:
        check_line(str(ex), "an error with its remedy")
        return
    assert isinstance(profile, Profile), f"profile() returns a Profile, not {profile!r}"
    assert profile.kernel == kernel.hash, (
        f"a profile names its kernel {kernel.hash[:12]}, not {profile.kernel[:12]}"
    )
