"""One thread that reads the database for all pages.

A connection of SQLite belongs to the thread that opened it, and what a memory keeps in main memory
(the sums behind posteriors) is wanted once. So all pages are made in one thread, one after another;
each takes milliseconds. The connection writes nothing: `pragma query_only`.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kmem.memory.store import Memory

Answer = TypeVar("Answer")


class Reader:
    """Answers questions about a memory, whatever process writes to it meanwhile."""

    def __init__(self, path: Path) -> None:
        """Name the database; nothing is opened yet."""
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kmem-ui-reader")
        self._memory: Memory | None = None
        self._identity: tuple[int, int] | None = None

    async def ask(self, question: Callable[[Memory], Answer]) -> Answer:
        """What a question finds in the memory as it is now.

        Raises MemoryStoreError if the database cannot be read, and what the question raises.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self.answer, question)

    def answer(self, question: Callable[[Memory], Answer]) -> Answer:
        """The same, in the thread of the caller; for use where there is no other."""
        return question(self._open())

    def close(self) -> None:
        """End the thread, when it has answered what it was asked."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _open(self) -> Memory:
        """The open memory; opened again where the file is new, or another than before."""
        identity = _identity(self.path)
        if self._memory is not None and identity == self._identity:
            return self._memory
        self._close()
        memory = Memory.to_read(self.path)
        # what a new or migrated file lacks is written now; from here on nothing is
        memory.track_records.refresh()
        memory.contributors.trust()
        memory.storage.db.execute("pragma query_only = on")
        self._memory, self._identity = memory, identity
        return memory

    def _close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory = None


def data_version(memory: Memory) -> int:
    """A number that changes whenever another connection has written.

    Source: sqlite.org/pragma.html, data_version.
    """
    return int(memory.storage.read("pragma data_version")[0]["data_version"])


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
