"""Timed calls leave spots of what they return: a candidate that cheats only there is caught.

No GPU: the clock is made up.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from corpus import problems
from corpus.dishonest import scale_relu
from corpus.honest import LIBRARY

from kmem.measure.examine.cases import check_case
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.examine.loading import load_candidate
from kmem.measure.examine.timed_calls import check_timed
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.expected import SlicedExpected
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.spots import LOOKED_AT, SETTLED, SPOTS, Spots, TimedResult
from kmem.measure.pool.process import WorkerProcess
from kmem.measure.timing.gpu_clock import (
    ClockSettings,
    LoadedModule,
    TimedSamples,
    least_host_ms,
    time_pairs,
)
from kmem.measure.timing.inputs import TimedInputs
from kmem.measure.worker.commands import Load, Time
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Kernel, Problem, Status, Timing, Workload

#: Stands in for the clock of the GPU in a worker; it calls what is timed in the same order, and
#: says 12 ms.
HOST_CLOCK = """
import clocks
import torch


class HostClock:
    def __init__(self, l2_bytes):
        pass

    def time_calls(self, calls, count, host_count=0, look=lambda index, result: None):
        for index in range(count):
            look(index, calls[index % len(calls)]())
        return {"event_ms": [12.0] * count, "host_ms": [12.0] * host_count}


clocks.EventClock = HostClock


class ModelNew(torch.nn.Module):
    pass
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    place = tmp_path_factory.mktemp("worker")
    # not hostile: the file puts a clock of its own in the place of the GPU's
    made = WorkerProcess(place, "cpu", cache_dir=place / "cache", hostile=False)
    path = str(place / "host_clock.py")
    command = Load("clock", path, HOST_CLOCK, "ModelNew", [], [], training=True)
    made.request(command, timeout_s=60)
    yield made
    made.kill()


def reference_of(problem: str, place: Path) -> Reference:
    placement = Placement(torch.device("cpu"), place, ipc=False)
    return Reference(Problem("p", "<p>", problem), Workload("full"), Contract(), placement, seed=1)


def time_and_check(
    problem: str, source: str, worker: WorkerProcess, place: Path, seed: int = 3
) -> Examination:
    """Time a candidate against itself, as the judge does, and check what timed calls returned."""
    reference = reference_of(problem, place)
    examination = Examination(Kernel(source), worker, Contract(), 60.0, 60.0)
    load_candidate(examination, reference)
    check_case(examination, "drawn", 5)
    assert isinstance(examination.answer, Answer)
    inputs = TimedInputs(reference, lambda *purpose: seed + int(purpose[-1]))
    inputs.show(worker)
    with Spots(reference, examination.answer, calls=5, seed=seed) as spots:
        worker.attach(spots.shared)
        module = LoadedModule(worker, examination.key)
        clock = ClockSettings(l2_bytes=1, timeout_s=60, spots=spots)
        time_pairs(module, module, inputs, clock, name="eager", seed=seed)
        assert len(spots.results) == 2 * 10 * inputs.count  # every call of the candidate
        examination.errors.clear()
        check_timed(examination, spots, seed)
    inputs.close()
    reference.close()
    return examination


@pytest.mark.parametrize(
    ("problem", "source"),
    [
        (problems.SCALE_RELU, LIBRARY),
        (
            problems.IN_PLACE,
            (
                "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, y):\n"
                "        return x.add_(y) * 2\n"
            ),
        ),
        (
            problems.VIEW,
            (
                "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                "        return x.t()\n"
            ),
        ),
        (
            problems.MIN_AND_MAX,
            (
                "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                "        return x.amin(1), x.amax(1)\n"
            ),
        ),
        (
            problems.ARGMAX,
            (
                "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                "        return x.argmax(1)\n"
            ),
        ),
        (
            problems.ROW_SUM.replace("(x, dim=1, keepdim=True)", "(x)"),  # one number
            (
                "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                "        return x.sum()\n"
            ),
        ),
    ],
)
def test_what_honest_timed_calls_return_is_right(
    problem: str, source: str, worker: WorkerProcess, tmp_path: Path
) -> None:
    errors = time_and_check(problem, source, worker, tmp_path).errors
    assert {report.family for report in errors} == {"timed"}
    assert len({report.seed for report in errors}) == SETTLED


