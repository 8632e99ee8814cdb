"""Who may fill how much of one GPU's memory, so that judges do not run each other out of memory.

A judge asks for its share of the device memory before it puts anything on the card, and waits until
the share fits beside those of other processes and as much memory is free. Shares stand in a file
beside the GPU's lease, by process; the shares of processes that are gone do not count. A process
that is alone gets any share: the device itself says whether a problem fits at all.

Not covered: programs other than kmem.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from kmem.errors import ExecutorError

#: Part of the device memory that shares may fill; the rest is for CUDA contexts and fragmentation.
USABLE = 0.9
_POLL_S = 0.5


class MemoryShare:
    """One process's share of one GPU's memory; nothing is held until `acquire`."""

    def __init__(
        self,
        directory: Path,
        gpu: str,
        total_bytes: int,
        on_wait: Callable[[str], None],
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Nothing is held yet.

        Args:
            directory: where the GPU's lease lies too.
            gpu: the GPU's UUID.
            total_bytes: of device memory.
            on_wait: told, in a sentence, if there is no room yet.
            free_bytes: of device memory by now; others may fill more than their shares.

        Raises ExecutorError: if the file cannot be made.
        """
        self._path = directory / f"gpu-{gpu}.memory"
        self._usable = int(USABLE * total_bytes)
        self._on_wait = on_wait
        self._free_bytes = free_bytes or (lambda: total_bytes)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as ex:
            raise ExecutorError(
                f"Cannot make {self._path}: {ex}; free space there or choose another place with "
                f"KMEM_DB"
            ) from ex

    def acquire(self, nbytes: int) -> float:
        """Wait for room; returns the seconds it took.

        A share that this process already has is replaced.
        """
        started = time.monotonic()
        told = False
        while not self._try(nbytes):
            if not told:
                self._on_wait("waiting for memory on the GPU: another kmem has filled it")
                told = True
            time.sleep(_POLL_S)
        return time.monotonic() - started

    def release(self) -> None:
        """Give the share back; nothing happens if there is none."""
        self._update(lambda shares: shares.pop(str(os.getpid()), None))

    def is_shared(self) -> bool:
        """Whether other processes have a share by now."""
        return bool(self._update(lambda shares: shares.keys() - {str(os.getpid())}))

    def _try(self, nbytes: int) -> bool:
        def enter(shares: dict[str, int]) -> bool:
            shares.pop(str(os.getpid()), None)
            fits = sum(shares.values()) + nbytes <= self._usable and nbytes <= self._free_bytes()
            fits = fits or not shares
            if fits:
                shares[str(os.getpid())] = nbytes
            return fits

        return bool(self._update(enter))

    def _update(self, change: Callable[[dict[str, int]], object]) -> object:
        try:
            return self._change(change)
        except OSError as ex:
            raise ExecutorError(
                f"Cannot write {self._path}: {ex}; free space there or choose another place with "
                f"KMEM_DB"
            ) from ex

    def _change(self, change: Callable[[dict[str, int]], object]) -> object:
        with open(self._path, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                shares = json.loads(file.read() or "{}")
            except json.JSONDecodeError:  # the process that wrote the file was killed half-way
                shares = {}
            shares = {process: size for process, size in shares.items() if _is_alive(int(process))}
            result = change(shares)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(shares))
        return result


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's, but alive
        return True
    return True
