"""One pool of cores for several runs: who holds one, who waits, and whose minutes that costs."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kmem.bench.sharing import share_cores
from kmem.host.cores import POOL_VARIABLE, Cores, name_pool

_SOON_S, _LATEST_S = 0.3, 60.0


@pytest.fixture
def pool(tmp_path: Path) -> str:
    return name_pool(tmp_path / "cores", 1)


def start(work: object, *args: object) -> threading.Event:
    """An event for the end of some work in a thread."""
    ended = threading.Event()

    def run() -> None:
        work(*args)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


def use(cores: Cores) -> None:
    with cores.hold():
        pass


def test_a_neighbour_waits_for_a_core_and_its_own_time_stands(pool: str) -> None:
    ours, neighbour = Cores(pool), Cores(pool)
    with ours.hold():
        ended = start(use, neighbour)
        assert not ended.wait(_SOON_S)
    assert ended.wait(_LATEST_S)
    assert neighbour.waited_s > 0.8 * _SOON_S and ours.waited_s < 0.1
    before = neighbour.now()
    assert neighbour.now() - before < 1.0


def test_a_core_is_free_again_when_its_holder_is_killed(pool: str) -> None:
    code = (
        "import sys, time\nfrom kmem.host.cores import Cores\n"
        "with Cores(sys.argv[1]).hold():\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, pool], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        ended = start(use, Cores(pool))
        assert not ended.wait(_SOON_S)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert ended.wait(_LATEST_S)


def test_whoever_holds_the_only_core_lends_it_to_the_jobs_that_it_waits_for(pool: str) -> None:
    cores = Cores(pool)

    def job() -> None:
        with cores.job():
            pass

    def wait_for_job() -> None:
        with cores.hold(), cores.hold():  # nested, it is the same core
            ended = start(job)
            with cores.lent():
                assert ended.wait(_LATEST_S)
            assert not start(use, Cores(pool)).wait(_SOON_S)  # it is held again

    assert start(wait_for_job).wait(_LATEST_S)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_jobs_that_wait_for_neighbours_count_only_while_somebody_waits_for_them(
    pool: str, is_awaited: bool
) -> None:
    neighbour, cores = Cores(pool), Cores(pool)

    def job() -> None:
        with cores.job():
            pass

    with neighbour.hold():
        ended = start(job)
        if is_awaited:
            with cores.lent():
                ended.wait(_SOON_S)
        else:
            ended.wait(_SOON_S)
        waited_s = cores.waited_s
    assert ended.wait(_LATEST_S)
    assert waited_s > 0.8 * _SOON_S if is_awaited else waited_s == 0.0


def test_jobs_that_wait_go_ahead_when_all_is_ended(pool: str) -> None:
    neighbour, cores = Cores(pool), Cores(pool)

    def job() -> None:
        with cores.job():
            pass

    with neighbour.hold():
        ended = start(job)
        cores.end()
        assert ended.wait(_LATEST_S)


def test_spare_cores_are_those_that_nobody_holds_or_waits_for(tmp_path: Path) -> None:
    pool = name_pool(tmp_path / "cores", 3)
    ours, neighbour = Cores(pool), Cores(pool)
    with ours.hold():
        with ours.spare(1) as one, neighbour.spare(5) as rest:
            assert (one, rest) == (1, 1)
            with neighbour.spare(5) as none:
                assert none == 0
            ended = start(use, neighbour)
            assert not ended.wait(_SOON_S), "they are held"
        assert ended.wait(_LATEST_S)
        with ours.hold(), open(tmp_path / "cores" / "gate.lock", "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)  # as by one that waits
            with ours.spare(5) as none:
                assert none == 0
    with Cores("").spare(5) as without_a_pool:
        assert without_a_pool == 5


def test_without_a_pool_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POOL_VARIABLE, raising=False)
    ours, others = Cores(), Cores()
    with ours.hold(), ours.job(), others.hold(), others.lent():
        assert ours.waited_s == others.waited_s == 0.0


@pytest.mark.parametrize(
    ("gpus", "jobs", "count"), [(0, 6, 16), (2, 6, 8), (1, 3, 13), (1, 1, None)]
)
def test_the_runs_of_a_bench_share_one_pool(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    jobs: int,
    count: int | None,
) -> None:
    """Beside a GPU each run keeps a core for the process that drives it, as far as there are."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.delenv(POOL_VARIABLE, raising=False)
    named = share_cores(tmp_path, gpus, jobs).environment.get(POOL_VARIABLE)
    assert named == (None if count is None else f"{count}:{tmp_path / 'cores'}")
