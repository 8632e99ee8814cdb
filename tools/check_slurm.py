"""A real Slurm on this machine, and kmem's crew held to its contract on it.

    apt-get install slurm-wlm munge
    python tools/check_slurm.py

Starts munged, slurmctld and slurmd in a directory of their own, as the user who runs this (root),
with one node: this machine. A crew of `SlurmExecutor` then passes the suite of `kmem.testing` and
runs an array, and a job is cancelled while it runs. Everything is ended at the end. No GPU is
needed, and none is offered.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kmem.engines.executor import Ended, Event, Job, Joined, Wanted
from kmem.engines.slurm_crew import SlurmExecutor
from kmem.testing import check_crew

_CONFIGURATION = """\
ClusterName=kmem
SlurmctldHost={host}
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={other_port}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


@contextmanager
def slurm(place: Path) -> Iterator[None]:
    """The three daemons, with SLURM_CONF set for this process."""
    for name in ("state", "spool"):
        (place / name).mkdir()
    host = socket.gethostname().split(".")[0]
    ports = [_free_port(), _free_port()]
    configuration = place / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            host=host, place=place, port=ports[0], other_port=ports[1], cores=os.cpu_count()
        )
    )
    (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    os.environ["SLURM_CONF"] = str(configuration)
    daemons: list[subprocess.Popen[bytes]] = []
    commands = (
        [
            *("munged", "--foreground", "--force", f"--socket={place}/munge.socket"),
            *(f"--key-file={key}", f"--pid-file={place}/munge.pid"),
            *(f"--log-file={place}/munge.log", f"--seed-file={place}/munge.seed"),
        ],
        ["slurmctld", "-D", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration), "-N", host],
    )
    try:
        for command in commands:
            log = open(place / f"{command[0]}.out", "wb")  # noqa: SIM115 - as long as the daemon
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
            time.sleep(1.0)
        _wait_for_node(place)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _wait_for_node(place: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
        if done.stdout.split() in (["idle"], ["mixed"], ["allocated"]):
            return
        if time.monotonic() > deadline:
            logs = "\n".join(log.read_text(errors="replace")[-1500:] for log in place.glob("*.log"))
            raise SystemExit(f"Slurm does not come up: {done.stdout}{done.stderr}\n{logs}")
        time.sleep(0.5)


def check(directory: Path) -> None:
    """The contract of a crew, an array of five, and a job that waits in the queue cancelled."""
    executor = SlurmExecutor()
    check_crew(executor, Wanted(0, 2, directory=directory / "contract"), limit_s=3.0)
    print("the crew keeps the contract")
    with executor.hire(Wanted(0, 2, directory=directory / "array"), print) as crew:
        (joined,) = crew.events(0)
        assert isinstance(joined, Joined)
        for number in range(5):
            job = Job(("python", "-c", f"print({number})"), {}, {})
            crew.start(joined.worker, f"t{number}", job, timeout_s=120)
        crew.start(joined.worker, "never", Job(("sleep", "600"), {}, {}), timeout_s=900)
        ended: list[Event] = []
        while len(ended) < 5:
            ended += [event for event in crew.events(1.0) if isinstance(event, Ended)]
        found = sorted(event.result.stdout for event in ended if isinstance(event, Ended))
        assert found == [f"{number}\n" for number in range(5)], found
        queue = subprocess.run(
            ["squeue", "-h", "-o", "%i %T"], capture_output=True, text=True, check=True
        )
        assert queue.stdout.strip(), "the last one is still there"
    deadline = time.monotonic() + 60
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < deadline, "the end of a crew empties the queue"
        time.sleep(0.5)
    scripts = list((directory / "array").rglob("*.sh"))
    print(f"an array of six ran, and nothing is left in the queue; script: {scripts[0]}")
    for line in scripts[0].read_text().splitlines():
        if line.startswith("#SBATCH"):
            print(f"    {line}")


def main() -> None:
    """Start Slurm, check, end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmem-slurm-") as place, slurm(Path(place)):
        version = subprocess.run(["sbatch", "--version"], capture_output=True, text=True)
        print(version.stdout.strip(), "with python", sys.version.split()[0])
        check(Path(place))


if __name__ == "__main__":
    main()
