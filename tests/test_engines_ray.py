"""A real Ray cluster on this machine: what is killed costs what was in flight, and nothing else.

Ray is an extra (`pip install -e '.[ray]'`); without it these tests are skipped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_away import rows_of, silu
from test_executors import ends

from kmem.engines.executor import Began, Crew, Event, Wanted
from kmem.engines.ray_crew import RayExecutor
from kmem.engines.scheduler import Scheduler
from kmem.learning.ablation import Setup, Trial, run_seed
from kmem.learning.arms import Arm
from kmem.learning.elsewhere import seed_work
from kmem.learning.landscape import LandscapeDirectory
from kmem.memory.store import Memory
from kmem.records import RunState
from kmem.testing import check_crew

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

#: A directory of further landscapes (`kmem bench --record`) may be named; else the shipped ones.
LANDSCAPES = Path(
    os.environ.get(
        "KMEM_TEST_LANDSCAPES", Path(__file__).parent.parent / "db" / "evidence" / "landscapes"
    )
)
SETUP = Setup((Arm.OFF,), 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator["ray.cluster_utils.Cluster"]:
    """A cluster of three nodes, each of which can be killed; the first is this machine's own."""
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("KMEM_EMBEDDING_MODEL", "none")
    patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()
    patch.undo()


class Witness:
    """A crew that lets the test look at what happens before the scheduler hears of it."""

    def __init__(self, crew: Crew, look: Callable[[Event], None]) -> None:
        self._crew, self._look = crew, look
        self.start, self.cancel = crew.start, crew.cancel

    def events(self, timeout_s: float) -> list[Event]:
        found = self._crew.events(timeout_s)
        for event in found:
            self._look(event)
        return found


def test_a_crew_of_ray_keeps_the_contract(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    check_crew(RayExecutor(), Wanted(0, 1, address=cluster.address, directory=tmp_path))
    cluster.remove_node(node)


def test_killed_workers_actors_and_nodes_change_no_winner(cluster) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    landscapes = LandscapeDirectory(LANDSCAPES).read()
    names = [landscape.name for landscape in landscapes]
    batches = [names[start::5] for start in range(5)]
    killed: list[str] = []
    notes: list[str] = []

    def kill(event: Event) -> None:
        """Two actors are killed as they begin a job, then a node with all that is on it."""
        if not isinstance(event, Began) or len(killed) == 3:
            return
        actor = crew._actors[crew._workers[event.ticket]]
        pid = ray.get(actor.process.options(concurrency_group="control").remote())
        if len(killed) == 2:
            (node,) = [each for each in nodes if raylet_of(each) == parent_of(pid)]
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1)
            killed.append("a node")
            return
        os.kill(pid, signal.SIGKILL)
        killed.append("an actor")

    found: list = []
    with RayExecutor().hire(Wanted(0, 2, address=cluster.address), notes.append) as crew:
        scheduler = Scheduler(Witness(crew, kill), notes.append)
        for batch in batches:
            scheduler.add(seed_work(LANDSCAPES, batch, SETUP, 0, found))
        scheduler.run()
    assert killed == ["an actor", "an actor", "a node"]
    assert len(notes) == 3 and all("is lost" in note for note in notes), notes
    assert len(found) == len(batches)  # nothing is delivered twice
    trials = [trial for seed in found for trial in seed.trials()]
    here = run_seed(landscapes, SETUP, 0)
    assert by_name(trials) == by_name(here) and len(trials) == len(names)


def raylet_of(node: "ray._private.node.Node") -> int:
    return node.all_processes["raylet"][0].process.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def by_name(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: trial.problem)


def bench_command(cluster, home: Path, problem: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "kmem", "bench", str(problem), "--target", "h200"),
        *("--rounds", "0", "--candidates", "3", "--baselines", "eager", "--resume", "out"),
        *("--executor", "ray", "--address", cluster.address, "--json"),
    ]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_leaves_no_actor_and_the_next_goes_on(
    cluster, tmp_path: Path, how: int
) -> None:
    node = cluster.add_node(num_cpus=1)
    problem = silu(tmp_path)
    environment = {**os.environ, "KMEM_DB": str(tmp_path / "kmem.db")}
    command = bench_command(cluster, tmp_path, Path(problem.path))
    driver = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began = json.dumps([])
    for line in driver.stderr:
        began = line
        if "judging" in line:  # some candidates were refused or judged by now
            break
    jobs = away_processes()
    assert jobs, began
    driver.send_signal(how)
    driver.communicate(timeout=60)
    left = [words for pid, words in jobs.items() if not ends(str(pid), within_s=90)]
    assert left == []
    deadline = time.monotonic() + 30
    while ray_actors(cluster):
        assert time.monotonic() < deadline, ray_actors(cluster)
        time.sleep(0.2)
    with Memory(tmp_path / "kmem.db") as memory:
        before = [row["kernel"] for row in rows_of(memory, "attempts")]

    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 0, again.stderr
    with Memory(tmp_path / "kmem.db") as memory:
        (entry,) = memory.run_entries.all()  # the same run
        kernels = [row["kernel"] for row in rows_of(memory, "attempts")]
        assert kernels[: len(before)] == before and len(kernels) == len(set(kernels))
        assert entry.state is RunState.FINISHED
    cluster.remove_node(node)


def away_processes() -> dict[int, str]:
    """The processes of runs on workers, and what they have started."""
    found = {}
    for place in Path("/proc").iterdir():
        try:
            if (
                place.name.isdigit()
                and b"kmem-job-" in (place / "cwd").resolve().as_posix().encode()
            ):
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(place.name)] = words
        except OSError:
            continue
    return found


def ray_actors(cluster) -> list[str]:
    """The actors that live, as the cluster says."""
    code = (
        "import logging, ray, sys\n"
        f"ray.init({cluster.address!r}, log_to_driver=False, logging_level=logging.ERROR)\n"
        "from ray._private.state import actors\n"
        "print([a['ActorID'] for a in actors().values() if a['State'] == 'ALIVE'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout.strip().splitlines()[-1].replace("'", '"'))
