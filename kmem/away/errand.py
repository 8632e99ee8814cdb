"""A run on a worker, as the process that asked for it sees it."""

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.away.request import COMPILED, EXIT_UNFIT, UNFIT
from kmem.engines.executor import Job, JobResult, Worker
from kmem.engines.scheduler import Listener, Verdict
from kmem.memory.store import Memory
from kmem.records import RunState
from kmem.run.directory import owner_of

#: The command of every run's job.
PROCESS = ("python", "-P", "-m", "kmem.away.process")
_PLACE = "place.json"


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that is wanted: of which problem, told what, and where its files go."""

    problem: Path
    words: Callable[[str, str], Sequence[str]]  # of kmem, by problem file and run directory
    out_dir: Path
    memory_mode: str = "rw"
    paid: bool = False  # whether it asks language models, whose answers are not to be paid twice
    reference: str | None = None  # the card that all figures are to come from, as JSON
    ceilings: str | None = None
    # what was compiled for it ahead, asked when its turn has come
    compiled: Callable[[], Path | None] = lambda: None
    shared: bool = False  # whether other runs that are wanted use the same card meanwhile


class Errand(Listener, ABC):
    """Makes the job of a run, takes in what it tells, and keeps what it leaves."""

    def __init__(
        self, asked: Asked, on_line: Callable[[str], None], on_end: Callable[[JobResult], None]
    ) -> None:
        """Nothing is begun yet.

        Args:
            on_line: told what the run writes to stderr, line by line.
            on_end: given the result, with files already in the run's directory; stdout is the
                run's own.
        """
        self.asked = asked
        self._on_line = on_line
        self._on_end = on_end
        self._said: list[str] = []
        self.unfit = ""

    @abstractmethod
    def job(self, worker: Worker) -> Job:
        """The run as a job: a new one, or one that goes on where a lost worker left it."""

    def begin(self, worker: Worker, resumed: str | None) -> list[str]:
        """Make the run's directory ready; what kmem is told if it goes on, else nothing.

        Args:
            resumed: the run that goes on; None: what an earlier one left is removed, for its
                measurements would be taken for those of the new one.
        """
        self._said.clear()
        out_dir = self.asked.out_dir
        if resumed is None and (owner_of(out_dir) is not None or is_ours(out_dir)):
            shutil.rmtree(out_dir, ignore_errors=True)
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / _PLACE).write_text(json.dumps(worker.place), encoding="utf-8")
        return ["runs", "resume", resumed, "--json"] if resumed is not None else []

    def inputs(self) -> dict[str, Path]:
        """Files that its job gets wherever it runs."""
        compiled = self.asked.compiled()
        return {COMPILED: compiled} if compiled is not None else {}

    def resumable(self, memory: Memory, worker: Worker) -> str | None:
        """The run in the directory, if memory has it and it was measured on this very card."""
        run_id = owner_of(self.asked.out_dir)
        place = self.asked.out_dir / _PLACE
        if run_id is None or not place.is_file() or not memory.runs.has(run_id):
            return None
        if memory.runs.state(run_id) is RunState.FAILED:
            return None
        # figures never cross GPUs: elsewhere, or where Slurm chooses, it begins again
        known = json.loads(place.read_text(encoding="utf-8"))
        return run_id if worker.place is not None and known == list(worker.place) else None

    def said(self, worker: Worker, stream: str, text: str) -> None:
        if stream == "stderr":
            self._on_line(text)
        elif text.startswith(UNFIT):
            self.unfit = text.removeprefix(UNFIT)
            self._on_line(f"note: {worker.id} is not fit: {self.unfit}")
        else:
            self._said.append(text)

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        if result.exit_code == EXIT_UNFIT and self.unfit:
            return Verdict.ELSEWHERE
        stdout = "".join(f"{line}\n" for line in self._said)
        self._on_end(JobResult(result.exit_code, stdout, result.stderr, {}, result.seconds))
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self._on_end(JobResult(1, "", f"Error: {reason}\n", {}, 0.0))


def begin_anew(out_dir: Path) -> None:
    """Have the next run in a directory go on with nothing but what was paid for."""
    (out_dir / _PLACE).unlink(missing_ok=True)


def is_ours(out_dir: Path) -> bool:
    """Whether a run on a worker wrote this directory, which the next may then empty."""
    return (out_dir / _PLACE).is_file()
