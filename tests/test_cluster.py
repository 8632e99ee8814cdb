"""What `kmem doctor --executor` says of the machines of a cluster."""

import json

from click.testing import CliRunner

from kmem.cli.machine.doctor import doctor
from kmem.cli.making.bench import bench
from kmem.engines.executor import Executor, Job, JobResult, Node
from kmem.engines.nodes import differences
from kmem.engines.slurm_crew import read_sinfo
from kmem.plugins import Registry

H200 = "NVIDIA H200, driver 570.1, 1980 MHz, 700 W"
SLOW = "NVIDIA H200, driver 570.1, 1755 MHz, 700 W"
NODES = [
    Node("a", 64, 2, {"torch": "2.11", "gpu 0": H200, "gpu 1": H200}),
    Node("b", 64, 2, {"torch": "2.11", "gpu 0": H200, "gpu 1": SLOW}),
    Node("c", 32, 1, {"torch": "2.12", "gpu 0": H200}),
    Node("d", 32, 1, {}, "no answer: it sleeps"),
]


class Cluster(Executor):
    name = "cluster"

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        raise NotImplementedError

    def nodes(self, address: str = "auto") -> list[Node]:
        return NODES if address == "all" else []


def test_what_is_not_everywhere_as_on_most_machines_is_named() -> None:
    assert differences(NODES) == [
        "d: no answer: it sleeps",
        "c: torch 2.12, elsewhere 2.11",
        f"b: gpu 1 is {SLOW}, elsewhere {H200}",
    ]
    assert differences(NODES[:1]) == differences([]) == []


def test_doctor_shows_machines_and_differences() -> None:
    registry = Registry(executors={"cluster": Cluster()})
    words = ["--executor", "cluster", "--address", "all"]
    shown = CliRunner().invoke(doctor, words, obj=registry)
    assert shown.exit_code == 0 and "4 machines, 192 cores, 6 GPUs" in shown.stdout
    assert shown.stdout.count("DIFFERS") == 3 and H200 in shown.stdout
    printed = json.loads(CliRunner().invoke(doctor, [*words, "--json"], obj=registry).stdout)
    assert len(printed["nodes"]) == 4 and len(printed["differences"]) == 3


def test_slurms_nodes_are_read_with_their_gpus_and_what_is_wrong_with_them() -> None:
    answer = (
        "n1|64|gpu:h200:8(S:0-1)|idle\n"
        "n1|64|gpu:h200:8(S:0-1)|idle\n"  # in two partitions
        "n2|32|(null)|mixed\n"
        "n3|64|gpu:8|down*\n"
    )
    found = [(node.host, node.cores, node.gpus, node.trouble) for node in read_sinfo(answer)]
    assert found == [("n1", 64, 8, ""), ("n2", 32, 0, ""), ("n3", 64, 8, "Slurm says it is down*")]


def test_a_bench_that_could_not_share_says_so_before_it_begins() -> None:
    done = CliRunner().invoke(bench, ["problems", "--sync"], obj=Registry())
    assert done.exit_code == 2 and "there is none yet: kmem memory sync REMOTE" in done.stderr
