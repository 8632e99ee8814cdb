"""Processes of tools/check_shipped.py's own: each does a part of its work beside the others."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shipped_kernels import GPU

#: With less time left no further process is started.
LEAST_SECONDS = 5.0
_SCRIPT = Path(__file__).with_name("check_shipped.py")


def ask(worker: str, *words: str, ends: float) -> Any:
    """What a process answers; a row that says why there is no answer."""
    left = ends - time.monotonic()
    if left < LEAST_SECONDS:
        return {"late": "no time was left"}
    try:
        done = subprocess.run(
            _command(worker, words),
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"late": "stopped at the end of its time"}
    if done.returncode:
        return _failure(done.returncode, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


class Conversation:
    """A process that answers in lines, and goes on when it is told to.

    A context manager; the process ends with it.
    """

    def __init__(self, worker: str, *words: str) -> None:
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - until the end
        self._process = subprocess.Popen(
            _command(worker, words),
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._is_ended = False
        self.answers = self._read()

    def _read(self) -> Iterator[dict[str, Any]]:
        for line in self._process.stdout:
            if line.startswith("{"):  # compilers print, too
                yield json.loads(line)

    def go_on(self) -> None:
        """Let it answer what it was asked to wait with; nothing if it has ended."""
        with suppress(OSError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def failure(self) -> dict[str, str]:
        """Why a process failed that has no more answers; empty if it did not, or was ended here."""
        status = self._process.wait()
        if self._is_ended or not status:
            return {}
        self._said.seek(0)
        return _failure(status, self._said.read())

    def end(self) -> None:
        """Whatever it does."""
        self._is_ended = True
        self._process.kill()

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
        self._process.wait()
        self._said.close()


@contextmanager
def ended_at(ends: float, asked: Sequence[Conversation]) -> Iterator[None]:
    """Meanwhile end every process at a moment (of time.monotonic)."""

    def end_all() -> None:
        for each in asked:
            each.end()

    timer = threading.Timer(ends - time.monotonic(), end_all)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _command(worker: str, words: Sequence[str]) -> list[str]:
    dry = () if GPU else ("--dry",)
    return [sys.executable, str(_SCRIPT), "worker", worker, *words, *dry]


def _environment() -> dict[str, str]:
    return {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # processes are enough


def _failure(status: int, said: str) -> dict[str, str]:
    """What is told of a process that failed: its status, of a signal below 0, and its last line."""
    return {"worker": f"FAILED(it ended with {status}: {said.strip().splitlines()[-1:]})"}
