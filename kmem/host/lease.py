"""One lease per GPU, so that no two processes time at once and no check disturbs a timing.

A lease is a file lock named after the GPU's UUID: a number would not do, for
`CUDA_VISIBLE_DEVICES` may give one card two numbers. Checks hold the lease shared, timing holds it
alone. The system releases the lease when its process ends, however that happens.

Who takes turns: the judges of candidates, the workers of baselines while Inductor tunes, and the
program that a profiler watches. A copy of this file is sent to the workers, which have no kmem, so
this file imports nothing of kmem.

Who ran out of device memory beside others holds the GPU alone with room: whoever steps aside for
that gives back the device memory that it merely keeps.

Not covered: programs other than kmem, and a database (hence cache directory) of another user; what
a process keeps that is in no check just now.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

#: Names the directory of the lock files to a job that runs elsewhere, in its environment.
DIRECTORY_VARIABLE = "KMEM_GPU_LOCKS"
#: Set to a word, has every hold written down beside the lock files, in files with that word in
#: their name: `kmem bench` tells from them how long each GPU was in use, and what for.
HOLDS_VARIABLE = "KMEM_GPU_HOLDS"
#: A pause that is longer does not count as a hold, in seconds.
_MOMENT_S = 0.01


class GpuLease:
    """The right to use one GPU.

    So far, in seconds: the GPU was held alone for `exclusive_s`, and others had it for `waited_s`
    while it was wanted here.
    """

    def __init__(
        self,
        directory: Path,
        gpu: str,
        on_wait: Callable[[str], None],
        give_room: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is held yet.

        Args:
            directory: where lock files go; the same for everyone who shares the GPU.
            gpu: the GPU's UUID.
            on_wait: told, in a sentence, whenever somebody else has the GPU.
            give_room: gives back the device memory that this process keeps and does not use.

        Raises OSError: if the lock files cannot be made.
        """
        directory.mkdir(parents=True, exist_ok=True)
        # held as long as the lease
        self._file = open(directory / f"gpu-{gpu}.lock", "w", encoding="utf-8")  # noqa: SIM115
        self._gate = open(directory / f"gpu-{gpu}.gate", "w", encoding="utf-8")  # noqa: SIM115
        self._room = open(directory / f"gpu-{gpu}.room", "w", encoding="utf-8")  # noqa: SIM115
        self._place = (directory, gpu)
        self._on_wait, self._give_room = on_wait, give_room
        self._mode, self._has_room = fcntl.LOCK_UN, False
        self._purpose, self._since = "", time.time()
        self.exclusive_s = self.waited_s = 0.0

    @contextmanager
    def hold(self, *, exclusive: bool, purpose: str) -> Iterator[None]:
        """Hold the GPU, shared or alone.

        May be nested: a GPU held alone stays held alone, and one held shared is held alone as long
        as the inner block lasts.

        Args:
            purpose: what it is held for, in a few words; an inner block that changes nothing
                about how the GPU is held belongs to the purpose of the outer one.
        """
        outer, outer_purpose = self._mode, self._purpose
        wanted = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        if outer in (wanted, fcntl.LOCK_EX):
            yield
            return
        self._write_down()
        if not self._has_room and self._is_room_wanted():
            self._give_room()  # before it is waited for
        self._lock(wanted)
        self._purpose, self._since = purpose, time.time()
        started = time.monotonic()
        try:
            yield
        finally:
            if exclusive:
                self.exclusive_s += time.monotonic() - started
            self._write_down()
            self._lock(outer)
            self._purpose, self._since = outer_purpose, time.time()

    @contextmanager
    def hold_with_room(self, purpose: str) -> Iterator[None]:
        """Hold the GPU alone; all who step aside for it, or wait, give device memory back."""
        outer = self._has_room
        try:
            fcntl.flock(self._room, fcntl.LOCK_SH)
            self._has_room = True
            self._give_room()
            with self.hold(exclusive=True, purpose=purpose):
                yield
        finally:
            self._has_room = outer
            if not outer:
                fcntl.flock(self._room, fcntl.LOCK_UN)

    def _is_room_wanted(self) -> bool:
        """Whether another lease is held with room, or waits to be."""
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._room, fcntl.LOCK_UN)
        return False

    def turn_to(self, purpose: str) -> None:
        """From now on the GPU is held for something else, until the block that holds it ends."""
        self._write_down()
        self._purpose, self._since = purpose, time.time()

    def _write_down(self, until: float | None = None) -> None:
        word = os.environ.get(HOLDS_VARIABLE)
        if not word or self._mode == fcntl.LOCK_UN:
            return
        directory, gpu = self._place
        alone = int(self._mode == fcntl.LOCK_EX)
        with open(directory / f"gpu-{gpu}.{word}.holds", "a", encoding="utf-8") as file:
            file.write(f"{self._since:.3f} {until or time.time():.3f} {alone} {self._purpose}\n")

    @property
    def place(self) -> tuple[str, str]:
        """Directory and UUID, with which another process can open the same lease."""
        return str(self._place[0]), self._place[1]

    def pause(self) -> None:
        """Let whoever waits to have the GPU alone go first.

        For the pause between two steps of a long check. Who holds the GPU with room gives back then
        what it keeps itself.
        """
        if self._has_room:
            self._give_room()
        if self._mode != fcntl.LOCK_SH:
            return
        if self._is_room_wanted():
            self._give_room()  # before whoever wants it goes ahead
        waited_s, paused = self.waited_s, time.time()
        # that a check steps aside for moments is no news
        self._lock(fcntl.LOCK_SH, on_wait=lambda text: None)
        if self.waited_s - waited_s > _MOMENT_S:
            self._write_down(until=paused)
            self._since = time.time()

    def __enter__(self) -> "GpuLease":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for file in (self._file, self._gate, self._room):
            file.close()

    def _lock(self, mode: int, on_wait: Callable[[str], None] | None = None) -> None:
        # The old lock is released before the new one is taken, so that two holders of a shared lock
        # who both want to be alone cannot wait for each other.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._mode = fcntl.LOCK_UN
        if mode == fcntl.LOCK_UN:
            return
        # Everyone passes the gate. Whoever waits to have the GPU alone keeps the gate shut, so that
        # processes that come later and would share the GPU cannot keep it waiting for ever.
        started = time.monotonic()
        try:
            for file in (self._gate, self._file):
                _wait_for(file, mode, on_wait or self._on_wait)
            self._mode = mode
        finally:  # also where a deadline ends the wait, or ended it just now
            if self._mode == fcntl.LOCK_UN:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self.waited_s += time.monotonic() - started


def _wait_for(file: TextIO, mode: int, on_wait: Callable[[str], None]) -> None:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait("waiting for the GPU: another kmem is measuring on it")
        fcntl.flock(file, mode)


def gpu_uuid() -> str:
    """The UUID of the first visible GPU, as nvidia-smi writes it."""
    import torch  # heavy; the lease itself needs only the standard library

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"
