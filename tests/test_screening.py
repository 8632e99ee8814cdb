"""No kernel becomes the best of a search before it has seen what the verification shows it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpus import problems
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.measure import screening
from kmem.measure.examine.examination import Examination
from kmem.measure.judge import Judge
from kmem.measure.oracle.families import FAMILIES
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.problem.workload import derive_small_workload
from kmem.records import Contract, Kernel, Measurement, Problem, Status, Timing, Workload


def timing(latency_ms: float) -> Timing:
    return Timing(latency_ms, latency_ms, latency_ms, 40)


class Examiner:
    """Refuses some kernels whatever the step finds; notes whom it was asked about."""

    def __init__(self, refused: dict[str, Status]) -> None:
        self._refused = refused
        self.asked: list[str] = []

    def examine(self, kernel: Kernel, step: Callable[[Examination], None]) -> object:
        self.asked.append(kernel.source)
        if kernel.source in self._refused:
            return Measurement(self._refused[kernel.source], None, estimated=False, log="no")
        return SimpleNamespace(errors=[f"errors of {kernel.source}"])


def refuse(
    times_ms: dict[str, float], refused: dict[str, Status]
) -> tuple[dict[str, bool], list[str]]:
    """Which kernels are refused, asked in order of their times; and which were examined."""
    examiner = Examiner(refused)
    made = screening.Screening(examiner, None, None)
    verdicts = {}
    for source, time_ms in sorted(times_ms.items(), key=lambda pair: pair[1]):
        entrant = SimpleNamespace(errors=[])
        found = made._refuse_as_best(Kernel(source), entrant, timing(time_ms))
        verdicts[source] = found is not None
    return verdicts, examiner.asked


def test_the_fastest_kernels_are_shown_every_family_until_one_holds() -> None:
    wrong = Status.WRONG_VALUES
    verdicts, asked = refuse({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, {"a": wrong, "b": wrong})
    assert asked == ["a", "b", "c"]
    assert verdicts == {"a": True, "b": True, "c": False, "d": False}


def test_an_examination_that_was_cut_off_refuses_nothing() -> None:
    verdicts, asked = refuse({"a": 1.0, "b": 2.0}, {"a": Status.INTERRUPTED})
    assert (verdicts, asked) == ({"a": False, "b": False}, ["a", "b"])


@pytest.mark.slow
def test_every_family_of_the_verification_is_shown(tmp_path: Path) -> None:
    problem = Problem("corpus", "<corpus>", problems.SCALE_RELU)
    workloads = {"full": Workload("full"), "small": derive_small_workload(problem)}
    traced = TracedProblem(problem, Contract(), named_target("h200"), workloads, {}, None)
    settings = JudgeSettings(seed=3, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "cache")
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
        resources = judge._resources
        resources.main, resources.has_small = "full", True  # as on a GPU
        made = screening.Screening(judge._examiner, resources, settings)
        entrant = SimpleNamespace(launches=0, worker=None)
        found = judge._examiner.examine(
            Kernel(LIBRARY), lambda examination: made.check_every_family(examination, entrant)
        )
        assert not isinstance(found, Measurement), found.log
        families = [error.family for error in found.errors]
    assert set(families) == set(FAMILIES)
    assert families[-1] == "large", "the expensive one, at full size, comes last"
