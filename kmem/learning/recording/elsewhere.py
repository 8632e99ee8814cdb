"""Landscapes recorded on the workers of a crew, one problem a work.

A worker tells each line of its landscape as it is written, so that a worker that is lost loses at
most what was being judged. What it has is taken up on the same card only: the points of one
landscape are all of one card. `python -m kmem.learning.recording.elsewhere` is the worker's side.
"""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kmem.away.fit import unfit_here
from kmem.away.request import EXIT_UNFIT
from kmem.engines.executor import Crew, Job, JobResult, Worker
from kmem.engines.scheduler import Listener, Scheduler, Verdict, Work
from kmem.errors import ExecutorError
from kmem.learning.landscape import LandscapeDirectory
from kmem.learning.recording.request import Asked
from kmem.learning.recording.schedule import (
    Progress,
    is_recorded,
    record_landscapes,
    siblings_of,
)
from kmem.records import Problem
from kmem.serialize import from_data, to_data

_REQUEST, _PLACE = "request.json", "landscapes"
_BEGIN, _LINE = "kmem-begin", "kmem-line "
_POLL_S = 0.2
#: Tracing, writing and compiling come before the minutes in which a problem is judged.
_LIMIT_EXTRA_S = 3600.0


def record_elsewhere(
    crew: Crew,
    problems: Sequence[Problem],
    root: Path,
    asked: Asked,
    on_progress: Callable[[Progress], None],
) -> None:
    """Record every problem that has no finished landscape in `root` yet.

    Raises:
        ExecutorError: if a problem could not be recorded; the others are recorded first.
    """
    directory = LandscapeDirectory(root)
    root.mkdir(parents=True, exist_ok=True)
    waiting = [problem for problem in problems if not is_recorded(directory, problem, asked)]
    done, total = len(problems) - len(waiting), len(problems)
    failures: list[str] = []

    def end(text: str, failed: bool) -> None:
        nonlocal done
        done += 1
        failures.extend([text] if failed else [])
        on_progress(Progress(done, total, text))

    scheduler = Scheduler(crew, lambda text: on_progress(Progress(done, total, text)))
    for problem in waiting:
        recording = _Recording(problem, siblings_of(problem, problems), root, asked, end)
        limit_s = 60 * asked.minutes + _LIMIT_EXTRA_S
        scheduler.add(
            Work(problem.name, recording.job, recording, limit_s=limit_s, gpu=asked.present)
        )
    scheduler.run()
    if failures:
        raise ExecutorError(f"{len(failures)} of {total} were not recorded: {failures[0]}")
    shutil.rmtree(root / "places", ignore_errors=True)


class _Recording(Listener):
    """One landscape as the process that asked for it sees it."""

    def __init__(
        self,
        problem: Problem,
        siblings: Sequence[Problem],
        root: Path,
        asked: Asked,
        end: Callable[[str, bool], None],
    ) -> None:
        self._problem = problem
        self._siblings = siblings
        self._root = root
        self._asked = asked
        self._end = end
        self._open = root / f"{problem.name}.jsonl"

    def job(self, worker: Worker) -> Job:
        """The recording as a job, with what there is of it from this very card."""
        place = self._root / "places" / f"{self._problem.name}.json"
        here = json.dumps(worker.place)
        known = place.read_text(encoding="utf-8") if place.is_file() else ""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(here, encoding="utf-8")
        request = {
            "problems": [to_data(problem) for problem in (self._problem, *self._siblings)],
            "asked": to_data(self._asked),
        }
        inputs = {}
        if worker.place is not None and known == here and self._open.is_file():
            inputs[f"{_PLACE}/{self._open.name}"] = self._open
        return Job(
            ("python", "-P", "-m", "kmem.learning.recording.elsewhere"),
            {_REQUEST: json.dumps(request)},
            {},
            inputs,
        )

    def said(self, worker: Worker, stream: str, text: str) -> None:
        if stream == "stdout" and text == _BEGIN:
            self._open.write_text("", encoding="utf-8")
        elif stream == "stdout" and text.startswith(_LINE):
            with self._open.open("a", encoding="utf-8") as file:
                file.write(text.removeprefix(_LINE) + "\n")

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        if result.exit_code == EXIT_UNFIT:
            return Verdict.ELSEWHERE
        name = self._problem.name
        for packed, content in result.files.items():
            partial = self._root / f"{packed}.partial"
            partial.write_bytes(content)
            partial.replace(self._root / packed)
            self._open.unlink(missing_ok=True)
        said = result.stderr.strip().splitlines()[-1:] or [f"{name}: ended without a word"]
        self._end(said[0], result.exit_code != 0)
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self._end(f"{self._problem.name}: {reason}", True)


class _Teller:
    """Tells each whole line of a file once, from a thread, until it is told to end."""

    def __init__(self, file: Path) -> None:
        given = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self._header, self._told = given[0] if given else "", len(given)
        self._file = file
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            self._tell()

    def _tell(self) -> None:
        if not self._file.is_file():
            return
        lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        if whole and whole[0] != self._header:
            self._header, self._told = whole[0], 0
            print(_BEGIN, flush=True)
        for line in whole[self._told :]:
            print(_LINE + line, flush=True)
        self._told = max(self._told, len(whole))

    def close(self) -> None:
        """Tell what is left, unless the file was packed, and end."""
        self._over.set()
        self._thread.join()
        self._tell()


def main() -> None:
    """Record the first problem of the request in this directory."""
    request = json.loads(Path(_REQUEST).read_text(encoding="utf-8"))
    problems = [from_data(Problem, data) for data in request["problems"]]
    asked = from_data(Asked, request["asked"])
    if unfit_here(asked.card, asked.ceilings, shared=False):
        raise SystemExit(EXIT_UNFIT)
    name, root = problems[0].name, Path.cwd() / _PLACE
    root.mkdir(exist_ok=True)
    teller = _Teller(root / f"{name}.jsonl")
    try:
        record_landscapes(
            problems,
            root,
            asked,
            lambda progress: print(progress.text, file=sys.stderr, flush=True),
            only=name,
        )
    finally:
        teller.close()
    packed = root / f"{name}.jsonl.xz"
    if packed.is_file():
        shutil.copyfile(packed, Path("out") / packed.name)


if __name__ == "__main__":
    main()
