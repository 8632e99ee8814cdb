"""One job, followed to its end.

Each job gets a fresh directory, a process group of its own, a time limit, an environment without
secrets, and a cap on the output that is kept.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kmem.engines.executor import Job, JobResult
from kmem.errors import ExecutorError
from kmem.host.environment import scrubbed_environment
from kmem.host.process_group import kill_group

#: Most bytes kept of each output stream: a kernel's error log can be endless, and its head and tail
#: say what happened.
OUTPUT_LIMIT = 2 * 2**20
#: Most bytes read back from one file under out/.
FILE_LIMIT = 64 * 2**20
#: Most characters of a line that is passed on while the job runs.
_LINE_LIMIT = 16 * 2**20
#: How often it is looked whether a job was cancelled; its end is seen ten times as soon. Following
#: 32 jobs takes 2% of a core so, and 7% at 0.05 s.
_POLL_S = 0.5
_WARDEN = Path(__file__).with_name("warden.py")


class SingleJob:
    """A job of which another thread may say that it is to end."""

    def __init__(
        self,
        job: Job,
        *,
        timeout_s: float,
        on_line: Callable[[str, str], None] | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Nothing is started yet.

        Args:
            on_line: told the stream and the text of each line, from another thread.
            grace_s: how long a job that is cancelled, or at its limit, may take to end by itself.
        """
        self._job = job
        self._timeout_s = timeout_s
        self._on_line = on_line
        self._grace_s = grace_s
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Have the job end; one that has not begun ends the moment it begins."""
        self._cancelled.set()

    def run(self) -> JobResult:
        """Run to the end or the time limit.

        Raises:
            ExecutorError: if the directory cannot be written or the program is not there.
        """
        program = self._job.argv[0]
        try:
            with tempfile.TemporaryDirectory(
                prefix="kmem-job-", ignore_cleanup_errors=True
            ) as place:
                return self._run_in(Path(place))
        except OSError as ex:
            raise ExecutorError(
                f"Cannot run {program} in {tempfile.gettempdir()}: {ex}; check the program and the "
                "disk"
            ) from ex

    def _run_in(self, directory: Path) -> JobResult:
        job = self._job
        (directory / "out").mkdir()
        for name, text in job.files.items():
            _make_room(directory / name).write_text(text, encoding="utf-8")
        for name, source in job.inputs.items():
            shutil.copyfile(source, _make_room(directory / name))
        environment = scrubbed_environment(job.environment)
        argv = [sys.executable if word == "python" else word for word in job.argv]
        program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
        if program is None:
            raise FileNotFoundError(f"no program {argv[0]}")
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WARDEN), program, *argv[1:]],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        outputs = {name: _Tail(OUTPUT_LIMIT, name, self._on_line) for name in streams}
        readers = [
            threading.Thread(target=outputs[name].drain, args=(pipe,), daemon=True)
            for name, pipe in streams.items()
        ]
        for reader in readers:
            reader.start()
        try:
            exit_code = self._wait(process, start + self._timeout_s)
        finally:
            # Also after a normal exit: children of the job must not outlive it and hold the GPU.
            kill_group(process.pid)
            process.wait()
        for reader in readers:
            # a grandchild that left the group may still hold the pipe; nobody waits for its output
            reader.join(timeout=5)
        process.stdin.close()
        seconds = time.monotonic() - start
        texts = [outputs[name].text() for name in ("stdout", "stderr")]
        return JobResult(exit_code, texts[0], texts[1], _read_files(directory / "out"), seconds)

    def _wait(self, process: subprocess.Popen[bytes], deadline: float) -> int | None:
        """The exit code; None if the job is still there, or was told to end at its limit."""
        late, told = False, False
        while True:
            try:
                code = process.wait(timeout=min(_POLL_S, max(0.0, deadline - time.monotonic())))
                return None if late else code
            except subprocess.TimeoutExpired:
                pass
            over = time.monotonic() >= deadline
            if not over and (told or not self._cancelled.is_set()):
                continue
            if told or self._grace_s <= 0:
                return None
            late, told = over, True
            process.send_signal(signal.SIGINT)
            end = time.monotonic() + self._grace_s
            deadline = end if over else min(deadline, end)


def _make_room(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


class _Tail:
    """Keeps the first and last halves of a stream, counts what lies between, passes lines on."""

    def __init__(self, limit: int, stream: str, on_line: Callable[[str, str], None] | None) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._stream = stream
        self._on_line = on_line
        self._line = bytearray()

    def drain(self, pipe: BinaryIO) -> None:
        """Read to the end; never blocks the writer."""
        read: Callable[[int], bytes] = pipe.read1  # type: ignore[attr-defined]
        with pipe:
            while block := read(65536):
                self._keep(block)
                self._pass_on(block)
        if self._line:
            self._pass_on(b"\n")

    def _keep(self, block: bytes) -> None:
        room = self._half - len(self._head)
        self._head += block[:room] if room > 0 else b""
        self._tail += block[room:] if room > 0 else block
        if len(self._tail) > 2 * self._half:
            self._dropped += len(self._tail) - self._half
            del self._tail[: -self._half]

    def _pass_on(self, block: bytes) -> None:
        if self._on_line is None:
            return
        *lines, rest = (bytes(self._line) + block).split(b"\n")
        self._line = bytearray(rest[-_LINE_LIMIT:])
        for line in lines:
            self._on_line(self._stream, line.decode("utf-8", errors="replace"))

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
