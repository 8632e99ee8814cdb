"""What problems begin with, compiled by workers without a GPU before their turn comes.

A result follows from the files of its job alone, so that it is kept under a hash of what it is of,
and a run that finds it begins to measure at once. Whoever's turn has come waits for nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from kmem.away.compiling import BEGINNING, Beginning
from kmem.away.home import Home
from kmem.away.request import COMPILED, MEMORY
from kmem.away.there import going_along, problem_in_job
from kmem.bench.problems import BenchProblem
from kmem.bench.results import Settings
from kmem.engines.desk import Desk
from kmem.engines.executor import Job, JobResult, Worker
from kmem.engines.scheduler import Listener, Verdict, Work
from kmem.records import Device, content_hash
from kmem.serialize import to_json

_COMMAND = ("python", "-P", "-m", "kmem.away.compiling")
_LIMIT_S = 900.0


class Prefetch:
    """Has the beginnings of runs compiled, as far as they have not begun."""

    def __init__(
        self,
        desk: Desk,
        home: Home,
        settings_of: Callable[[BenchProblem], Settings],
        target: tuple[Device, bool],
        root: Path,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            target: the device, and whether runs are measured on it.
            root: of the bench, where results are kept.
        """
        self._desk = desk
        self._home = home
        self._settings_of = settings_of
        self._target = target
        self._root = root / "compiled"

    def begin(self, problems: Sequence[BenchProblem]) -> None:
        """Have the beginnings of problems compiled, in this order."""
        self._root.mkdir(parents=True, exist_ok=True)
        for problem in problems:
            if not self._file(problem).is_file():
                keeper, job = _Keeper(self._file(problem)), partial(self._job, problem)
                self._desk.add(Work(_key(problem), job, keeper, limit_s=_LIMIT_S))

    def take(self, problem: BenchProblem) -> Path | None:
        """What was compiled for a problem whose turn has come; None if nothing was in time."""
        self._desk.cancel(_key(problem))
        file = self._file(problem)
        return file if file.is_file() else None

    def _file(self, problem: BenchProblem) -> Path:
        device, present = self._target
        asked = str(asdict(self._settings_of(problem)))
        return self._root / content_hash(problem.source_hash, to_json(device), str(present), asked)

    def _job(self, problem: BenchProblem, worker: Worker) -> Job:
        place, files = problem_in_job(Path(problem.path))
        device, present = self._target
        settings = self._settings_of(problem)
        beginning = Beginning(place, settings, to_json(device), present)
        inputs = self._home.skills()
        if settings.memory != "off":
            inputs[MEMORY] = self._home.copy()
        return Job(_COMMAND, files | {BEGINNING: beginning.to_json()}, going_along(), inputs)


class _Keeper(Listener):
    def __init__(self, file: Path) -> None:
        self._file = file

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        if COMPILED in result.files:  # else the run itself finds out why
            partial = self._file.with_suffix(".partial")
            partial.write_bytes(result.files[COMPILED])
            partial.replace(self._file)
        return Verdict.DONE


def _key(problem: BenchProblem) -> str:
    return f"{problem.key}@compiling"
