"""A run on a worker: `python -m kmem.away.process`, in the directory of a job.

First the card is looked at: one that is unfit ends the job before anything is measured. Then kmem
runs as a process of its own, in a database of its own, and what it commits there is told line by
line; on the machine of whoever asked it takes this process's place, with their database. With
`--card` it only says what card is here.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kmem.away.compiled import unpack_kernels
from kmem.away.fit import shared_directory, unfit_here
from kmem.away.request import (
    COMPILED,
    EXIT_UNFIT,
    HELD,
    MEMORY,
    NEWS,
    REQUEST,
    RUN,
    UNFIT,
    Request,
)
from kmem.bench.utilisation import read_holds
from kmem.devices import detect_device
from kmem.engines.card import read_card
from kmem.host.lease import HOLDS_VARIABLE
from kmem.memory.store import Memory
from kmem.memory.team.carried import News, settle_elsewhere
from kmem.serialize import to_data

#: How often the run's database is looked at: a kill loses what was committed since.
_POLL_S = 0.1


def main() -> int:
    """Carry out the request in this directory; the exit code of the run."""
    if "--card" in sys.argv[1:]:
        device = detect_device()
        found = {"card": read_card().to_json(), "device": to_data(device) if device else None}
        _tell(json.dumps(found))
        return 0
    request = Request.from_json(Path(REQUEST).read_text(encoding="utf-8"))
    reasons = unfit_here(request.reference, request.ceilings, shared=request.shared)
    if reasons:
        _tell(UNFIT + "; ".join(reasons))
        return EXIT_UNFIT
    if Path(COMPILED).is_file():
        unpack_kernels(Path(COMPILED), shared_directory() / "triton")
    if request.place is not None:
        os.chdir(request.place)
        os.execv(sys.executable, _command(request))
    return _carry_out(request)


def _command(request: Request) -> list[str]:
    return [sys.executable, "-P", "-m", "kmem", *request.words]


def _carry_out(request: Request) -> int:
    here, began = Path.cwd(), time.time()
    database, run = here / MEMORY, here / RUN
    database.parent.mkdir(parents=True, exist_ok=True)
    shared_directory().mkdir(parents=True, exist_ok=True)
    (database.parent / "cache").symlink_to(shared_directory(), target_is_directory=True)
    with Memory(database) as memory:
        if request.resumed is not None:
            settle_elsewhere(memory, request.resumed, run, here / request.problem)
        news = News(memory, request.resumed)
        process = subprocess.Popen(
            _command(request),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "KMEM_DB": str(database)},
        )
        signal.signal(signal.SIGINT, lambda number, frame: process.send_signal(number))
        printed: list[str] = []
        reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))
        reader.start()
        while process.poll() is None:
            _tell_news(news)
            time.sleep(_POLL_S)
        reader.join()
        _tell_news(news)
    if word := os.environ.get(HOLDS_VARIABLE):
        _tell(HELD + json.dumps(read_holds(shared_directory() / "locks", word, since=began)))
    _tell("".join(printed).replace(str(run), request.home).rstrip("\n"))
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _tell_news(news: News) -> None:
    found = news.read()
    if found is not None:
        _tell(NEWS + found)


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
