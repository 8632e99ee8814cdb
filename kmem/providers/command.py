"""The `command` provider: any program that reads a prompt and prints an answer.

Such a program may be a coding agent's command line. The model is a shell command line. The
conversation goes to its standard input as text, one part per message under a line `# system`, `#
user` or `# assistant`; what it prints on standard output is the answer. It runs in the user's own
environment and directory, for it is the user's own program; keys belong into that environment, not
into the command line, which is archived.

Covered: a time limit, a limit on output, the whole process group is ended with it. Not covered:
token counts (there are none), temperature, effort and max_output_tokens beyond the limit on output:
the program has settings of its own.
"""

import os
import re
import subprocess
import tempfile
import threading
import time
from typing import BinaryIO

from kmem.errors import AnswerLost, Interrupted, ProviderError
from kmem.host.process_group import kill_group
from kmem.interfaces import Completion, Message, ModelRequest, Provider, StopReason
from kmem.providers.answer import BYTES_PER_TOKEN
from kmem.providers.keys import redact, redact_answer

#: How often a running program is looked at.
_LOOK_S = 0.02
#: Exit code of a shell that does not find a program. Source: POSIX.1-2017, Shell Command Language
#: 2.8.2.
_NOT_FOUND = 127
_PLAIN_WORD = re.compile(r"[\w./+~-]+")


class CommandProvider(Provider):
    """Runs a program per question; safe to use from several threads if the program is."""

    name = "command"
    counts_tokens = False

    def __init__(self) -> None:
        self._interrupted = threading.Event()

    def complete(self, request: ModelRequest) -> Completion:
        """Run the command and return what it prints.

        Raises:
            ProviderError: if the command line holds a key, is not found or fails.
            AnswerLost: if it takes longer than the request's timeout.
        """
        if redact(request.model) != request.model:
            raise ProviderError(
                "The command line holds a key, and it is archived; let the program read the key "
                "from the environment"
            )
        interrupted = self._interrupted
        limit = request.max_output_tokens * BYTES_PER_TOKEN
        with (
            tempfile.TemporaryFile() as question,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as complaints,
        ):
            question.write(render_conversation(request.messages).encode())
            question.seek(0)
            process = subprocess.Popen(
                request.model,
                shell=True,
                stdin=question,
                stdout=answer,
                stderr=complaints,
                start_new_session=True,
            )
            try:
                ran_on = self._wait(process, answer, limit, request, interrupted)
            finally:
                _end(process)
            answer.seek(0)
            text = redact_answer(answer.read(limit).decode("utf-8", errors="replace"))
            if process.returncode != 0 and not ran_on:
                complaints.seek(0)
                raise ProviderError(_failure(request.model, process.returncode, complaints.read()))
        return Completion(
            text, request.model, None, None, StopReason.LENGTH if ran_on else StopReason.END
        )

    def check(self, model: str, base_url: str | None = None) -> None:
        """See `Provider.check`: whether the shell knows the program that the line begins with."""
        words = model.split()
        if not words or not _PLAIN_WORD.fullmatch(words[0]):
            return  # an assignment, a quoted path: only the shell can tell
        found = subprocess.run(
            ["sh", "-c", 'command -v "$1"', "sh", words[0]], stdout=subprocess.DEVNULL, check=False
        )
        if found.returncode != 0:
            raise ProviderError(_failure(model, _NOT_FOUND, b""))

    def models(self, base_url: str | None = None) -> list[str]:
        """No names: any command line is a model of this provider."""
        return []

    def interrupt(self) -> None:
        """End every program now running."""
        interrupted, self._interrupted = self._interrupted, threading.Event()
        interrupted.set()

    def _wait(
        self,
        process: "subprocess.Popen[bytes]",
        answer: BinaryIO,
        limit: int,
        request: ModelRequest,
        interrupted: threading.Event,
    ) -> bool:
        """Wait for the end; whether the program printed more than `limit` bytes."""
        deadline = time.monotonic() + request.timeout_s
        while process.poll() is None:
            if interrupted.wait(_LOOK_S):
                raise Interrupted(f"Interrupted while `{_short(request.model)}` was answering")
            if time.monotonic() > deadline:
                raise AnswerLost(
                    f"`{_short(request.model)}` gave no answer within {request.timeout_s:.0f} s; "
                    "use a faster program or less effort"
                )
            if os.fstat(answer.fileno()).st_size > limit:
                return True
        return os.fstat(answer.fileno()).st_size > limit


def render_conversation(messages: tuple[Message, ...]) -> str:
    """The text a program gets: every message under a heading that names its role."""
    return "\n".join(f"# {message.role}\n\n{message.text.rstrip()}\n" for message in messages)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the program and what it started."""
    kill_group(process.pid)
    process.wait()


def _failure(command: str, code: int, complaints: bytes) -> str:
    lines = redact(complaints.decode("utf-8", errors="replace")).strip().splitlines()
    said = f": {' '.join(lines[-1].split())[:200]}" if lines else ""
    if code == _NOT_FOUND:
        return (
            f"`{_short(command)}` is not found{said}; correct the command line, or install the "
            "program"
        )
    return (
        f"`{_short(command)}` failed with exit code {code}{said}; try it by hand with a prompt on "
        "standard input"
    )


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 80 else line[:77] + "..."