#: Right wherever it is only checked, and in every second batch of timed calls (three of the
#: candidate's, three of the other side's).
HALF = """
self.calls += 1
y = torch.relu(x * self.scale)
if self.calls > 20 and self.calls // 6 % 2:
    {cheat}
return y
"""


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "cheat",
    [
        "return torch.zeros_like(x)",
        "y[-1] = 0.5",
        "return (x.bfloat16() * self.scale).relu().float()",
        "y = y.roll(1, 0)",
    ],
)
def test_a_candidate_that_cheats_in_half_of_the_timed_batches_is_refused(
    cheat: str, worker: WorkerProcess, tmp_path: Path
) -> None:
    source = scale_relu(HALF.format(cheat=cheat), init="self.calls = 0")
    for seed in range(5):
        with pytest.raises(Refused, match="output 0 on family timed: relative error") as caught:
            time_and_check(problems.SCALE_RELU, source, worker, tmp_path, seed)
        assert caught.value.status is Status.WRONG_VALUES


def test_a_timed_call_that_returns_something_smaller_is_refused(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    source = scale_relu(HALF.format(cheat="return y[:1]"), init="self.calls = 0")
    with pytest.raises(
        Refused, match=r"output 0 has shape \[1, 40\], expected \[6, 40\]"
    ) as caught:
        time_and_check(problems.SCALE_RELU, source, worker, tmp_path)
    assert caught.value.status is Status.WRONG_CONTRACT


def test_a_large_result_is_looked_at_in_places_drawn_anew(tmp_path: Path) -> None:
    problem = problems.SCALE_RELU.replace("rows = 6", "rows = 600")
    reference = reference_of(problem, tmp_path)
    answer = reference.expect(reference.inputs.values, 1).answer
    with Spots(reference, answer, calls=2, seed=4) as spots:
        right = reference.run_eager(reference.inputs.values, 1)[0]
        for _ in range(2):
            spots.aim()
            places, values = spots.shared.values
            assert isinstance(places, torch.Tensor) and isinstance(values, torch.Tensor)
            assert (places.shape, values.shape, values.isnan().all()) == (
                (2, SPOTS),
                (2, SPOTS),
                True,
            )
            values[0], values[1] = right[tuple(places)], 0.5
            spots.collect([1, 1], [{}, {}])
    first, wrong = spots.results[:2]
    second = spots.results[2]
    assert not torch.equal(first.places[0], second.places[0])
    assert first.distance([right]) == 0 and wrong.distance([right]) > 0.1
    expected = reference.expect(reference.inputs.values, 1)
    assert expected.compare_at(first.places, first.values).is_within
    assert not expected.compare_at(wrong.places, wrong.values).is_within
    reference.close()


@pytest.mark.parametrize("slices", [False, True])
def test_spots_are_judged_by_their_own_norm(
    slices: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slices:
        monkeypatch.setattr("kmem.measure.oracle.inputs.filled._WHOLE_BYTES", 2**12)
    reference = reference_of(problems.SCALE_RELU.replace("rows = 6", "rows = 600"), tmp_path)
    expected = reference.expect(reference.inputs.values, 1)
    assert isinstance(expected, SlicedExpected) is slices
    right = reference.run_eager(reference.inputs.values, 1)[0]
    places = torch.stack([torch.arange(600), torch.arange(600) % 40])
    values = right[tuple(places)]
    assert expected.compare_at([places], [values]).is_within
    off = values * (1 + 1.5e-6)  # among all 24000 elements, an error of 2e-7
    compared = expected.compare_at([places], [off])
    assert compared.found[0].relative_error == pytest.approx(1.5e-6, rel=0.2)
    assert not compared.is_within
    reference.close()


def test_a_misplaced_nan_is_further_than_any_number() -> None:
    places, right = (torch.arange(3)[None],), torch.tensor([1.0, 2.0, 3.0])
    assert TimedResult(1, {}, places, (torch.tensor([1.0, float("nan"), 3.0]),)).distance(
        [right]
    ) == float("inf")
    assert TimedResult(1, {}, places, (torch.tensor([1.0, 3.0, 3.0]),)).distance([right]) < 1


def test_enough_calls_are_looked_at() -> None:
    assert 0.5**LOOKED_AT < 1e-6
    assert 0.75**LOOKED_AT < 2e-3


def test_a_host_time_that_is_out_of_proportion_is_taken_again() -> None:
    asked: list[int] = []

    def request(command: Time, *, timeout_s: float) -> dict[str, list[float]]:
        asked.append(command.host_count)
        return {"event_ms": [4.0] * command.count, "host_ms": [4.2] * command.host_count}

    module = LoadedModule(SimpleNamespace(request=request), "k")  # type: ignore[arg-type]
    inputs = SimpleNamespace(names=lambda worker: ["inputs"])
    clock = ClockSettings(l2_bytes=1, timeout_s=60)
    for first_ms, expected_ms, again in ((7.8, 4.2, [20]), (4.3, 4.3, [])):
        asked.clear()
        taken = TimedSamples(Timing(4.0, 4.0, 4.0, 30), first_ms, ((4.0,),))
        assert least_host_ms(module, inputs, clock, taken) == expected_ms  # type: ignore[arg-type]
        assert asked == again
