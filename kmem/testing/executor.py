"""The suite of `kmem.interfaces.Executor`.

Covered: files in and out, both streams, the exit code, fresh directories, the environment, jobs
that fail, crash or hang, and the children of a job that was killed. Not covered: the network, and
what a job does to the GPU.
"""

import json
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kmem.interfaces import Executor, Job, JobResult
from kmem.testing.wording import check_name

#: No job of the suite but the hanging one should come near this limit.
_AMPLE_S = 120.0
#: The name of a variable that looks like a credential, and must not reach a job unasked.
_SECRET = "KMEM_CONFORMANCE_API_KEY"

_LOOK_AROUND = """\
import json, os, pathlib, sys
found = {
    "given": pathlib.Path("data/input.txt").read_text(),
    "left": os.path.exists("left"),
    "secret": os.environ.get("KMEM_CONFORMANCE_API_KEY"),
    "setting": os.environ.get("KMEM_CONFORMANCE_SETTING"),
}
open("left", "w").close()
print(json.dumps(found))
print("to stderr", file=sys.stderr)
pathlib.Path("out/deep").mkdir(parents=True)
pathlib.Path("out/deep/result.bin").write_bytes(bytes([0, 1, 255]))
"""
_HANG = """\
import os, subprocess, sys, tempfile, time
trace = os.path.join(tempfile.gettempdir(), {trace!r})
child = f"import time; time.sleep({child_s}); open({{trace!r}}, 'w').close()"
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""
_LOOK_FOR_TRACE = """\
import os, tempfile, time
time.sleep({wait_s})
print(os.path.exists(os.path.join(tempfile.gettempdir(), {trace!r})))
"""


def check_executor(executor: Executor, *, limit_s: float = 2.0) -> None:
    """Hold an executor to its contract with six small Python jobs.

    Args:
        limit_s: the time limit of the job that hangs. Longer than starting Python takes there, or
            it is not seen whether the job's children are killed.
    Raises:
        AssertionError: naming what the contract says and the executor does otherwise.
    """
    check_name(executor.name)
    for _ in range(2):  # the second finds nothing that the first left
        _check_surroundings(executor)
    failed = _run(executor, "raise SystemExit('it went wrong')")
    assert failed.exit_code == 1, f"a job that fails has exit code 1, not {failed.exit_code}"
    assert "it went wrong" in failed.stderr, f"a failure's stderr is kept, not {failed.stderr!r}"
    crashed = _run(executor, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert crashed.exit_code, f"a job that crashes has an exit code but 0, not {crashed.exit_code}"
    _check_hang(executor, limit_s)


def _check_surroundings(executor: Executor) -> None:
    """A job gets its files and variables and no others, and gives back what it leaves in out/."""
    with _environment_variable(_SECRET, "secret"):
        result = _run(executor, _LOOK_AROUND, {"KMEM_CONFORMANCE_SETTING": "given"})
    assert result.exit_code == 0, f"exit code {result.exit_code} of a good job: {result.stderr}"
    found = json.loads(result.stdout)
    assert found["given"] == "some text\n", f"a job's files lie in its directory: {found}"
    assert found["setting"] == "given", f"a job's environment reaches it: {found}"
    assert found["secret"] is None, "secrets of the environment must not reach a job"
    assert not found["left"], "every job has a fresh directory"
    assert "to stderr" in result.stderr, f"stderr is kept, not {result.stderr!r}"
    assert result.files == {"deep/result.bin": bytes([0, 1, 255])}, (
        f"files are what the job left under out/, named relative to it, not {result.files}"
    )


def _check_hang(executor: Executor, limit_s: float) -> None:
    """A job that hangs is killed at its limit, with its children."""
    trace = f"kmem-conformance-{uuid.uuid4().hex}"
    # a child that lives on leaves its trace after the limit, and before the next job looks
    hang = _HANG.format(child_s=limit_s + 1.0, trace=trace)
    hung = _run(executor, hang, limit_s=limit_s)
    assert hung.exit_code is None, (
        f"a job that is killed at its limit has no exit code, not {hung.exit_code}"
    )
    assert hung.seconds >= limit_s * 0.9, f"killed after {hung.seconds} s of {limit_s}"
    looked = _run(executor, _LOOK_FOR_TRACE.format(wait_s=limit_s + 1.0, trace=trace))
    assert looked.stdout.strip() == "False", "the children of a killed job must be killed too"


def _run(
    executor: Executor,
    code: str,
    environment: dict[str, str] | None = None,
    limit_s: float = _AMPLE_S,
) -> JobResult:
    files = {"job.py": code, "data/input.txt": "some text\n"}
    result = executor.run(Job(("python", "job.py"), files, environment or {}), timeout_s=limit_s)
    assert isinstance(result, JobResult), f"run() returns a JobResult, not {result!r}"
    assert math.isfinite(result.seconds) and result.seconds >= 0, (
        f"seconds are a duration, not {result.seconds}"
    )
    return result


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
