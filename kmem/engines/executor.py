"""What an executor is: the machines that jobs run on.

Two kinds of work go through this contract. Tasks need cores alone: their result follows from their
files, so that it does not matter where they run or how often. Measurements need a GPU: each GPU has
one worker, which holds no candidate's code but starts the process that does, and ends it.

Single jobs go through `Executor.run`. Many go to a `Crew` of workers, which `Executor.hire` opens;
scheduler.py decides which worker gets what.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from kmem.errors import ExecutorError


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run in a fresh directory, with the files to put there.

    The word `python` at the beginning of argv is the interpreter of the machine that runs it.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str]  # text by relative path
    environment: Mapping[str, str]  # further variables
    # further files by relative path, as they lie on the machine that asks; they are read when the
    # job is handed over, and a job that waits for its worker finds them there already
    inputs: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job."""

    exit_code: int | None  # None if the job was killed: at its time limit, or because it was told
    stdout: str
    stderr: str
    files: Mapping[str, bytes]  # what the job left under out/, by path relative to out/
    seconds: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """The crew that is wanted of an executor; None: as many workers as there is room for."""

    gpus: int | None = None  # workers that hold a GPU each
    cpus: int | None = None  # workers without one
    jobs: int = 1  # at once on each worker with a GPU
    address: str = "auto"  # of a cluster
    directory: Path = Path("crew")  # a directory of this crew's own, for what an engine keeps


@dataclass(frozen=True, slots=True)
class Worker:
    """A member of a crew."""

    id: str
    host: str = ""
    gpu: str = ""  # what CUDA_VISIBLE_DEVICES calls it there; empty: works without a GPU
    at_once: int = 1  # jobs that run side by side
    ahead: int = 0  # jobs more that it takes, so that their files are there when their turn comes

    @property
    def place(self) -> tuple[str, ...] | None:
        """Where figures were measured that only go on there: its card; () without a GPU.

        None where an engine says no host: it may choose another card each time.
        """
        if not self.gpu:
            return ()
        return (self.host, self.gpu) if self.host else None


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker is there."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Began:
    """A job's process was started."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Said:
    """A job wrote a line to stdout or stderr."""

    ticket: str
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A job came to its end."""

    ticket: str
    result: JobResult


@dataclass(frozen=True, slots=True)
class Failed:
    """A machine failed at a job, which may succeed elsewhere."""

    ticket: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone with all that it had."""

    worker: str  # its id
    reason: str


Event: TypeAlias = Joined | Began | Said | Ended | Failed | Lost


class Crew(ABC):
    """Workers that take jobs. A context manager: its end ends every worker with its jobs.

    One thread uses a crew. A worker is known by its `Joined`, which may come at any time, and gone
    by its `Lost`: nothing is heard of its jobs afterwards.
    """

    @abstractmethod
    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        """Hand a job to a worker; returns at once.

        Args:
            ticket: under which its events come; never used twice.
            timeout_s: the job's limit, from the moment its process is started.
        """

    @abstractmethod
    def cancel(self, ticket: str) -> None:
        """End a job with all its processes; one that has ended is no error.

        Its `Ended` or `Failed` may still come.
        """

    @abstractmethod
    def events(self, timeout_s: float) -> list[Event]:
        """What has happened since the last call; waits so long for something to happen."""

    @abstractmethod
    def close(self) -> None:
        """End every worker with its jobs; a second time does nothing."""

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster as `kmem doctor` shows it."""

    host: str
    cores: int
    gpus: int
    facts: Mapping[str, str]  # versions and cards, by name
    trouble: str = ""  # why nothing can be said of it


class Executor(ABC):
    """Runs jobs on some machine, or on many.

    A job that fails, hangs or crashes the GPU is a JobResult; ExecutorError means that the machine
    failed, not the job. Covered: a fresh directory and a new process group for each job, a time
    limit, an environment without secrets, and that a job ends when whoever wanted it is killed. Not
    covered: the network, a hostile kernel.
    """

    name: str

    @abstractmethod
    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job to its end or its time limit."""

    def unavailable_reason(self, address: str = "auto") -> str | None:
        """None if jobs can be run, else one line that names the remedy."""
        return None

    def hire(self, wanted: Wanted, note: Callable[[str], None]) -> Crew:
        """Open a crew.

        Args:
            note: told in a line what goes wrong with workers.

        Raises:
            ExecutorError: if there is no room for a single worker, or only single jobs can be run.
        """
        raise ExecutorError(
            f"Executor {self.name} runs single jobs and opens no crew; choose another with "
            "--executor"
        )

    def nodes(self, address: str = "auto") -> list[Node]:
        """The machines that a crew could work on; none where an engine cannot say.

        Raises:
            ExecutorError: if the cluster does not answer.
        """
        return []
