"""One pool of cores for all runs of a bench: whoever computes for long holds one of them.

The pool is a directory with a lock file for each core, named in the environment; a core is free
again when its holder's process ends, however that happens. A run whose processes wait for cores
that its neighbours hold does not spend its minutes meanwhile: `now` is its own time.

Covered: compile processes, tracing, and the interpreter's proofs. Not covered: baselines, which
Inductor compiles on cores of its own number, and what a run does in Python between its steps.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TextIO

#: Names the pool to the runs of a bench: how many cores it has, and its directory.
POOL_VARIABLE = "KMEM_CORE_POOL"
_POLL_S = 0.05


def name_pool(directory: Path, count: int) -> str:
    """The value of POOL_VARIABLE for a pool, whose directory its first user makes."""
    return f"{count}:{directory}"


class Cores:
    """The cores of a pool as one process holds them; without a pool everything goes ahead."""

    def __init__(self, pool: str | None = None) -> None:
        """Nothing is held yet.

        Args:
            pool: as `name_pool` names it; by default the environment's.
        Raises:
            OSError: if the pool's directory cannot be made.
        """
        named = os.environ.get(POOL_VARIABLE, "") if pool is None else pool
        parts = named.split(":", 1)
        self._count = int(parts[0]) if len(parts) == 2 and parts[0].isdigit() else 0
        self._directory = Path(parts[-1])
        if self._count:
            self._directory.mkdir(parents=True, exist_ok=True)
        self._mine = threading.local()  # the core that a thread holds by `hold`
        self._changed = threading.Lock()
        self._working = self._waiting = 0
        self._blocked = 0  # threads that wait for jobs
        self._counted_s, self._since = 0.0, time.monotonic()
        self._ended = False

    @property
    def waited_s(self) -> float:
        """How long neighbours have kept this process from working so far, in seconds."""
        with self._changed:
            self._count_on()
            return self._counted_s

    def now(self) -> float:
        """A clock in seconds that stands while neighbours have the cores."""
        return time.monotonic() - self.waited_s

    def end(self) -> None:
        """Let those that wait for a core for their jobs go ahead without one: all is ended."""
        self._ended = True

    def hold(self) -> AbstractContextManager[None]:
        """Hold a core in this thread, which waits for it; nested, nothing more happens."""
        if not self._count or getattr(self._mine, "core", None) is not None:
            return nullcontext()
        return self._hold()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self._take_mine()
        try:
            yield
        finally:
            self._give_mine()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Meanwhile this thread waits for jobs that hold cores themselves.

        Its own core is free for them. As far as they wait for cores, this process waits.
        """
        had_core = getattr(self._mine, "core", None) is not None
        if had_core:
            self._give_mine()
        self._note(blocked=1)
        try:
            yield
        finally:
            self._note(blocked=-1)
            if had_core:
                self._take_mine()

    @contextmanager
    def job(self) -> Iterator[None]:
        """Hold a core for a job that another thread waits for."""
        if not self._count:
            yield
            return
        self._note(waiting=1)
        try:
            core = self._take()
        finally:
            self._note(waiting=-1)
        self._note(working=1)
        try:
            yield
        finally:
            self._note(working=-1)
            if core is not None:
                core.close()

    @contextmanager
    def spare(self, most: int) -> Iterator[int]:
        """Hold cores that nobody holds or waits for, at most so many; how many."""
        if not self._count:
            yield most
            return
        with ExitStack() as held:
            yield self._take_spare(most, held)

    def _take_spare(self, most: int, held: ExitStack) -> int:
        with open(self._directory / "gate.lock", "w", encoding="utf-8") as gate:
            cores = islice(self._free_cores(), most) if _lock(gate) else ()
            return sum(1 for core in cores if held.enter_context(core))

    def _free_cores(self) -> Iterator[TextIO]:
        """Cores that nobody holds, as locked files."""
        for number in range(self._count):
            place = self._directory / f"core-{number}.lock"
            core = open(place, "w", encoding="utf-8")  # noqa: SIM115 - held
            if _lock(core):
                yield core
            else:
                core.close()

    def _take_mine(self) -> None:
        started = time.monotonic()
        self._mine.core = self._take()
        with self._changed:
            self._counted_s += time.monotonic() - started

    def _give_mine(self) -> None:
        core, self._mine.core = self._mine.core, None
        if core is not None:
            core.close()

    def _note(self, *, working: int = 0, waiting: int = 0, blocked: int = 0) -> None:
        with self._changed:
            self._count_on()
            self._working += working
            self._waiting += waiting
            self._blocked += blocked

    def _count_on(self) -> None:
        """Count the time since the last change as far as jobs wait, if anybody waits for them."""
        now = time.monotonic()
        if self._blocked and self._waiting:
            share = self._waiting / (self._waiting + self._working)
            self._counted_s += share * (now - self._since)
        self._since = now

    def _take(self) -> TextIO | None:
        """A core, as its locked file; None once this process ends its jobs."""
        # One of those that wait looks for a free core at a time.
        with open(self._directory / "gate.lock", "w", encoding="utf-8") as gate:
            while not self._ended:
                if _lock(gate) and (core := next(self._free_cores(), None)) is not None:
                    return core
                time.sleep(_POLL_S)
        return None


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
