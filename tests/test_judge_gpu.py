"""The judge on a GPU: the whole corpus with the same verdicts as in the interpreter.

And recovery from a broken CUDA context.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from corpus import problems
from corpus.dishonest import DISHONEST
from corpus.honest import HEADER, HONEST, LIBRARY, SCALE_RELU
from corpus.judging import SharedWorkers, common_cache, judge_once

from kmem.devices import detect_device
from kmem.measure.judge import Judge
from kmem.measure.pool import checksum
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.settings import JudgeSettings
from kmem.measure.worker.tensors import Placement
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Problem, Purity, Status, Workload

pytestmark = pytest.mark.gpu

#: Reads a terabyte past its input.
ILLEGAL = (
    HEADER
    + """
@triton.jit
def stray(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(y_ptr + offset, tl.load(x_ptr + offset.to(tl.int64) + (1 << 40)))


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()

    def forward(self, x):
        y = torch.empty_like(x)
        stray[(1,)](x, y, BLOCK=128)
        return y
"""
)


#: Looks a thousand rows past its input: a device-side assertion.
ASSERTING = LIBRARY.replace(
    "return torch", "x = x[(x == x).long()[:, 0] * 1000]\n        return torch"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return common_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[SharedWorkers]:
    pool = SharedWorkers(tmp_path_factory.mktemp("workers"), "cuda:0", cache, keep_spare=False)
    yield pool
    pool.end()


@pytest.mark.parametrize(
    ("problem", "source"), [case[1:] for case in HONEST], ids=[case[0] for case in HONEST]
)
def test_an_honest_candidate_passes(
    problem: str, source: str, workers: SharedWorkers, tmp_path: Path, cache: Path
) -> None:
    measurement = judge_once(
        problem, source, Purity.LIBRARY, workers, tmp_path, gpu=True, cache=cache
    )
    assert (measurement.status, measurement.log) == (Status.PASSED, "")
    assert not measurement.estimated


@pytest.mark.parametrize(
    ("problem", "source", "status", "purity"),
    [case[2:] for case in DISHONEST],
    ids=[case[0] for case in DISHONEST],
)
def test_a_dishonest_candidate_is_refused(
    problem: str,
    source: str,
    status: Status,
    purity: Purity,
    workers: SharedWorkers,
    tmp_path: Path,
    cache: Path,
) -> None:
    measurement = judge_once(problem, source, purity, workers, tmp_path, gpu=True, cache=cache)
    assert measurement.status is status, measurement.log
    assert measurement.timing is None


_SKIPS_UNSEEN = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.seen = None

    def forward(self, x):
        self.seen = self.seen or x.data_ptr()
        is_usual = x.is_contiguous() and x.shape == (6, 40) and x.data_ptr() % 512 == 0
        if x.data_ptr() != self.seen and is_usual:
            return torch.empty_like(x)
        return torch.relu(x * self.scale)
"""


def test_a_candidate_that_does_nothing_where_it_is_only_timed_is_refused(
    workers: SharedWorkers, tmp_path: Path, cache: Path
) -> None:
    measurement = judge_once(
        problems.SCALE_RELU, _SKIPS_UNSEEN, Purity.LIBRARY, workers, tmp_path, gpu=True, cache=cache
    )
    assert (measurement.status, "family timed" in measurement.log) == (Status.WRONG_VALUES, True), (
        measurement.log
    )


_CHEATS_IN_HALF = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 40 and self.calls // 3 % 2:
            return torch.zeros_like(x)
        return torch.relu(x * self.scale)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_candidate_that_does_nothing_in_half_of_the_timed_batches_is_refused(
    attempt: int, workers: SharedWorkers, tmp_path: Path, cache: Path
) -> None:
    large = problems.SCALE_RELU.replace("rows = 6", "rows = 16384").replace(
        "columns = 40", "columns = 8192"
    )
    measurement = judge_once(
        large, _CHEATS_IN_HALF, Purity.LIBRARY, workers, tmp_path, gpu=True, cache=cache
    )
    assert (measurement.status, "family timed" in measurement.log) == (Status.WRONG_VALUES, True), (
        measurement.log
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
def test_checksums_are_those_of_the_cpu(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "_PROGRAMS", 16)  # every program takes several blocks
    value = torch.randint(0, 100, (3, 4096 * 30 + 5), device="cuda").to(dtype)
    for part, start in ((value, 0), (value[1:], 7), (value[:, 1:], 2**33), (value[:, :3], 0)):
        assert bit_sum(part, start) == bit_sum(part.cpu(), start)


def test_memory_that_a_worker_is_shown_lies_in_an_allocation_of_its_own(tmp_path: Path) -> None:
    device = torch.device("cuda:0")
    placement = Placement(device, tmp_path, ipc=True)
    shared = SharedArguments("apart", [torch.rand(1000), torch.rand(2**22)], placement)
    others = [torch.rand(size, device=device) for size in (1000, 2**18, 2**22) for _ in range(50)]
    segments = [
        range(each["address"], each["address"] + each["total_size"])
        for each in torch.cuda.memory_snapshot()
    ]
    for value in shared.values:
        (segment,) = [each for each in segments if value.data_ptr() in each]
        assert not any(
            other.data_ptr() in segment
            for other in (*others, *[each for each in shared.values if each is not value])
        )
    shared.remove()


@pytest.mark.parametrize(
    ("broken", "said"), [(ILLEGAL, "illegal memory access"), (ASSERTING, "device-side assert")]
)
def test_after_a_broken_context_the_next_candidate_runs(
    broken: str, said: str, tmp_path: Path
) -> None:
    problem = Problem("corpus", "<corpus>", problems.SCALE_RELU)
    workloads = {"full": Workload("full")}
    traced = TracedProblem(problem, Contract(), detect_device(), workloads, {}, None)
    settings = JudgeSettings(seed=3, gpu=True, work_dir=tmp_path, cache_dir=tmp_path / "cache")
    with Judge(traced, settings) as judge:
        kernels = [Kernel(LIBRARY), Kernel(broken), Kernel(SCALE_RELU)]
        found = judge.screen(kernels, lambda index, measurement: None, deadline_s=120)
        assert [measurement.status for measurement in found] == [
            Status.PASSED,
            Status.CRASHED,
            Status.PASSED,
        ]
        assert said in found[1].log
        assert judge.verify(Kernel(broken), ()).status is Status.CRASHED
        assert judge.verify(Kernel(SCALE_RELU), ()).status is Status.PASSED
