"""The program a profiler watches: it is confined as a worker of the judge is, then runs a forward.

Copied into the job's directory and run there (`python harness.py ncu|cupti`), beside the
candidate's file and job.json; it imports kmem for building the forward (watched.py).

Under `cupti` the walls are those of a worker: no network, no other process, files of its own only.
Not covered: `ncu`. It reaches into the program from outside, by sockets and files of its own and
with the right to read counters, which a process without capabilities may not have. There nothing
holds a candidate but the source check that it has passed and an environment without secrets.
"""

import os
import sys
from functools import partial
from pathlib import Path

import kmem
from kmem.host.confinement import Limits, Walls, restrict_files, restrict_process
from kmem.host.lease import DIRECTORY_VARIABLE
from kmem.host.project_modules import imported_directories

#: Who watches from inside the program, so that it can have walls.
CONFINED = ("cupti",)
_KMEM = str(Path(kmem.__file__).resolve().parent)


def confine(place: Path) -> None:
    """Give up what no forward needs, with places to write of the job's own."""
    for name, directory in (
        ("HOME", "home"),
        ("TMPDIR", "tmp"),
        ("TRITON_CACHE_DIR", "cache/triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "cache/inductor"),
    ):
        (place / directory).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(place / directory)
    locks = os.environ.get(DIRECTORY_VARIABLE)
    writes = (str(place), *([locks] if locks else []))
    restrict_process(Limits(address_bytes=0), Walls(("/",), writes, gpu=True))


def hide_rest(place: Path, job: dict) -> None:
    """Leave no file of kmem, nor of the user, to the candidate that runs from now on."""
    problem = job["problem"]
    reads = imported_directories(problem["source"], problem["path"])
    restrict_files(Walls((str(place), *reads), (str(place),), _KMEM, gpu=True))


def main(watcher: str) -> None:
    """argv: who watches, ncu or cupti."""
    place = Path(__file__).resolve().parent
    is_confined = watcher in CONFINED
    if is_confined:
        confine(place)
    # imported in here: what a process gives up is given up before torch starts threads
    from kmem.profile.watched import run_watched

    run_watched(watcher, place, partial(hide_rest, place) if is_confined else lambda job: None)


if __name__ == "__main__":
    main(sys.argv[1])
