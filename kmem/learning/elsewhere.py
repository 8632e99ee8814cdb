"""Seeds of an ablation as works of a crew, and one of them in a process of its own.

A seed follows from its landscapes, its number and the setup: it does not matter where it is run, or
how often. `python -m kmem.learning.elsewhere` runs one in the directory of a job.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kmem.engines.executor import Crew, Job, JobResult, Worker
from kmem.engines.scheduler import Listener, Scheduler, Verdict, Work
from kmem.errors import ExecutorError
from kmem.learning.ablation import Lanes, Setup, Trial, run_seed
from kmem.learning.landscape import Landscape, LandscapeDirectory
from kmem.records import content_hash
from kmem.serialize import from_data, from_json, to_data, to_json

_REQUEST, _TRIALS = "request.json", "trials.json"
_LANDSCAPES = "landscapes"
_STEP_S = 1.0


def lanes_of(crew: Crew, root: Path, note: Callable[[str], None]) -> Lanes:
    """Lanes on the workers of a crew.

    Args:
        root: the directory of the landscapes.
        note: told in a line of each worker that is lost.
    """

    def lanes(landscapes: Sequence[Landscape], setup: Setup) -> Iterator[list[Trial]]:
        scheduler = Scheduler(crew, note)
        found: list[_Seed] = []
        for seed in range(setup.seeds):
            work = seed_work(root, [landscape.name for landscape in landscapes], setup, seed, found)
            scheduler.add(work)
        for done in range(setup.seeds):
            while len(found) <= done:
                scheduler.step(_STEP_S)
            yield found[done].trials()

    return lanes


def seed_work(
    root: Path, names: Sequence[str], setup: Setup, seed: int, found: "list[_Seed]"
) -> Work:
    """One seed as a work, which is added to `found` when it is done."""
    request = json.dumps({"setup": to_json(setup), "seed": seed})
    files = [path for name in names for path in root.glob(f"{name}.jsonl*")]
    job = Job(
        ("python", "-P", "-m", "kmem.learning.elsewhere"),
        {_REQUEST: request},
        {},
        {f"{_LANDSCAPES}/{path.name}": path for path in files},
    )
    key = content_hash(request, *sorted(names))[:16]
    return Work(key, lambda worker: job, _Seed(found), expected_s=float(len(names)))


class _Seed(Listener):
    """What came of one seed."""

    def __init__(self, found: "list[_Seed]") -> None:
        self._found = found
        self._result: JobResult | None = None
        self._reason = ""

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        self._result = result
        self._found.append(self)
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self._reason = reason
        self._found.append(self)

    def trials(self) -> list[Trial]:
        """The trials. Raises ExecutorError if there are none, with the reason."""
        result = self._result
        if result is None or _TRIALS not in result.files:
            said = result.stderr.strip().splitlines()[-1:] if result is not None else []
            reason = self._reason or "".join(said) or "no word"
            raise ExecutorError(f"A seed was not searched to its end ({reason}); run again")
        return [from_data(Trial, data) for data in json.loads(result.files[_TRIALS])]


def main() -> None:
    """Run the seed that is asked for in this directory."""
    request = json.loads(Path(_REQUEST).read_text(encoding="utf-8"))
    landscapes = LandscapeDirectory(Path(_LANDSCAPES)).read()
    trials = run_seed(landscapes, from_json(Setup, request["setup"]), int(request["seed"]))
    text = json.dumps([to_data(trial) for trial in trials])
    Path("out", _TRIALS).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
