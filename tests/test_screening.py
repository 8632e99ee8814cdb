"""No kernel becomes the best of a search before it has seen what the verification shows it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpus import problems
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.measure import examiner, screening
from kmem.measure.examine.examination import Examination
from kmem.measure.judge import Judge
from kmem.measure.oracle.inputs.families import FAMILIES, SCREENING_FAMILIES
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.gpu_clock import Batch, ClockSettings, LoadedModule
from kmem.measure.worker.commands import Run
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Measurement, Problem, Status, Timing, Workload

pytestmark = pytest.mark.usefixtures("shared_template")


def timing(latency_ms: float) -> Timing:
    return Timing(latency_ms, latency_ms, latency_ms, 40)


class Examiner:
    """Refuses some kernels whatever the step finds; notes whom it was asked about."""

    def __init__(self, refused: dict[str, Status]) -> None:
        self._refused = refused
        self.asked: list[str] = []

    def examine(
        self, kernel: Kernel, step: Callable[[Examination], None], worker: object
    ) -> object:
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
        entrant = SimpleNamespace(errors=[], reference="r", worker=SimpleNamespace(alive=True))
        found = made.refuse_as_best(Kernel(source), entrant, timing(time_ms))
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


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    problem = Problem("corpus", "<corpus>", problems.SCALE_RELU)
    workloads = {"full": Workload("full"), "small": derive_small_workload(problem)}
    traced = TracedProblem(problem, Contract(), named_target("h200"), workloads, {}, None)
    settings = JudgeSettings(seed=3, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "cache")
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as made:
        made._resources.main, made._resources.has_small = "full", True  # as on a GPU
        yield made


def as_on_a_gpu(judge: Judge) -> screening.Screening:
    settings = replace(judge._settings, gpu=True)
    return screening.Screening(judge._examiner, judge._resources, settings)


@pytest.mark.slow
def test_what_is_verified_next_is_refused_at_the_small_size_already(judge: Judge) -> None:
    made = as_on_a_gpu(judge)
    judge._resources.reference = {"small": judge._resources.reference("small")}.__getitem__
    passed: dict[str, bool] = {}
    for source in (LIBRARY.replace("aten.relu.default", "aten.abs.default"), LIBRARY):
        entrant = SimpleNamespace(errors=[], reference="r", worker=judge._workers.take())
        found = made.refuse_as_best(Kernel(source), entrant, timing(1.0), verified_next=True)
        passed[source] = found is None
        assert found is None or found.status is Status.WRONG_VALUES
    assert list(passed.values()) == [False, True]
    families = [error.family for error in entrant.errors]
    assert families == list(SCREENING_FAMILIES)
    assert made.refuse_as_best(Kernel("none"), entrant, timing(2.0)) is not None  # no best yet


@pytest.mark.slow
def test_every_family_of_the_verification_is_shown(judge: Judge) -> None:
    made, worker = as_on_a_gpu(judge), judge._workers.take()
    entrant = SimpleNamespace(launches=0)

    def step(examination: Examination) -> None:
        made._check_every_family(examination, entrant, is_loaded=False)

    found = judge._examiner.examine(Kernel(LIBRARY), step, worker)
    assert not isinstance(found, Measurement), found.log
    families = [error.family for error in found.errors]
    assert set(families) == set(FAMILIES)
    assert families[-1] == "large", "the expensive one, at full size, comes last"


@pytest.mark.slow
def test_entrants_are_raced_a_few_at_a_time_each_in_a_worker_of_its_own(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: dict[str, set[int]] = {}
    most = 0

    def sample(entrant: LoadedModule, batch: Batch, clock: ClockSettings) -> SimpleNamespace:
        """Real calls, made-up times: the kernel of number n takes 9 - n ms."""
        nonlocal most
        call = Run(entrant.key, batch.inputs[0], None, seed=1)
        entrant.worker.request(call, timeout_s=clock.timeout_s)
        pids.setdefault(entrant.key, set()).add(entrant.worker.pid)
        most = max(most, sum(worker.alive for worker in judge._workers._workers))
        number = next(n for n, each in enumerate(kernels) if entrant.key.startswith(each.hash[:16]))
        return SimpleNamespace(event_ms=[9.0 - number] * batch.count)

    monkeypatch.setattr(screening, "sample_times", sample)
    made = as_on_a_gpu(judge)
    kernels = [Kernel(f"{LIBRARY}\n# {number}\n") for number in range(6)]
    contest, verdicts = made.open_race(kernels, lambda: False), {}
    for index, kernel in enumerate(kernels):
        outcome = made.examine(kernel)
        assert not isinstance(outcome, Measurement), outcome.log
        contest.enter(index, outcome, verdicts.__setitem__)
        assert not verdicts
    contest.finish(verdicts.__setitem__)
    assert list(verdicts) == [5, 4, 3, 2, 1, 0], "the fastest first"
    assert all(verdict.status is Status.PASSED for verdict in verdicts.values())
    assert [verdicts[index].timing.latency_ms for index in range(6)] == [
        9.0,
        8.0,
        7.0,
        6.0,
        5.0,
        4.0,
    ]
    assert len(set.union(*pids.values())) == len(pids) == len(kernels)
    assert most <= screening.ENTRANTS_AT_ONCE + 1
    assert not any(worker.alive for worker in judge._workers._workers)


@pytest.mark.slow
def test_kernels_of_recipes_share_a_worker_until_one_ends_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: dict[int, list[int]] = {}

    def sample(entrant: LoadedModule, batch: Batch, clock: ClockSettings) -> SimpleNamespace:
        call = Run(entrant.key, batch.inputs[0], None, seed=1)
        entrant.worker.request(call, timeout_s=clock.timeout_s)
        number = next(n for n, each in enumerate(kernels) if entrant.key.startswith(each.hash[:16]))
        pids.setdefault(number, []).append(entrant.worker.pid)
        return SimpleNamespace(event_ms=[9.0 - number] * batch.count)

    monkeypatch.setattr(screening, "sample_times", sample)
    made = as_on_a_gpu(judge)
    wrong = LIBRARY.replace("aten.relu.default", "aten.abs.default")
    ends = LIBRARY.replace("        return", "        __import__('os').kill(0, 9)\n        return")
    monkeypatch.setattr(examiner, "check_source", lambda source, problem_source: [])
    kernels = [Kernel(f"{text}\n# {n}\n") for n, text in enumerate((LIBRARY, wrong, LIBRARY, ends))]
    kernels += [Kernel(LIBRARY), Kernel(f"{LIBRARY}\n# by a model\n")]
    contest, verdicts = made.open_race(kernels, lambda: False), {}
    examined_in: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        outcome = made.examine(kernel, in_common=index < 5)
        if isinstance(outcome, Measurement):
            verdicts[index] = outcome
        else:
            examined_in[index] = outcome.worker.pid
            contest.enter(index, outcome, verdicts.__setitem__)
    contest.finish(verdicts.__setitem__)
    statuses = {index: verdict.status for index, verdict in sorted(verdicts.items())}
    passed, wrong_values = Status.PASSED, Status.WRONG_VALUES
    expected = [passed, wrong_values, passed, verdicts[3].status, passed, passed]
    assert list(statuses.values()) == expected
    assert verdicts[3].status not in (passed, wrong_values), "it ended its worker"
    assert examined_in[0] == examined_in[2] != examined_in[4] != examined_in[5]
    # the race finds the first two loaded again, where the next of recipes is; a model's stays alone
    assert set(pids[0]) == set(pids[2]) == set(pids[4]) == {examined_in[4]}
    assert set(pids[5]) == {examined_in[5]}


@pytest.mark.slow
def test_after_the_fastest_is_refused_the_next_is_loaded_again_and_judged_for_itself(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(entrant: LoadedModule, batch: Batch, clock: ClockSettings) -> SimpleNamespace:
        number = next(n for n, each in enumerate(kernels) if entrant.key.startswith(each.hash[:16]))
        return SimpleNamespace(event_ms=[1.0 + number] * batch.count)

    monkeypatch.setattr(screening, "sample_times", sample)
    made = as_on_a_gpu(judge)
    # right for what a screening shows, and for nothing large
    cut = LIBRARY.replace("x, self.scale)", "x.clamp(-1e3, 1e3), self.scale)")
    kernels = [Kernel(f"{text}\n# {n}\n") for n, text in enumerate((cut, LIBRARY, cut))]
    contest, verdicts = made.open_race(kernels, lambda: False), {}
    for index, kernel in enumerate(kernels):
        outcome = made.examine(kernel, in_common=True)
        assert not isinstance(outcome, Measurement), outcome.log
        contest.enter(index, outcome, verdicts.__setitem__)
    contest.finish(verdicts.__setitem__)
    # the last is slower than one that holds, and is not asked
    statuses = [verdicts[index].status for index in range(3)]
    assert statuses == [Status.WRONG_VALUES, Status.PASSED, Status.PASSED], verdicts[1].log


LEAVES = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

{first}


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return {value}
"""


@pytest.mark.slow
def test_a_candidate_finds_nothing_that_another_left(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "check_source", lambda source, problem_source: [])
    right = "torch.relu(x * self.scale)"
    left = "import sys\nfound = getattr(sys, 'left', 0)\nsys.left = 1\nsys.modules['left'] = sys"
    wrong_if_found = LEAVES.format(first=left, value=f"{right} + found")
    kernels = [Kernel(wrong_if_found), Kernel(wrong_if_found + "\n# again\n")]
    found = judge.screen(kernels, lambda index, measurement: None, deadline_s=60)
    assert [each.status for each in found] == [Status.PASSED] * 2, found[1].log
