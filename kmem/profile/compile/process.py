"""One compile process (worker.py): its start, its channel of JSON lines, its end."""

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kmem.errors import ProblemError, ProfilerError
from kmem.host.confinement import hide_memory
from kmem.host.environment import scrubbed_environment
from kmem.host.process_group import kill_group

logger = logging.getLogger(__name__)

#: How long a worker may take to import torch and build the problem's inputs on meta.
START_TIMEOUT_S = 120.0


class CompileProcess:
    """One compile process and its channel.

    The first question starts it if `start` did not; it is started again after a crash or a hang,
    and never after `end`. One thread asks; another may `end` it meanwhile.
    """

    def __init__(self, directory: Path, cache_dir: Path, niceness: int) -> None:
        self._directory = directory
        self._cache_dir = cache_dir
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._setup: str | None = None  # of the problem it is set up for
        self._place: Path | None = None  # the directory of that problem
        self._errors: Path | None = None
        self._buffer = b""
        self._ended = False
        self._lock = threading.Lock()  # between making a process and ending for good

    def ask(
        self,
        setup: str,
        question: str,
        timeout_s: float,
        lend: Callable[[int], AbstractContextManager[int]],
    ) -> dict[str, Any]:
        """Send one line and wait for its answer.

        A crash or a hang is an answer with status failed.

        Args:
            lend: lets the process use more cores until it answers, at most so many; how many.
        """
        if self._process is None:
            self.start()
        if setup != self._setup:
            place = Path(json.loads(setup)["problem"]["path"]).parent
            if self._place not in (None, place):  # which is all that it may still read
                self.stop()
                self.start()
            self._set_up(setup)
            self._place = place
        started = time.monotonic()
        answer = self._exchange(question, timeout_s)
        if answer is not None and "wanted_cores" in answer:
            with lend(answer["wanted_cores"]) as cores:
                left_s = started + timeout_s - time.monotonic()
                answer = self._exchange(json.dumps({"cores": cores}), left_s)
        if answer is not None:
            return answer
        seconds = time.monotonic() - started
        reason = "the compile process died"
        if seconds >= timeout_s:
            reason = f"compiling took longer than {timeout_s:g} s"
        log = f"{reason}\n{self._error_tail()}".strip()
        self.stop()
        return {"status": "failed", "log": log, "seconds": seconds}

    def start(self) -> None:
        """Start the process, which imports what it needs before it reads the first question.

        Raises:
            ProfilerError: if it was ended.
        """
        writes = (self._directory, self._cache_dir)  # all else is closed to it
        environment = scrubbed_environment(
            {
                "TRITON_CACHE_DIR": str(self._cache_dir),
                "CUDA_VISIBLE_DEVICES": "",
                "TMPDIR": str(self._directory),
                "PYTHONUNBUFFERED": "1",
            }
        )
        # the interpreter would run the kernels instead of compiling them
        environment.pop("TRITON_INTERPRET", None)
        # coverage would take a third more of its time, and what it counts is lost with the process
        environment.pop("COVERAGE_PROCESS_CONFIG", None)
        environment["OMP_NUM_THREADS"] = "1"  # one process per core
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        hide_memory()
        handle, name = tempfile.mkstemp(dir=self._directory, suffix=".stderr")
        self._errors = Path(name)
        self._buffer = b""
        with os.fdopen(handle, "wb") as errors, self._lock:
            if self._ended:
                raise ProfilerError("The compile processes were ended")
            self._process = subprocess.Popen(
                # -P: the directory that kmem was started in may hold a module named queue
                [sys.executable, "-P", "-m", "kmem.profile.compile.worker", *map(str, writes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        if self._niceness:
            os.setpriority(
                os.PRIO_PROCESS,
                self._process.pid,
                os.getpriority(os.PRIO_PROCESS, 0) + self._niceness,
            )

    def _set_up(self, setup: str) -> None:
        answer = self._exchange(setup, START_TIMEOUT_S)
        if answer is None or answer["status"] != "ready":
            log = answer["log"] if answer else self._error_tail()
            self.stop()
            raise ProblemError(
                "The problem cannot be set up on the meta device: "
                f"{(log.strip().splitlines() or ['no message'])[-1]}; see kmem doctor"
            )
        self._setup = setup

    def _exchange(self, line: str, timeout_s: float) -> dict[str, Any] | None:
        process = self._process
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        deadline = time.monotonic() + timeout_s
        output = process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())
            ready = select.select([output], [], [], left_s)[0]
            block = os.read(output, 1 << 20) if ready else b""
            if not block:
                return None
            self._buffer += block
        end = self._buffer.index(b"\n") + 1
        answer = self._buffer[:end]
        self._buffer = self._buffer[end:]
        return json.loads(answer)

    def _error_tail(self) -> str:
        with self._errors.open("rb") as file:
            file.seek(max(0, self._errors.stat().st_size - 4000))
            return file.read().decode(errors="replace")

    def end(self) -> None:
        """Kill the process for good; a thread that waits for its answer gets none.

        Its pipes stay open until `stop`, for that thread may be waiting on them.
        """
        with self._lock:
            self._ended = True
            if self._process is not None:
                kill_group(self._process.pid)

    def stop(self) -> None:
        """Kill the process and its children (ptxas); the next question starts another."""
        with self._lock:
            process = self._process
            self._process = None
            self._setup = self._place = None
        if process is None:
            return
        kill_group(process.pid)
        process.wait()
        process.stdin.close()
        process.stdout.close()
