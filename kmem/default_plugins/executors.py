"""The `local` executor: runs jobs on this machine.

Each job gets a fresh directory, a process group of its own, a time limit, an environment without
secrets, and a cap on its output.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kmem import hookimpl
from kmem.errors import ExecutorError
from kmem.host.environment import scrubbed_environment
from kmem.host.process_group import kill_group
from kmem.interfaces import Executor, Job, JobResult

#: Most bytes kept of each output stream: a kernel's error log can be endless, and its head and tail
#: say what happened.
OUTPUT_LIMIT = 2 * 2**20
#: Most bytes read back from one file under out/.
FILE_LIMIT = 64 * 2**20


class LocalExecutor(Executor):
    """Runs jobs on this machine.

    The word `python` in argv means this interpreter. Covered and not covered: see `Executor`.
    """

    name = "local"

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job to its end or its time limit.

        Raises ExecutorError: if the directory cannot be written or the program is not there.
        """
        try:
            with tempfile.TemporaryDirectory(
                prefix="kmem-job-", ignore_cleanup_errors=True
            ) as place:
                return _run_in(Path(place), job, timeout_s)
        except OSError as ex:
            raise ExecutorError(
                f"Cannot run {job.argv[0]} in {tempfile.gettempdir()}: {ex}; check the program and "
                f"the disk"
            ) from ex


def _run_in(directory: Path, job: Job, timeout_s: float) -> JobResult:
    (directory / "out").mkdir()
    for name, text in job.files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    argv = [sys.executable if word == "python" else word for word in job.argv]
    start = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=directory,
        env=scrubbed_environment(job.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    outputs = [_Tail(OUTPUT_LIMIT), _Tail(OUTPUT_LIMIT)]
    readers = [
        threading.Thread(target=tail.drain, args=(pipe,), daemon=True)
        for tail, pipe in zip(outputs, (process.stdout, process.stderr), strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        exit_code: int | None = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        exit_code = None
    finally:
        # Also after a normal exit: children of the job must not outlive it and hold the GPU.
        kill_group(process.pid)
        process.wait()
    for reader in readers:
        # a grandchild that left the group may still hold the pipe; nobody waits for its output
        reader.join(timeout=5)
    seconds = time.monotonic() - start
    return JobResult(
        exit_code, outputs[0].text(), outputs[1].text(), _read_files(directory / "out"), seconds
    )


class _Tail:
    """Keeps the first and last halves of a stream and counts what lies between."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def drain(self, pipe: BinaryIO) -> None:
        """Read to the end; never blocks the writer."""
        read: Callable[[int], bytes] = pipe.read1
        while block := read(65536):
            room = self._half - len(self._head)
            self._head += block[:room] if room > 0 else b""
            self._tail += block[room:] if room > 0 else block
            if len(self._tail) > 2 * self._half:
                self._dropped += len(self._tail) - self._half
                del self._tail[: -self._half]

    def text(self) -> str:
        """What was kept, with a line that says how much was not."""
        tail = bytes(self._tail[-self._half :])
        dropped = self._dropped + len(self._tail) - len(tail)
        middle = f"\n[{dropped} bytes left out]\n".encode() if dropped else b""
        return (bytes(self._head) + middle + tail).decode("utf-8", errors="replace")


def _read_files(directory: Path) -> dict[str, bytes]:
    found = {}
    for file in sorted(directory.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= FILE_LIMIT:
            found[file.relative_to(directory).as_posix()] = file.read_bytes()
    return found


@hookimpl
def register_executors(register: Callable[[Executor], None]) -> None:
    """The local machine."""
    register(LocalExecutor())
