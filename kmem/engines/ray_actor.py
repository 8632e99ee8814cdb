"""What runs in a worker process of Ray: jobs, whose lines and results it tells as they come.

It holds no candidate's code: each job is a process of its own, which ends with this one.
"""

import os
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kmem.engines.executor import Job, JobResult, Worker
from kmem.engines.local import GRACE_S, at_worker
from kmem.engines.single_job import SingleJob
from kmem.errors import ExecutorError

#: Lines are told together where they come at once.
_GATHER_S = 0.05


class Told(NamedTuple):
    """What is told of a job: that it `began`, what it `said`, or that it `ended` or `failed`."""

    kind: str
    lines: tuple[tuple[str, str], ...] = ()  # each with its stream
    result: JobResult | None = None
    reason: str = ""


class JobActor:
    """A worker of a crew. Ray starts it, one for each GPU, and restarts it elsewhere."""

    def __init__(self, worker: Worker) -> None:
        self._worker = replace(
            worker,
            host=socket.gethostname(),
            gpu=os.environ.get("CUDA_VISIBLE_DEVICES", "") if worker.gpu else "",
        )
        self._jobs: dict[str, SingleJob] = {}
        self._cancelled: set[str] = set()

    def where(self) -> Worker:
        """The worker with its host and its GPU."""
        return self._worker

    def process(self) -> int:
        """The process id, for tests."""
        return os.getpid()

    def run(
        self, ticket: str, job: Job, timeout_s: float, names: Sequence[str], *contents: bytes
    ) -> Iterator[Told]:
        """Run a job, telling how it goes.

        Args:
            names: of the job's inputs, whose contents follow.
        """
        if ticket in self._cancelled:
            yield Told("failed", reason="cancelled before it began")
            return
        place = Path(tempfile.mkdtemp(prefix="kmem-inputs-"))
        try:
            inputs = {name: place / str(number) for number, name in enumerate(names)}
            for name, content in zip(names, contents, strict=True):
                inputs[name].write_bytes(content)
            yield from self._follow(ticket, replace(job, inputs=inputs), timeout_s)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _follow(self, ticket: str, job: Job, timeout_s: float) -> Iterator[Told]:
        lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        single = SingleJob(
            at_worker(job, self._worker),
            timeout_s=timeout_s,
            on_line=lambda stream, text: lines.put((stream, text)),
            grace_s=GRACE_S,
        )
        self._jobs[ticket] = single
        ended: list[JobResult | ExecutorError] = []

        def work() -> None:
            try:
                ended.append(single.run())
            except ExecutorError as ex:
                ended.append(ex)

        thread = threading.Thread(target=work)
        thread.start()
        yield Told("began")
        while thread.is_alive() or not lines.empty():
            thread.join(_GATHER_S)
            found = []
            while not lines.empty():
                found.append(lines.get())
            if found:
                yield Told("said", tuple(found))
        self._jobs.pop(ticket, None)
        if isinstance(ended[0], ExecutorError):
            yield Told("failed", reason=str(ended[0]))
        else:
            yield Told("ended", result=ended[0])

    def cancel(self, ticket: str) -> None:
        """End a job, or do not begin it."""
        self._cancelled.add(ticket)
        if ticket in self._jobs:
            self._jobs[ticket].cancel()
