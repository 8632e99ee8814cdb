"""Runs as processes: started apart from the server, stopped and resumed.

A run is a `kmem` of its own in a session of its own: the end of the server, by a kill too, is not
its end. A run that anybody started is found by the lock on its directory.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import OutputError

#: What a `kmem optimize` says first: source kmem/cli/actions/optimize.py.
_BEGAN = re.compile(r"^run (\S+) in ", re.MULTILINE)
_LOG_SHOWN = 20_000
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")
LOCK = "run.lock"


@dataclass(frozen=True, slots=True)
class Started:
    """A process that the page started: what it said, the run it became, whether it goes on."""

    name: str
    log: str
    run: str
    running: bool


class Processes:
    """The processes that this server started, with their logs beside the database."""

    def __init__(self, root: Path, database: Path) -> None:
        """Name the directory for logs and pasted problems; nothing is made yet."""
        self._root = root
        self._database = database
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def paste(self, name: str, source: str) -> Path:
        """Keep a pasted problem as a file. Raises OutputError if that cannot be written."""
        word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:40] or "pasted"
        place = self._root / "problems" / f"{word}-{secrets.token_hex(3)}" / f"{word}.py"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source.replace("\r\n", "\n"), encoding="utf-8")
        except OSError as ex:
            raise OutputError(f"Cannot write {place}: {ex.strerror or ex}") from ex
        return place

    def start(self, words: Sequence[str]) -> str:
        """Start `kmem WORDS`; returns the name under which it is asked for.

        Raises OutputError if its log cannot be written.
        """
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with open(self._log(name), "wb") as log:
                self._children[name] = subprocess.Popen(
                    [sys.executable, "-m", "kmem", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=os.environ | {"KMEM_DB": str(self._database)},
                )
        except OSError as ex:
            raise OutputError(f"Cannot start a run: {ex.strerror or ex}") from ex
        return name

    def started(self, name: str) -> Started | None:
        """What a started process says so far; None if no server here started it."""
        if not _NAME.fullmatch(name) or not self._log(name).is_file():
            return None
        text = self._log(name).read_text(encoding="utf-8", errors="replace")
        found = _BEGAN.search(text)
        child = self._children.get(name)
        running = child is not None and child.poll() is None
        return Started(name, text[-_LOG_SHOWN:], found[1] if found else "", running)

    def _log(self, name: str) -> Path:
        return self._root / f"{name}.log"


def stop(out_dir: Path) -> bool:
    """Interrupt the process at work on a run, as Ctrl-C would; False if there is none of ours."""
    holder = find_holder(out_dir / LOCK)
    if holder is None:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(holder, signal.SIGINT)
        return True
    return False


def find_holder(lock: Path, proc: Path = Path("/proc")) -> int | None:
    """The process that holds the lock on a file; None if none does, or it is not ours to see.

    The kernel's list of locks names files by inode, and overlaid file systems give one file two
    devices: so of those processes one is taken that has the file open. Source: man 5 proc_locks.
    """
    try:
        inode = os.stat(lock).st_ino
        lines = (proc / "locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            holder = int(fields[4])
            if holder > 1 and _has_open(proc / str(holder) / "fd", lock.resolve()):
                return holder
    return None


def _has_open(descriptors: Path, file: Path) -> bool:
    try:
        return any(os.readlink(entry) == str(file) for entry in descriptors.iterdir())
    except OSError:  # it ended, or belongs to another user
        return False
