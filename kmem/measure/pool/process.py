"""One worker process: started, questioned, killed, and what the machine lets be taken away from it.

A `WorkerProcess` is one interpreter in a process group of its own with a scrubbed environment and
its own directory. Whatever happens to the process (an exit, a crash, silence beyond a time limit,
bytes that are no answer) is a `WorkerLost` with a `Status`; whatever a candidate's code raised is a
`WorkerFailure`. Neither is ever a verdict by itself: examiner.py makes verdicts of them.
"""

import logging
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.errors import RUN_AGAIN, ExecutorError
from kmem.host.confinement import Limits, Walls, hide_memory
from kmem.host.environment import own_cores
from kmem.measure.pool.template import (
    START_TIMEOUT_S,
    ForkedProcess,
    WorkerTemplate,
    copy_files,
    kept_environment,
    start_script,
    starting_in,
)
from kmem.measure.worker.channel import Channel, ChannelClosed, ChannelTimeout, ProtocolError
from kmem.measure.worker.commands import (
    Attach,
    Command,
    Detach,
    PrepareProfiler,
    encode_command,
)
from kmem.records import Status

if TYPE_CHECKING:  # it loads torch, and `kmem doctor` asks only for the isolation
    from kmem.measure.pool.arguments import SharedArguments

logger = logging.getLogger(__name__)

_KMEM = Path(__file__).parents[2]
#: Raised by compilers rather than by code. Source: triton.compiler.errors, triton.runtime.errors.
_BUILD_ERRORS = frozenset(
    {
        "CompilationError",
        "OutOfResources",
        "PTXASError",
        "UnsupportedLanguageConstruct",
        "SyntaxError",
    }
)
#: What says that the device is full where torch's allocator does not, of errors that leave the
#: context as it was. Source: cudaErrorMemoryAllocation, as torch and Triton write it.
_NO_MEMORY = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory")
#: For opening and letting go of shared arguments.
_ATTACH_TIMEOUT_S = 60.0


