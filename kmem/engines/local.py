"""The executor of this machine: a process for each job."""

import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence

from kmem.engines.card import look_around
from kmem.engines.executor import (
    Began,
    Crew,
    Ended,
    Event,
    Executor,
    Failed,
    Job,
    JobResult,
    Joined,
    Node,
    Said,
    Wanted,
    Worker,
)
from kmem.engines.single_job import SingleJob
from kmem.errors import ExecutorError
from kmem.host.visible_gpus import visible_gpus

#: How long a job that is cancelled may take to write down where it stands.
GRACE_S = 20.0


class LocalExecutor(Executor):
    """Runs jobs on this machine. Covered and not covered: see `Executor`."""

    name = "local"

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job to its end or its time limit.

        Raises ExecutorError: if the directory cannot be written or the program is not there.
        """
        return SingleJob(job, timeout_s=timeout_s).run()

    def hire(self, wanted: Wanted, note: Callable[[str], None]) -> Crew:
        """A worker for each GPU that is wanted, and those without."""
        gpus = [] if wanted.gpus == 0 else visible_gpus(wanted.gpus)
        cpus = wanted.cpus if wanted.cpus is not None else int(not gpus)
        host = socket.gethostname()
        return LocalCrew(
            [
                *(Worker(f"gpu-{gpu}", host, gpu, wanted.jobs) for gpu in gpus),
                *(Worker(f"cpu-{number}", host) for number in range(cpus)),
            ]
        )

    def nodes(self, address: str = "auto") -> list[Node]:
        """This machine."""
        cores, gpus = len(os.sched_getaffinity(0)), len(visible_gpus(None))
        return [Node(socket.gethostname(), cores, gpus, look_around(gpus))]


class LocalCrew(Crew):
    """Threads of this process, each of which follows a job."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._jobs: dict[str, tuple[SingleJob, threading.Thread]] = {}
        for worker in workers:
            self._events.put(Joined(worker))

    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        single = SingleJob(
            at_worker(job, worker),
            timeout_s=timeout_s,
            on_line=lambda stream, text: self._events.put(Said(ticket, stream, text)),
            grace_s=GRACE_S,
        )
        thread = threading.Thread(target=self._follow, args=(ticket, single), daemon=True)
        self._jobs[ticket] = single, thread
        thread.start()

    def _follow(self, ticket: str, single: SingleJob) -> None:
        self._events.put(Began(ticket))
        try:
            self._events.put(Ended(ticket, single.run()))
        except ExecutorError as ex:
            self._events.put(Failed(ticket, str(ex)))

    def cancel(self, ticket: str) -> None:
        if ticket in self._jobs:
            self._jobs[ticket][0].cancel()

    def events(self, timeout_s: float) -> list[Event]:
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for event in found:
            if isinstance(event, Ended | Failed):
                self._jobs.pop(event.ticket, None)
        return found

    def close(self) -> None:
        for single, _ in self._jobs.values():
            single.cancel()
        for _, thread in self._jobs.values():
            thread.join()
        self._jobs.clear()


def at_worker(job: Job, worker: Worker) -> Job:
    """The job as a worker runs it: with its GPU, or with none."""
    environment = {"CUDA_VISIBLE_DEVICES": worker.gpu, **job.environment}
    return Job(job.argv, job.files, environment, job.inputs)
