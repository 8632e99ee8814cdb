"""What a process that imports a candidate cannot do, tried from inside it."""

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.host.confinement import landlock_version
from kmem.host.wall_trial import try_walls
from kmem.measure.pool.process import WorkerFailure, WorkerProcess
from kmem.measure.worker.commands import Load
from kmem.problem.traced import untraced_problem
from kmem.profile.compile.pool import compile_kernels
from kmem.records import Contract, Kernel, Problem

pytestmark = [
    pytest.mark.usefixtures("cold_processes"),
    pytest.mark.skipif(landlock_version() < 6, reason="this kernel has no Landlock of version 6"),
]
ROOT = Path(__file__).parent.parent
PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8, 8)]
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    place = tmp_path_factory.mktemp("worker")
    made = WorkerProcess(place / "own", "cpu", cache_dir=place / "cache").wait_ready()
    yield made
    made.kill()


def inside(worker: WorkerProcess, expression: str) -> str:
    """What an expression is inside a worker, or the type of what it raises."""
    source = f"""
import ctypes, os, socket, subprocess, sys
try:
    found = repr({expression})
except BaseException as ex:
    found = type(ex).__name__
raise ValueError(found)
"""
    command = Load("probe", str(worker.directory / "probe.py"), source, "M", [], [], training=True)
    with pytest.raises(WorkerFailure) as caught:
        worker.request(command, timeout_s=20)
    return caught.value.message


def test_every_wall_holds_here() -> None:
    walls = try_walls()
    assert len(walls) >= 6
    assert [name for name, holds in walls.items() if not holds] == []


@pytest.mark.parametrize(
    "attempt",
    [
        f"open({str(ROOT / 'kmem' / 'records' / '__init__.py')!r}).read()",
        f"open({str(ROOT / 'kmem' / 'measure' / 'judge.py')!r}, 'a')",
        f"os.listdir({str(ROOT / 'tests')!r})",
        "open('/etc/shadow').read()",
        "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "os.listdir(f'/proc/{os.getppid()}/fd')",
        "os.kill(os.getppid(), 0)",
        "os.killpg(os.getppid(), 0)",
        "os.setsid()",
        "os.setpgid(0, 0)",
        "os.pidfd_open(os.getppid()) and __import__('signal').pidfd_send_signal("
        "os.pidfd_open(os.getppid()), 0)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "__import__('resource').prlimit(os.getppid(), __import__('resource').RLIMIT_CPU, (1, 1))",
        "open('/tmp/left_by_a_candidate', 'w')",
        "os.listdir('/dev/shm')",
        "os.symlink('/etc', '/usr/local/etc2')",
    ],
)
def test_a_worker_may_not(worker: WorkerProcess, attempt: str) -> None:
    assert inside(worker, attempt) == "PermissionError"


@pytest.mark.parametrize("name", ["process_vm_readv", "ptrace", "unshare", "io_uring_setup"])
def test_a_system_call_that_reaches_out_is_refused(worker: WorkerProcess, name: str) -> None:
    number = {"process_vm_readv": 310, "ptrace": 101, "unshare": 272, "io_uring_setup": 425}[name]
    call = f"ctypes.CDLL(None, use_errno=True).syscall({number}, 0, 0, 0, 0, 0, 0)"
    assert inside(worker, f"({call}, ctypes.get_errno())") == "(-1, 1)"


def test_a_worker_may_do_what_kernels_need(worker: WorkerProcess) -> None:
    assert inside(worker, "open('/proc/self/status').read().count('NoNewPrivs:\\t1')") == "1"
    assert inside(worker, "len(open('/proc/cpuinfo').read()) > 0") == "True"
    assert inside(worker, "open(os.environ['TMPDIR'] + '/x', 'w').write('x')") == "1"
    assert inside(worker, "os.urandom(1) and open('/dev/null', 'w').write('x')") == "1"
    assert inside(
        worker, "subprocess.run(['cc', '--version'], capture_output=True).returncode"
    ) in (
        "0",
        "FileNotFoundError",
    )
    assert ast.literal_eval(inside(worker, "os.getpid()")) == worker.pid


def test_what_a_candidate_starts_ends_with_its_worker(tmp_path: Path) -> None:
    victim = WorkerProcess(tmp_path / "own", "cpu", cache_dir=tmp_path / "cache").wait_ready()
    source = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    command = Load("probe", str(tmp_path / "probe.py"), source, "M", [], [], training=True)
    with pytest.raises(Exception, match="a process that outlives the call"):
        victim.request(command, timeout_s=20)
    assert not victim.alive
    ends_at = time.monotonic() + 10.0  # a killed process is there until the kernel has seen to it
    while left := _processes_in(tmp_path / "own"):
        assert time.monotonic() < ends_at, left
        time.sleep(0.01)


def _processes_in(directory: Path) -> list[str]:
    return [
        pid
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if _reads(f"/proc/{pid}/cwd") == str(directory)
    ]


SPY = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            {attempt}
        except BaseException as ex:
            raise ValueError(f"it raised {{type(ex).__name__}}")
        raise ValueError("it went through")
"""


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "attempt",
    [
        f"open({str(ROOT / 'kmem' / 'measure' / 'judge.py')!r}, 'a')",
        f"open({str(ROOT / 'kmem' / 'measure' / 'judge.py')!r}).read()",
        "import os; os.kill(os.getppid(), 0)",
        "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    ],
)
def test_the_compile_process_is_confined_as_a_worker_is(attempt: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROBLEM)
    problem = Problem("p", str(tmp_path / "p.py"), PROBLEM)
    traced = untraced_problem(problem, Contract(), named_target("h200"))
    kernel = Kernel(SPY.format(attempt=attempt))
    (report,) = compile_kernels(
        [kernel], traced, processes=1, cache_dir=tmp_path / "cache", timeout_s=60
    )
    assert "it raised PermissionError" in report.log


def _reads(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None