class WorkerLost(Exception):
    """The worker ended, fell silent, broke the channel or is no longer what it was."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class WorkerFailure(Exception):
    """A candidate's code raised something.

    `stage` is import, contract, construct, state_dict or forward; `bases` are the names of the
    type's base classes.
    """

    def __init__(self, answer: Mapping[str, object]) -> None:
        self.stage = str(answer["failed"])
        self.type = str(answer.get("type"))
        self.bases = tuple(str(base) for base in answer.get("bases", ()))
        self.message = str(answer.get("message"))
        self.traceback = str(answer.get("traceback"))
        super().__init__(f"{self.stage}: {self.type}: {self.message}")


def failure_status(failure: WorkerFailure) -> Status:
    """The status for something a candidate raised."""
    kinds = {failure.type, *failure.bases}
    if "OutOfMemoryError" in kinds or any(text in failure.message for text in _NO_MEMORY):
        return Status.OUT_OF_MEMORY
    if failure.type in ("SystemExit", "KeyboardInterrupt"):
        return Status.CRASHED
    if failure.stage in ("contract", "construct", "state_dict"):
        return Status.WRONG_CONTRACT
    if failure.stage == "import" or kinds & _BUILD_ERRORS:
        return Status.BUILD_FAILED
    return Status.CRASHED


class WorkerProcess:
    """One worker.

    Importing torch and reaching the GPU takes seconds: start several at once, then `wait_ready`
    each.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        *,
        cache_dir: Path,
        hostile: bool = True,
        reads: Sequence[str] = (),
        template: WorkerTemplate | None = None,
        profiles: bool = False,
    ) -> None:
        """Start the process.

        Args:
            hostile: the process will see candidates (see confinement.py).
            reads: files and directories that it may read beside its own.
            template: to fork it from, for the same device; else it is started anew.
            profiles: have the GPU's profiler ready from the start (`prepare_profiler`).

        Raises:
            ExecutorError: if the directory cannot be written or Python cannot be started.
        """
        if hostile:
            hide_memory()
        self.directory = directory
        self.hostile = hostile
        self.ready: Mapping[str, str] | None = None
        self._profiles = profiles
        self.attached: set[str] = set()  # names of lists of arguments this worker has been shown
        try:
            for place in (cache_dir / "triton", cache_dir / "inductor"):
                place.mkdir(parents=True, exist_ok=True)
        except OSError as ex:
            raise ExecutorError(
                f"Cannot make {place}: {ex.strerror}; free space there or choose another place "
                f"with KMEM_DB"
            ) from ex
        self._log_path = directory / "log.txt"
        with starting_in(directory) as (ours, theirs):
            self._process = self._start(device, cache_dir, theirs, template)
        self._channel = Channel(ours)
        self._nonce = secrets.token_hex(8)
        host = () if template is None else (str(template.directory / "host"),)
        walls = Walls(
            reads=(str(directory), *host, *reads),
            writes=(str(directory), str(cache_dir / "triton"), str(cache_dir / "inductor")),
            hidden=str(_KMEM),
            gpu=device != "cpu",
        )
        limits = Limits() if device == "cpu" else Limits(address_bytes=0)
        self._channel.send(
            {
                "device": device,
                "nonce": self._nonce,
                "walls": asdict(walls) if hostile else None,
                "limits": asdict(limits),
                "profiles": profiles,
            }
        )

    def _start(
        self,
        device: str,
        cache_dir: Path,
        channel: socket.socket,
        template: WorkerTemplate | None,
    ) -> subprocess.Popen | ForkedProcess:
        caches = {
            # shared with the precompile step, so that nothing is compiled twice
            "TRITON_CACHE_DIR": str(cache_dir / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / "inductor"),
        }
        if template is None:
            if (cores := own_cores()) is not None:  # else Inductor starts a process for each core
                caches["TORCHINDUCTOR_COMPILE_THREADS"] = str(cores)
            script = copy_files(self.directory) / "serve.py"
            return start_script(script, channel, self._log_path, device, caches)
        (self.directory / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {**kept_environment(self.directory, device), **caches}
        with open(self._log_path, "wb") as log:
            return template.fork(self.directory, environment, channel, log.fileno())

    def wait_ready(self) -> "WorkerProcess":
        """Wait until it answers.

        Raises ExecutorError: if the worker, which has seen no candidate yet, does not come up.
        """
        if self.ready is None:
            with self._starting():
                self.ready = self._answer(START_TIMEOUT_S)["ready"]
        return self

    def prepare_profiler(self) -> None:
        """Have the GPU's profiler initialise itself, unless it has, so that no check waits for it.

        Raises ExecutorError: as `wait_ready`.
        """
        if not self._profiles:
            with self._starting():
                self.request(PrepareProfiler(), timeout_s=START_TIMEOUT_S)
            self._profiles = True

    @contextmanager
    def _starting(self) -> Iterator[None]:
        try:
            yield
        except WorkerLost as ex:
            raise ExecutorError(
                f"A worker process does not start: {ex}; see {self._log_path}, or {RUN_AGAIN}"
            ) from ex

    def request(
        self, command: Command, *, timeout_s: float, files: Sequence[int] = ()
    ) -> Mapping[str, object]:
        """Ask and wait for the answer.

        Raises WorkerLost and WorkerFailure; after WorkerLost the process is dead. It is lost too
        when a candidate has replaced what it is observed with, or left something running.
        """
        self.wait_ready()
        self._nonce = secrets.token_hex(8)
        try:
            self._channel.send({**encode_command(command), "nonce": self._nonce}, files)
        except ChannelClosed:
            raise self._lost() from None
        answer = self._answer(timeout_s)
        if replaced := answer.pop("patched", None):
            self.kill()
            raise WorkerLost(
                Status.REFUSED_SOURCE,
                f"while it ran it replaced or left behind {', '.join(replaced[:5])}",
            )
        if "failed" in answer:
            raise WorkerFailure(answer)
        return answer

    def attach(self, shared: "SharedArguments") -> None:
        """Show a list of shared arguments to the worker, unless it has been shown already."""
        if shared.name not in self.attached:
            with shared.open_files() as files:
                command = Attach(shared.name, shared.describe())
                self.request(command, timeout_s=_ATTACH_TIMEOUT_S, files=files)
            self.attached.add(shared.name)

    def detach(self, shared: "SharedArguments") -> None:
        """Have the worker let go of shared arguments, and of device memory beyond its need."""
        self.request(Detach(shared.name), timeout_s=_ATTACH_TIMEOUT_S)
        self.attached.discard(shared.name)

    def _answer(self, timeout_s: float) -> Mapping[str, object]:
        try:
            answer = self._channel.receive(timeout_s)
        except ChannelTimeout:
            self.kill()
            raise WorkerLost(
                Status.TIMED_OUT, f"no answer within {timeout_s:.0f} s\n{self.log_tail()}"
            ) from None
        except ProtocolError as ex:
            self.kill()
            raise WorkerLost(Status.CRASHED, f"the worker's channel carried {ex}") from ex
        except ChannelClosed:
            raise self._lost() from None
        if answer.pop("nonce", None) != self._nonce:
            self.kill()
            raise WorkerLost(
                Status.CRASHED, "the worker's channel carried an answer to no question: forged"
            )
        return answer

    def _lost(self) -> WorkerLost:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return WorkerLost(Status.CRASHED, f"the worker {_ending(code)}\n{self.log_tail()}")

    @property
    def processor_s(self) -> float:
        """Processor time that the process has taken so far, in seconds; 0.0 once it is gone."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        # user and system time. Source: proc_pid_stat(5), fields 14 and 15
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def log_tail(self, count: int = 2000) -> str:
        """The end of what the worker and its candidates wrote to stdout and stderr.

        Never read as a message.
        """
        try:
            with open(self._log_path, "rb") as log:
                log.seek(max(0, os.path.getsize(self._log_path) - count))
                return log.read(count).decode(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        """End the process group and wait for it."""
        self.end()
        self.wait()

    def wait(self) -> None:
        """Wait for the end of a process that was ended."""
        self._process.wait()

    def end(self) -> None:
        """End the process group; `alive` says when it is gone."""
        pid = self._process.pid
        if pid:  # else it was never made
            # what it started may outlive it; a fork that has just been made leads no group yet
            for kill in (os.killpg, os.kill) if self.alive else (os.killpg,):
                try:
                    kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    logger.debug("worker %s had already ended", pid)
        self._channel.close()


def _ending(code: int | None) -> str:
    """How a process ended, by its exit code; None if it still runs."""
    if code is None:
        return "closed its channel"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
