"""A kernel that ran out of device memory beside others is no failed one. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from corpus import problems
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.host.lease import GpuLease
from kmem.measure.examine.examination import Examination
from kmem.measure.examiner import Examiner
from kmem.measure.judge import Judge
from kmem.measure.pool.process import WorkerFailure, failure_status
from kmem.measure.settings import JudgeSettings
from kmem.measure.shortage import describe_neighbours, wanted_bytes
from kmem.measure.worker.commands import Forget
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Measurement, Problem, Status, Workload

#: As torch 2.13 writes it.
TORCH = (
    "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.10 GiB of "
    "which 1.21 GiB is free. Process 4242 has 70.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 7.65 GiB memory in use. Of the allocated memory 7.25 GiB is "
    "allocated by PyTorch, and 301.94 MiB is reserved by PyTorch but unallocated."
)
SMALL, LARGE = TORCH.format(tried="1.50 GiB"), TORCH.format(tried="130206.04 GiB")


def failure(message: str, kind: str = "OutOfMemoryError") -> WorkerFailure:
    return WorkerFailure({"failed": "forward", "type": kind, "bases": [], "message": message})


class Bench:
    """An examiner on a made-up GPU, whose lease is a real one; it notes how the GPU was held."""

    def __init__(self, place: Path, *, is_shared: bool) -> None:
        self.gave_room, self.alone, self.asked = 0, list[bool](), list[object]()
        self.discarded: list[object] = []
        self.lease = GpuLease(place, "card", lambda text: None, self._give_room)
        self.worker = SimpleNamespace(
            ready={}, request=lambda command, **how: self.asked.append(command)
        )
        resources = SimpleNamespace(
            lease=self.lease,
            traced=SimpleNamespace(
                problem=Problem("p", "p.py", ""),
                contract=Contract(),
                device=named_target("h100"),
            ),
            workers=SimpleNamespace(discard=self.discarded.append),
            try_on_cpu=lambda: None,
            hold_gpu=lambda purpose, *, exclusive: self.lease.hold(
                exclusive=exclusive, purpose=purpose
            ),
            hold_gpu_with_room=self.lease.hold_with_room,
        )
        settings = JudgeSettings(seed=1, gpu=True, work_dir=place, cache_dir=place)
        self.examiner = Examiner(resources, settings, is_shared=lambda: is_shared)
        self._place = place

    def _give_room(self) -> None:
        self.gave_room += 1

    def examine(self, *failures: WorkerFailure | None) -> Measurement | Examination:
        """What becomes of a kernel whose tries end like this."""
        ends = list(failures)

        def step(examination: Examination) -> None:
            self.alone.append(self._is_held_alone())
            if (end := ends.pop(0)) is not None:
                raise end

        return self.examiner.examine(Kernel(LIBRARY), step, self.worker)

    def _is_held_alone(self) -> bool:
        with GpuLease(self._place, "card", self._stop) as other:
            try:
                with other.hold(exclusive=False, purpose="a test"):
                    return False
            except InterruptedError:
                return True

    @staticmethod
    def _stop(text: str) -> None:
        raise InterruptedError


def test_what_finds_no_room_beside_others_is_tried_once_more_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_shared=True)
    outcome = bench.examine(failure(SMALL), None)
    assert isinstance(outcome, Examination)
    assert bench.alone == [False, True]
    assert bench.gave_room == 1
    assert [type(command) for command in bench.asked] == [Forget]
    assert not bench._is_held_alone(), "and nobody waits for it afterwards"


def test_who_has_the_gpu_is_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_shared=False)
    outcome = bench.examine(failure(SMALL))
    assert outcome.status is Status.OUT_OF_MEMORY
    assert (bench.alone, bench.gave_room) == ([False], 0)


def test_what_would_have_found_room_alone_has_no_verdict_and_says_why(tmp_path: Path) -> None:
    outcome = Bench(tmp_path, is_shared=True).examine(failure(SMALL), failure(SMALL))
    assert outcome.status is Status.INTERRUPTED
    assert outcome.log == (
        "other processes hold the GPU's memory: to judge this kernel takes 9.4 GB of 80 GB, and "
        "they left less while it had the GPU to itself; no verdict, judge it again with fewer "
        "beside it"
    )


def test_what_no_gpu_has_room_for_is_a_failure_beside_others_too(tmp_path: Path) -> None:
    outcome = Bench(tmp_path, is_shared=True).examine(failure(LARGE), failure(LARGE))
    assert outcome.status is Status.OUT_OF_MEMORY
    assert "130206.04 GiB" in outcome.log


def test_what_fails_otherwise_once_it_has_room_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_shared=True)
    outcome = bench.examine(failure(SMALL), failure("nothing is as it was", "ValueError"))
    assert outcome.status is Status.CRASHED


def test_sizes_are_read_as_torch_writes_them() -> None:
    assert wanted_bytes(SMALL) == int(1.5 * 2**30) + int(7.25 * 2**30)
    some = "Tried to allocate 20.00 MiB. [...] 512 bytes is allocated by PyTorch"
    assert wanted_bytes(some) == 20 * 2**20 + 512
    assert wanted_bytes("Triton Error [CUDA]: out of memory") == 0


@pytest.mark.parametrize(
    ("log", "own_gib", "by_others"),
    [
        (SMALL, 0, True),
        (SMALL, 62, True),  # 70.75 of 80
        (SMALL, 64, False),  # a tenth is for contexts
        ("Triton Error [CUDA]: out of memory", 10, True),
    ],
)
def test_what_the_judge_has_itself_counts_to_what_is_needed(
    log: str, own_gib: int, by_others: bool
) -> None:
    assert bool(describe_neighbours(log, own_gib * 2**30, 80 * 2**30)) is by_others


@pytest.mark.parametrize(
    ("kind", "message", "is_lost"),
    [
        ("AcceleratorError", "CUDA error: out of memory", False),
        ("RuntimeError", "Triton Error [CUDA]: out of memory", False),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered", True),
    ],
)
def test_a_full_device_is_told_from_errors_that_end_a_worker(
    tmp_path: Path, kind: str, message: str, is_lost: bool
) -> None:
    bench = Bench(tmp_path, is_shared=False)
    outcome = bench.examine(failure(message, kind))
    expected = Status.CRASHED if is_lost else Status.OUT_OF_MEMORY
    assert outcome.status is expected is failure_status(failure(message, kind))
    assert bench.discarded == [bench.worker] * is_lost


@pytest.mark.slow
def test_a_real_worker_is_asked_twice_and_a_judge_passes_the_verdict_on(tmp_path: Path) -> None:
    problem = Problem("corpus", "<corpus>", problems.SCALE_RELU)
    full = {"full": Workload("full")}
    traced = TracedProblem(problem, Contract(), named_target("h100"), full, {}, None)
    settings = JudgeSettings(seed=3, gpu=False, work_dir=tmp_path, cache_dir=tmp_path / "cache")
    source = LIBRARY.replace("return", f"raise torch.OutOfMemoryError('{SMALL}')\n        return")
    rooms: list[str] = []
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as judge:
        first = judge.verify(Kernel(source), ())
        with GpuLease(
            tmp_path, "card", lambda text: None, lambda: rooms.append("given")
        ) as judge._resources.lease:
            judge._examiner._is_shared = lambda: True
            second = judge.verify(Kernel(source), ())
    assert (first.status, second.status) == (Status.OUT_OF_MEMORY, Status.INTERRUPTED)
    assert second.log.startswith("other processes hold the GPU's memory")
    assert len(rooms) > 1, "before the second try, and between its steps"
