"""The process that workers are forked from, as the judge's side handles it.

    with_torch = WorkerTemplate(directory, "cpu")
    process = with_torch.fork(place, environment, channel, log)  # as from subprocess.Popen

What runs there is worker/template.py. It sees no candidate, so a fork is as fresh as a new process
and comes up in a twentieth of the time.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kmem.errors import ExecutorError
from kmem.measure.worker.channel import Channel, ChannelClosed, ChannelTimeout

_KMEM = Path(__file__).parents[2]
#: Files that make up a worker, copied into its directory: it must run without kmem.
WORKER_FILES = (
    *sorted(
        path for path in (_KMEM / "measure" / "worker").glob("*.py") if path.name != "__init__.py"
    ),
    _KMEM / "host" / "lease.py",
    _KMEM / "host" / "project_modules.py",
    _KMEM / "host" / "checked_text.py",
    _KMEM / "host" / "confinement.py",
    _KMEM / "host" / "imitated_device.py",
    _KMEM / "host" / "kernel_identity.py",
    _KMEM / "host" / "own_operators.py",
)
#: Variables a worker keeps: where programs, libraries, compilers and the GPU are. Everything else
#: (keys, tokens, proxies, home) is dropped.
KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CC",
    "TRITON_PTXAS_PATH",
    "OMP_NUM_THREADS",
)
START_TIMEOUT_S = 120.0
#: For a fork that was killed to be gone: a GPU's driver may take its time.
_END_TIMEOUT_S = 60.0


def kept_environment(directory: Path, device: str) -> dict[str, str]:
    """What of the environment a worker in this directory gets, with places of its own."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(directory), "TMPDIR": str(directory / "tmp")}
    return {**kept, **own, "TRITON_INTERPRET": "1"} if device == "cpu" else {**kept, **own}


def copy_files(directory: Path) -> Path:
    """Copy what a worker is made of; the directory that it is in. Raises OSError."""
    host = directory / "host"
    for place in (host, directory / "tmp"):
        place.mkdir(parents=True, exist_ok=True)
    for file in WORKER_FILES:
        shutil.copyfile(file, host / file.name)
    return host


def start_script(
    script: Path,
    channel: socket.socket,
    log: Path,
    device: str,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    """Start a file of a worker as a process, with its end of a channel. Raises OSError.

    Args:
        log: where it writes; its working directory is the log's.
        variables: of the environment, beside those that every worker keeps.
    """
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-E", "-s", "-B", str(script), str(channel.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=log.parent,
            env={**kept_environment(log.parent, device), **(variables or {})},
            pass_fds=(channel.fileno(),),
            start_new_session=True,
        )


@contextmanager
def starting_in(directory: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The judge's end of a channel and that of a process which is started meanwhile.

    Afterwards only the judge's is open. Raises ExecutorError: if the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        yield ours, theirs
    except OSError as ex:
        ours.close()
        raise ExecutorError(
            f"Cannot start a worker in {directory}: {ex}; free space there or choose another "
            f"with --out"
        ) from ex
    finally:
        theirs.close()


class WorkerTemplate:
    """One process with everything imported. May be asked by several threads."""

    def __init__(self, directory: Path, device: str) -> None:
        """Start the process; nobody waits for it before its first fork is asked something.

        Args:
            directory: its own, with a copy of what workers are made of.

        Raises:
            ExecutorError: if the directory cannot be written or Python cannot be started.
        """
        self.directory = directory
        with starting_in(directory) as (ours, theirs):
            script = copy_files(directory) / "template.py"
            self._process = start_script(script, theirs, directory / "log.txt", device)
        self._channel = Channel(ours)
        self._asking = threading.RLock()
        self._coming: deque[ForkedProcess] = deque()  # forks whose ids are still to be told

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(
        self, directory: Path, environment: dict[str, str], channel: socket.socket, log: int
    ) -> "ForkedProcess":
        """A new worker, which is still coming up.

        Args:
            channel: the worker's end.
            log: the open file that it writes to.
        """
        made = ForkedProcess(self)
        demand = {"directory": str(directory), "environment": environment}
        with self._asking:
            try:
                self._channel.send(demand, (channel.fileno(), log))
                self._coming.append(made)
            except ChannelClosed:
                made.was_never()
        return made

    def learn_ids(self) -> None:
        """Wait until every fork that was asked for has been made."""
        with self._asking:
            while self._coming:
                answer = self._answer(START_TIMEOUT_S)
                fork = self._coming.popleft()
                if answer is None:
                    fork.was_never()
                else:
                    fork.pid = int(answer["pid"])

    def wait(self, pid: int, seconds: float) -> int | None:
        """How a fork ended, as subprocess has it; None if it still runs after so many seconds."""
        with self._asking:
            self.learn_ids()
            try:
                self._channel.send({"wait": pid, "seconds": seconds})
            except ChannelClosed:
                return GONE
            answer = self._answer(seconds + START_TIMEOUT_S)
        return GONE if answer is None else answer["status"]

    def _answer(self, timeout_s: float) -> dict | None:
        try:
            return self._channel.receive(timeout_s)
        except (ChannelClosed, ChannelTimeout):
            self.close()  # and with it its forks
            return None

    def close(self) -> None:
        """End the process, and with it its forks."""
        self._process.kill()
        self._process.wait()
        self._channel.close()


#: The code of a fork whose template is gone: they die together.
GONE = -9


class ForkedProcess:
    """A fork of a template, with what of subprocess.Popen a worker's process needs."""

    def __init__(self, template: WorkerTemplate) -> None:
        self._template = template
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was never made. It is nobody else's until somebody waited."""
        if self._pid is None:
            self._template.learn_ids()
        assert self._pid is not None, "learn_ids has told"
        return self._pid

    @pid.setter
    def pid(self, value: int) -> None:
        self._pid = value

    def was_never(self) -> None:
        """The template is gone."""
        self._pid, self._code = 0, GONE

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self.pid and self._code is None:
            self._code = self._template.wait(self.pid, 0.0)
        return self._code

    def wait(self, timeout: float = _END_TIMEOUT_S) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.pid and self._code is None:
            self._code = self._template.wait(self.pid, timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return self._code
