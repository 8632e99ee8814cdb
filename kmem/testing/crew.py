"""The suite of `kmem.engines.executor.Crew`, as `Executor.hire` opens it.

Covered: files both ways, lines while a job runs, failures, time limits, jobs that are cancelled,
and that the crew's end ends its jobs. Not covered: lost workers, and GPUs.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kmem.engines.executor import Crew, Ended, Event, Executor, Job, Joined, Said, Wanted, Worker

#: How long anything of the suite may take.
_AMPLE_S = 120.0
_GOOD = """\
import pathlib, sys
print("to stdout", flush=True)
print(pathlib.Path("given.bin").read_bytes(), file=sys.stderr)
pathlib.Path("out/result.txt").write_text("done")
"""
_HANG = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


def check_crew(executor: Executor, wanted: Wanted, *, limit_s: float = 2.0) -> None:
    """Hold the crew of an executor to its contract with four small Python jobs.

    Args:
        wanted: a crew with at least one worker without a GPU; the suite leaves a file in its
            directory.
        limit_s: the limit of the job that hangs.
    Raises:
        AssertionError: naming what the contract says and the crew does otherwise.
    """
    wanted.directory.mkdir(parents=True, exist_ok=True)
    given = wanted.directory / "given.bin"
    given.write_bytes(b"\x00given")
    with executor.hire(wanted, lambda text: None) as crew:
        worker = _first_worker(crew)
        _check_good(crew, worker, given)
        failed = _result(crew, worker, "failing", "raise SystemExit('it went wrong')", _AMPLE_S)
        assert failed.result.exit_code == 1 and "it went wrong" in failed.result.stderr, (
            f"a job that fails has its exit code and stderr, not {failed.result}"
        )
        hung = _result(crew, worker, "hanging", _HANG, limit_s)
        assert hung.result.exit_code is None, (
            f"a job that is ended at its limit has no exit code, not {hung.result.exit_code}"
        )
        _start(crew, worker, "cancelled", _HANG, _AMPLE_S)
        _until(crew, lambda found: any(isinstance(each, Said) for each in found))
        began = time.monotonic()
        crew.cancel("cancelled")
        crew.cancel("never started")
        _until(crew, lambda found: any(isinstance(each, Ended) for each in found))
        assert time.monotonic() - began < _AMPLE_S / 2, "a job that is cancelled ends at once"
        _start(crew, worker, "left", _HANG, _AMPLE_S)
        _until(crew, lambda found: any(isinstance(each, Said) for each in found))
    crew.close()  # a second time does nothing


def _check_good(crew: Crew, worker: Worker, given: Path) -> None:
    """A job gets its files, its lines come while it runs, and its results come back."""
    job = Job(("python", "job.py"), {"job.py": _GOOD}, {}, {"given.bin": given})
    crew.start(worker, "good", job, timeout_s=_AMPLE_S)
    found = _until(crew, lambda found: any(isinstance(each, Ended) for each in found))
    said = [(each.stream, each.text) for each in found if isinstance(each, Said)]
    assert ("stdout", "to stdout") in said, f"each line comes as it is written, not {said}"
    assert ("stderr", repr(b"\x00given")) in said, f"a job finds its inputs: {said}"
    (ended,) = (each for each in found if isinstance(each, Ended))
    assert ended.ticket == "good" and ended.result.exit_code == 0, f"not {ended}"
    assert ended.result.files == {"result.txt": b"done"}, f"not {ended.result.files}"


def _first_worker(crew: Crew) -> Worker:
    found = _until(crew, lambda found: any(isinstance(each, Joined) for each in found))
    workers = [each.worker for each in found if isinstance(each, Joined)]
    return next(worker for worker in workers if not worker.gpu)


def _start(crew: Crew, worker: Worker, ticket: str, code: str, limit_s: float) -> None:
    crew.start(worker, ticket, Job(("python", "job.py"), {"job.py": code}, {}), timeout_s=limit_s)


def _result(crew: Crew, worker: Worker, ticket: str, code: str, limit_s: float) -> Ended:
    _start(crew, worker, ticket, code, limit_s)
    found = _until(crew, lambda found: any(isinstance(each, Ended) for each in found))
    return next(each for each in found if isinstance(each, Ended))


def _until(crew: Crew, enough: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """Everything that happens until it is enough."""
    found: list[Event] = []
    deadline = time.monotonic() + _AMPLE_S
    while not enough(found):
        assert time.monotonic() < deadline, f"nothing more happened in {_AMPLE_S} s: {found}"
        found += crew.events(0.1)
    return found
