"""The directory that shared memory lies in, in a memory file system if that has room.

A judge that is killed cannot clean up, and what it leaves in /dev/shm takes memory until the next
boot. So each directory holds a locked file for as long as its judge lives, and every judge removes
the directories whose lock is free before it makes its own.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "kmem-"
_LOCK = "judge.lock"
#: Docker gives a container 64 MiB of /dev/shm: below this the work directory is used, slower but
#: large. Source: docker run --shm-size.
_ENOUGH_BYTES = 2**30


class SharedDirectory:
    """`path` exists until `close`, or until the next judge starts after this one was killed."""

    def __init__(self, fallback: Path, root: Path = _MEMORY) -> None:
        """Make it under `root` if that is a directory with room, else under `fallback`.

        What killed judges left in `root` is reaped first.
        """
        usable = root.is_dir() and os.access(root, os.W_OK)
        if usable:
            reap(root)
        parent = root if usable and shutil.disk_usage(root).free >= _ENOUGH_BYTES else fallback
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # under its name only once it is locked, so that no other judge reaps it in between
        unlocked = self.path / "unlocked"
        # held as long as the directory
        self._lock = open(unlocked, "w", encoding="utf-8")  # noqa: SIM115
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / _LOCK)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def reap(root: Path) -> None:
    """Remove directories of judges that no longer live."""
    for lock_path in root.glob(f"{_PREFIX}*/{_LOCK}"):
        # another user's, or reaped by another judge meanwhile
        with suppress(OSError), open(lock_path, "r+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)
