"""A run on a worker, as the process that asked for it sees it."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.away.home import Home
from kmem.away.request import (
    CARD,
    EXIT_UNFIT,
    HELD,
    MEMORY,
    NEWS,
    PROBLEM,
    REQUEST,
    RUN,
    UNFIT,
    Request,
)
from kmem.engines.executor import Job, JobResult, Worker
from kmem.engines.scheduler import Listener, Verdict
from kmem.host.lease import HOLDS_VARIABLE
from kmem.host.project_modules import imported_directories
from kmem.run.directory import RunDirectory, owner_of

#: Variables that say how kmem works, and go along; those that say where things lie do not.
_GO_ALONG = ("KMEM_EMBEDDING_MODEL", "TRITON_INTERPRET")
_PLACE = "place.json"


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that is wanted: of which problem, told what, and where its files go."""

    problem: Path
    words: Callable[[str, str], Sequence[str]]  # of kmem, by problem file and run directory
    out_dir: Path
    memory_mode: str = "rw"
    reference: str | None = None  # the card that all figures are to come from, as JSON
    ceilings: str | None = None


class Errand(Listener):
    """Makes the job of a run, takes in what it tells, and keeps what it leaves."""

    def __init__(
        self,
        asked: Asked,
        home: Home,
        on_line: Callable[[str], None],
        on_end: Callable[[JobResult], None],
    ) -> None:
        """Nothing is begun yet.

        Args:
            on_line: told what the run writes to stderr, line by line.
            on_end: given the result, with files already in the run's directory; stdout is the
                run's own.
        """
        self._asked = asked
        self._home = home
        self._on_line = on_line
        self._on_end = on_end
        self._said: list[str] = []
        self._run: str | None = None
        self.unfit = ""

    def job(self, worker: Worker) -> Job:
        """The run as a job: a new one, or one that goes on where a lost worker left it."""
        asked, out_dir = self._asked, self._asked.out_dir
        self._said.clear()
        resumed = self._resumable(worker)
        if resumed is None and (owner_of(out_dir) is not None or is_ours(out_dir)):
            shutil.rmtree(out_dir, ignore_errors=True)
        source = asked.problem.read_text(encoding="utf-8")
        # a problem that imports its project's modules is only to be found where those are
        needs_project = bool(imported_directories(source, asked.problem))
        file = asked.problem.resolve()
        place = str(file) if needs_project else f"{PROBLEM}/{file.parent.name}/{file.name}"
        words = (
            ["runs", "resume", resumed, "--json"]
            if resumed is not None
            else list(asked.words(place, RUN))
        )
        request = Request(
            tuple(words), place, str(out_dir), resumed, asked.reference, asked.ceilings
        )
        self._keep_place(worker)
        inputs = self._home.skills()
        if asked.memory_mode != "off" or resumed is not None:
            inputs[MEMORY] = self._home.copy(fresh=resumed is not None)
        files = {REQUEST: request.to_json()} | ({} if needs_project else {place: source})
        along = {name: os.environ[name] for name in _GO_ALONG if name in os.environ}
        if worker.gpu:
            along[HOLDS_VARIABLE] = self._home.holds_word
        return Job(("python", "-P", "-m", "kmem.away.process"), files, along, inputs)

    def _resumable(self, worker: Worker) -> str | None:
        """The run in this directory, if memory has it and it was measured on this very card."""
        run_id = owner_of(self._asked.out_dir)
        place = self._asked.out_dir / _PLACE
        if run_id is None or not place.is_file() or not self._home.memory.runs.has(run_id):
            return None
        # figures never cross GPUs: elsewhere, or where Slurm chooses, it begins again
        known = json.loads(place.read_text(encoding="utf-8"))
        return run_id if worker.place is not None and known == list(worker.place) else None

    def _keep_place(self, worker: Worker) -> None:
        self._asked.out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(worker.place)
        (self._asked.out_dir / _PLACE).write_text(text, encoding="utf-8")

    def said(self, worker: Worker, stream: str, text: str) -> None:
        if stream == "stderr":
            self._on_line(text)
        elif text.startswith(NEWS):
            asked = self._asked
            news = text.removeprefix(NEWS)
            run_id = self._home.take(news, asked.out_dir, asked.problem.resolve())
            if run_id is not None and run_id != self._run:
                self._run = run_id
                RunDirectory(asked.out_dir).own(self._home.memory.runs.get(run_id))
        elif text.startswith(UNFIT):
            self.unfit = text.removeprefix(UNFIT)
            self._on_line(f"note: {worker.id} is not fit: {self.unfit}")
        elif text.startswith(HELD):
            for gpu, holds in json.loads(text.removeprefix(HELD)).items():
                self._home.note_holds(gpu, holds)
        elif not text.startswith(CARD):
            self._said.append(text)

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        if result.exit_code == EXIT_UNFIT and self.unfit:
            return Verdict.ELSEWHERE
        for name, content in result.files.items():
            inside = Path(name).relative_to("run") if name.startswith("run/") else Path(name)
            if inside.name != "run.json":  # has the directory's name there
                place = self._asked.out_dir / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        stdout = "".join(f"{line}\n" for line in self._said)
        self._on_end(JobResult(result.exit_code, stdout, result.stderr, {}, result.seconds))
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self._on_end(JobResult(1, "", f"Error: {reason}\n", {}, 0.0))


def is_ours(out_dir: Path) -> bool:
    """Whether a run on a worker wrote this directory, which the next may then empty."""
    return (out_dir / _PLACE).is_file()
