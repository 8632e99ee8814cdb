"""Slurm through submitit: its local executor, its debug executor, and the scripts for sbatch.

A real slurmctld with a real slurmd is tried by tools/check_slurm.py.
"""

from pathlib import Path

import pytest

from kmem.engines.executor import Began, Ended, Job, Joined, Said, Wanted
from kmem.engines.slurm_crew import SlurmCrew, SlurmExecutor
from kmem.errors import ExecutorError
from kmem.testing import check_crew

submitit = pytest.importorskip("submitit")


@pytest.mark.slow
def test_the_crew_of_slurm_keeps_the_contract_on_submitits_local_executor(tmp_path: Path) -> None:
    check_crew(SlurmExecutor(), Wanted(0, 2, address="local", directory=tmp_path))


def test_a_job_goes_through_submitits_debug_executor(tmp_path: Path) -> None:
    with SlurmCrew(Wanted(0, 1, address="debug", directory=tmp_path)) as crew:
        (joined,) = crew.events(0)
        assert isinstance(joined, Joined)
        job = Job(("python", "-c", "print('hello')"), {}, {})
        crew.start(joined.worker, "one", job, timeout_s=60)
        found = crew.events(10)
    assert [type(event) for event in found] == [Began, Said, Ended]
    assert found[1] == Said("one", "stdout", "hello") and found[2].result.exit_code == 0


class Sbatch:
    """In the place of Slurm's command: keeps the script, and has no cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.scripts = tmp_path / "scripts"
        self.scripts.mkdir()
        bin_directory = tmp_path / "bin"
        bin_directory.mkdir()
        for name, text in (
            ("sbatch", f"cat $1 > {self.scripts}/$$; echo Submitted batch job 7"),
            ("squeue", "true"),
            ("sacct", "true"),
            ("scancel", f"echo $@ >> {tmp_path}/cancelled"),
            ("srun", "true"),
        ):
            command = bin_directory / name
            command.write_text(f"#!/bin/sh\n{text}\n")
            command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_directory}:/usr/bin:/bin")


def test_the_jobs_of_a_moment_are_one_array_with_limit_gpu_and_the_users_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = Sbatch(monkeypatch, tmp_path)
    address = "partition=gpu,account=ml,cpus_per_task=8,reservation=night"
    crew = SlurmCrew(Wanted(4, jobs=2, address=address, directory=tmp_path / "crew"))
    (joined,) = crew.events(0)
    assert joined.worker.at_once == 1000
    for number in range(3):
        job = Job(("python", "-c", "pass"), {}, {})
        crew.start(joined.worker, f"t{number}", job, timeout_s=600)
    assert crew.events(0) == []
    crew.close()
    (script,) = sbatch.scripts.iterdir()
    asked = {line.split()[1] for line in script.read_text().splitlines() if "#SBATCH" in line}
    assert {
        "--array=0-2%3",
        "--partition=gpu",
        "--account=ml",
        "--cpus-per-task=8",
        "--reservation=night",
        "--gpus-per-node=1",
        "--time=16",
        "--job-name=kmem",
    } <= asked
    assert (tmp_path / "cancelled").read_text().split() == ["7_0", "7_1", "7_2"]


def test_what_slurm_cannot_know_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="how many jobs may run at once with --gpus"):
        SlurmExecutor().hire(Wanted(directory=tmp_path), lambda text: None)
    with pytest.raises(ExecutorError, match="'gpu' is no option of sbatch"):
        SlurmCrew(Wanted(1, address="gpu", directory=tmp_path))
