"""Workers are forked from a process that has seen no candidate, and end as processes do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmem.measure.pool.process import WorkerLost
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.worker.commands import Detach
from kmem.records import Status

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold_processes")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    place = tmp_path_factory.mktemp("pool")
    made = WorkerPool(place, "cpu", place / "cache", keep_spare=False)
    yield made
    made.close()


def test_a_fork_ends_with_its_signal_and_is_gone(pool: WorkerPool) -> None:
    worker = pool.take()
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerLost, match="was killed by SIGTERM") as caught:
        worker.request(Detach("nothing"), timeout_s=10)
    assert caught.value.status is Status.CRASHED
    assert not worker.alive
    assert not is_running(worker.pid)
    assert pool.take().alive


def test_a_worker_that_is_ended_before_it_is_up_does_not_come_up(pool: WorkerPool) -> None:
    worker = pool.start()
    pool.discard(worker)
    assert not is_running(worker.pid)


def test_workers_that_nobody_waits_for_are_gone_at_the_next_start(pool: WorkerPool) -> None:
    worker = pool.take()
    pool.discard(worker, wait=False)
    wait_until_gone(worker.pid)
    pool.discard(pool.take())
    assert not pool._ending


def test_a_template_that_died_takes_its_forks_along_and_is_made_anew(pool: WorkerPool) -> None:
    worker, template = pool.take(), pool._template
    os.kill(template._process.pid, signal.SIGKILL)
    wait_until_gone(worker.pid)
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):
        worker.request(Detach("nothing"), timeout_s=10)
    pool.discard(worker)
    assert pool.take().alive
    assert pool._template is not template


_JUDGE = """
import sys, time
from pathlib import Path
from kmem.measure.pool.workers import WorkerPool
pool = WorkerPool(Path(sys.argv[1]), "cpu", Path(sys.argv[1]) / "cache", keep_spare=False)
worker = pool.take()
print(worker.pid, pool._template._process.pid, flush=True)
time.sleep(60)
"""


def test_no_worker_outlives_a_judge_that_is_killed(tmp_path: Path) -> None:
    judge = subprocess.Popen(
        [sys.executable, "-c", _JUDGE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in judge.stdout.readline().split()]
    judge.kill()
    judge.communicate()
    for pid in pids:
        wait_until_gone(pid)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and no zombie of one."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"{pid} lives on"
        time.sleep(0.05)
