"""A run on a worker that has a copy of the memory, and tells what it commits."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from kmem.away.errand import PROCESS, Asked, Errand
from kmem.away.home import Home
from kmem.away.request import HELD, MEMORY, NEWS, PROBLEM, REQUEST, RUN, Request
from kmem.engines.executor import Job, JobResult, Worker
from kmem.engines.scheduler import Verdict
from kmem.host.lease import HOLDS_VARIABLE
from kmem.host.project_modules import imported_directories
from kmem.run.directory import RunDirectory

#: Variables that say how kmem works, and go along; those that say where things lie do not.
_GO_ALONG = ("KMEM_EMBEDDING_MODEL", "TRITON_INTERPRET")


class There(Errand):
    """A run whose worker may be anywhere."""

    def __init__(
        self,
        asked: Asked,
        home: Home,
        on_line: Callable[[str], None],
        on_end: Callable[[JobResult], None],
    ) -> None:
        """Nothing is begun yet; arguments as of `Errand`."""
        super().__init__(asked, on_line, on_end)
        self._home = home
        self._run: str | None = None

    def job(self, worker: Worker) -> Job:
        asked = self.asked
        resumed = self.resumable(self._home.memory, worker)
        words = self.begin(worker, resumed)
        place, files = problem_in_job(asked.problem)
        request = Request(
            tuple(words or asked.words(place, RUN)),
            place,
            str(asked.out_dir),
            resumed,
            asked.reference,
            asked.ceilings,
            asked.shared,
        )
        inputs = self._home.skills() | self.inputs()
        if asked.memory_mode != "off" or resumed is not None:
            inputs[MEMORY] = self._home.copy(fresh=resumed is not None)
        along = going_along()
        if worker.gpu:
            along[HOLDS_VARIABLE] = self._home.holds_word
        return Job(PROCESS, files | {REQUEST: request.to_json()}, along, inputs)

    def said(self, worker: Worker, stream: str, text: str) -> None:
        if stream == "stdout" and text.startswith(NEWS):
            asked = self.asked
            news = text.removeprefix(NEWS)
            run_id = self._home.take(news, asked.out_dir, asked.problem.resolve())
            if run_id is not None and run_id != self._run:
                self._run = run_id
                RunDirectory(asked.out_dir).own(self._home.memory.runs.get(run_id))
        elif stream == "stdout" and text.startswith(HELD):
            for gpu, holds in json.loads(text.removeprefix(HELD)).items():
                self._home.note_holds(gpu, holds)
        else:
            super().said(worker, stream, text)

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        for name, content in result.files.items():
            inside = Path(name).relative_to("run") if name.startswith("run/") else Path(name)
            if inside.name != "run.json":  # has the directory's name there
                place = self.asked.out_dir / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        return super().ended(worker, result)


def problem_in_job(problem: Path) -> tuple[str, dict[str, str]]:
    """Where a job finds a problem's file, and the text that it needs for that."""
    source, file = problem.read_text(encoding="utf-8"), problem.resolve()
    # a problem that imports its project's modules is only to be found where those are
    if imported_directories(source, problem):
        return str(file), {}
    place = f"{PROBLEM}/{file.parent.name}/{file.name}"
    return place, {place: source}


def going_along() -> dict[str, str]:
    """Variables of this process that go along with a job."""
    return {name: os.environ[name] for name in _GO_ALONG if name in os.environ}
