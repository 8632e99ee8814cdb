"""What belongs to the whole process, used by a thread that judges and one that times baselines."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kmem.measure.oracle.reference import Reference
from kmem.measure.worker import tensors
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Problem, Workload

#: It draws in steps, so that whoever draws meanwhile would get some of its numbers.
_SOURCE = """
import time
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.001)
        return torch.nn.functional.dropout(x, 0.5) + torch.ones(())

def get_inputs():
    parts = []
    for _ in range(4):
        parts.append(torch.rand(8))
        time.sleep(0.001)
    return [torch.cat(parts)]
"""


def test_draws_and_forwards_of_two_threads_do_not_mix(tmp_path: Path) -> None:
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    problem = Problem("p", "p.py", _SOURCE)
    reference = Reference(problem, Workload("full"), Contract(), placement, seed=1)
    inputs, seen = reference.inputs, list[tuple[torch.Tensor, ...]]()
    of_baselines = reference.new_arguments("timed", inputs.values)
    is_over = threading.Event()

    def draw_for_baselines() -> None:
        inputs.write_draw(of_baselines, 7)
        seen.append(tuple(value.clone() for value in of_baselines.values))
        while not is_over.is_set():
            inputs.write_draw(of_baselines, 7)
            seen.append(tuple(value.clone() for value in of_baselines.values))

    def judge() -> tuple[torch.Tensor, ...]:
        inputs.fill("drawn", 3)
        (value,) = inputs.values
        assert isinstance(value, torch.Tensor)
        return value.clone(), *reference.run_eager([value], 3), *run_double(value)

    def run_double(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return reference.module.run_double([value], 3).outputs

    alone = judge()
    assert alone[-1].dtype is torch.float64
    thread = threading.Thread(target=draw_for_baselines)
    thread.start()
    try:
        for _ in range(20):
            assert all(map(torch.equal, judge(), alone))
    finally:
        is_over.set()
        thread.join()
    assert len(seen) > 2
    assert all(torch.equal(one, seen[0][0]) for (one,) in seen)
    assert seen[0][0].dtype is torch.float32
    of_baselines.remove()
    reference.close()


def test_no_memory_pool_is_given_back_while_another_thread_allocates_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocating, ended = set[int](), list[bool]()

    class Pool:
        """Torch's ends the process where these are not empty."""

        def __del__(self) -> None:
            ended.append(bool(allocating))

    @contextmanager
    def used(pool: Pool, device: torch.device) -> Iterator[None]:
        allocating.add(id(pool))
        time.sleep(0.002)
        yield
        allocating.remove(id(pool))

    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", used)
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda count: tensors._empty_apart(count, torch.int8, cpu), range(40))
        assert [each.numel() for each in made] == list(range(40))
    assert ended == [False] * 40
