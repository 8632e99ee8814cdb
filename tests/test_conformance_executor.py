"""The suite of `Executor`: the local executor passes it, and each way to break it is named."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kmem.engines.local import LocalExecutor
from kmem.interfaces import Executor, Job, JobResult
from kmem.testing import check_executor


@pytest.mark.slow  # sleeps as long as a job that hangs is given
def test_the_local_executor_keeps_the_contract() -> None:
    check_executor(LocalExecutor())


class Changed(Executor):
    """The local executor with one fault."""

    name = "changed"

    def __init__(self, change: Callable[[JobResult], JobResult]) -> None:
        self._change = change

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        return self._change(LocalExecutor().run(job, timeout_s=timeout_s))


class Named(Changed):
    name = "two words"


class GivesSecrets(Executor):
    name = "gives-secrets"

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        return LocalExecutor().run(
            replace(job, environment={**os.environ, **job.environment}), timeout_s=timeout_s
        )


class OneDirectory(Executor):
    """Runs every job where the last one ran, and kills nothing but the job itself."""

    name = "one-directory"

    def __init__(self, place: Path, *, sweeps: bool) -> None:
        self._place, self._sweeps = place, sweeps

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        if self._sweeps:
            with TemporaryDirectory() as place:
                return self._run_in(Path(place), job, timeout_s)
        return self._run_in(self._place, job, timeout_s)

    def _run_in(self, place: Path, job: Job, timeout_s: float) -> JobResult:
        for name, text in job.files.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text)
        (place / "out").mkdir(exist_ok=True)
        argv = [sys.executable if word == "python" else word for word in job.argv]
        environment = {"PATH": os.environ["PATH"], **job.environment}
        process = subprocess.Popen(
            argv, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            exit_code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
            return JobResult(None, "", "", {}, timeout_s)
        stdout, stderr = (pipe.read().decode() for pipe in (process.stdout, process.stderr))
        out = place / "out"
        files = {
            str(file.relative_to(out)): file.read_bytes()
            for file in out.rglob("*")
            if file.is_file()
        }
        (place / "out" / "deep" / "result.bin").unlink(missing_ok=True)
        if (place / "out" / "deep").exists():
            (place / "out" / "deep").rmdir()
        return JobResult(exit_code, stdout, stderr, files, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: Named(lambda result: result), "a name is one word"),
        (lambda place: GivesSecrets(), "secrets of the environment must not reach a job"),
        (lambda place: OneDirectory(place, sweeps=False), "every job has a fresh directory"),
        (
            lambda place: Changed(lambda result: replace(result, files={})),
            "files are what the job left under out/",
        ),
        (lambda place: Changed(lambda result: replace(result, stderr="")), "stderr is kept"),
        (
            lambda place: Changed(lambda result: replace(result, exit_code=0)),
            "a job that fails has exit code 1, not 0",
        ),
        (
            lambda place: Changed(lambda result: replace(result, seconds=float("nan"))),
            "seconds are a duration",
        ),
    ],
)
def test_an_executor_that_breaks_the_contract_is_told_how(
    make: Callable[[Path], Executor], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_executor(make(tmp_path))


@pytest.mark.slow  # sleeps as long as a job that hangs is given
def test_an_executor_that_leaves_children_behind_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="children of a killed job must be killed too"):
        check_executor(OneDirectory(tmp_path, sweeps=True))
