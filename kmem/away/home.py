"""The database of the process that asks: copies for workers, and what they tell taken in.

One thread uses a home, the one that hears the workers: no other process and no worker writes.
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmem.away.request import SKILLS
from kmem.bench.utilisation import Hold
from kmem.memory.location import added_skills_root
from kmem.memory.store import Memory
from kmem.memory.team.carried import copy_memory, take_news

#: A copy that is given to workers is at most so old.
_FRESH_S = 60.0


class Home:
    """A memory as workers see it."""

    def __init__(self, directory: Path, path: Path | None = None) -> None:
        """Nothing is opened yet.

        Args:
            directory: for the copies.
            path: of the database; None: the user's.
        """
        self._directory = directory
        self._path = path
        self._memory: Memory | None = None
        self._copied_at = -_FRESH_S
        self._copies = 0
        #: Under this word workers write down when their GPUs were held.
        self.holds_word = f"away-{secrets.token_hex(4)}"
        self.holds: dict[str, list[Hold]] = {}

    @property
    def memory(self) -> Memory:
        """Opened by the thread that first asks."""
        if self._memory is None:
            self._memory = Memory(self._path)
        return self._memory

    def copy(self, *, fresh: bool = False) -> Path:
        """A copy of the database for a worker; earlier copies are removed: they are handed over.

        Args:
            fresh: with all that was told until now.
        """
        now = time.monotonic()
        if fresh or now - self._copied_at >= _FRESH_S:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._copies, self._copied_at = self._copies + 1, now
            copy_memory(self.memory, self._place(self._copies))
            self._place(self._copies - 1).unlink(missing_ok=True)
        return self._place(self._copies)

    def _place(self, number: int) -> Path:
        return self._directory / f"memory-{number}.db"

    def skills(self) -> dict[str, Path]:
        """The files of the skills that the user added, by their place with a worker."""
        root = added_skills_root(self.memory.path)
        files = (path for path in root.rglob("*") if path.is_file())
        return {f"{SKILLS}/{path.relative_to(root).as_posix()}": path for path in files}

    def take(self, news: str, out_dir: Path, problem: Path) -> str | None:
        """Take in what a worker told; the id of the run that it is about."""
        return take_news(self.memory, news, out_dir, problem)

    def note_holds(self, gpu: str, holds: Sequence[Sequence[Any]]) -> None:
        """Keep when a GPU was held, as a worker tells it at the end of each run.

        Runs that shared a GPU tell of each other's holds; each counts once.
        """
        told = (Hold(*hold) for hold in holds)
        self.holds[gpu] = list(dict.fromkeys([*self.holds.get(gpu, ()), *told]))

    def close(self) -> None:
        """Close the database and remove the copies; by the thread that opened it."""
        if self._memory is not None:
            self._memory.close()
        self._place(self._copies).unlink(missing_ok=True)
