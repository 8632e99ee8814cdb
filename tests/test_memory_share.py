"""Shares of one GPU's memory between processes."""

import json
import multiprocessing
import os
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

from kmem.host.memory_share import MemoryShare


def hold(directory: Path, nbytes: int, holding: Event, may_end: Event) -> None:
    share = MemoryShare(directory, "GPU-1", 1000, lambda text: None)
    share.acquire(nbytes)
    holding.set()
    may_end.wait(30)
    if nbytes != 666:  # which stands for one that is killed
        share.release()


def start(directory: Path, nbytes: int) -> tuple[multiprocessing.Process, Event]:
    context = multiprocessing.get_context("fork")
    holding, may_end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(directory, nbytes, holding, may_end))
    process.start()
    assert holding.wait(30)
    return process, may_end


def test_who_does_not_fit_waits_until_the_other_is_done(tmp_path: Path) -> None:
    other, may_end = start(tmp_path, 500)
    waits: list[str] = []
    share = MemoryShare(tmp_path, "GPU-1", 1000, lambda text: (waits.append(text), may_end.set()))
    assert share.acquire(400) < 0.4  # 900 of 1000 fit
    share.release()
    assert share.acquire(401) > 0
    assert waits == ["waiting for memory on the GPU: another kmem has filled it"]
    other.join(30)
    share.release()


def test_a_gpu_is_shared_while_another_process_has_a_share(tmp_path: Path) -> None:
    share = MemoryShare(tmp_path, "GPU-1", 1000, lambda text: None)
    share.acquire(100)
    assert not share.is_shared(), "with nobody but this process"
    other, may_end = start(tmp_path, 500)
    assert share.is_shared()
    may_end.set()
    other.join(30)
    assert not share.is_shared()
    share.release()


def test_a_share_of_a_process_that_was_killed_counts_no_more(tmp_path: Path) -> None:
    other, may_end = start(tmp_path, 666)
    may_end.set()
    other.join(30)
    assert list(json.loads((tmp_path / "gpu-GPU-1.memory").read_text()).values()) == [666]
    share = MemoryShare(tmp_path, "GPU-1", 1000, lambda text: None)
    share.acquire(900)
    assert json.loads((tmp_path / "gpu-GPU-1.memory").read_text()) == {str(os.getpid()): 900}


def test_who_is_alone_gets_in_whatever_the_size_and_a_torn_file_is_an_empty_one(
    tmp_path: Path,
) -> None:
    share = MemoryShare(tmp_path, "GPU-1", 1000, lambda text: None)
    (tmp_path / "gpu-GPU-1.memory").write_text('{"12')
    done = threading.Event()
    threading.Thread(target=lambda: (share.acquire(5000), done.set())).start()
    assert done.wait(5)


def test_who_has_neighbours_waits_until_as_much_is_free_as_it_asks_for(tmp_path: Path) -> None:
    """They may fill more than their shares."""
    other, may_end = start(tmp_path, 100)
    free = [200]

    def leave(text: str) -> None:
        free[0] = 700

    share = MemoryShare(tmp_path, "GPU-1", 1000, leave, lambda: free[0])
    assert share.acquire(700) > 0 and free == [700]
    free[0] = 0
    may_end.set()
    other.join(30)
    assert share.acquire(700) < 0.4  # alone
    share.release()
