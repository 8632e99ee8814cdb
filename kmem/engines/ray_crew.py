"""The executor of a Ray cluster: one actor for each GPU, and one for each core that is wanted.

Ray places the actors, restarts them where there is room, carries the files of jobs to their nodes
before their turn comes, and says which actor is gone. Every node needs the same kmem.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    Lost,
    Node,
    Said,
    Wanted,
    Worker,
)
from kmem.engines.ray_actor import JobActor
from kmem.errors import ExecutorError, first_line

#: Calls that end a job wait for no job to end.
_CONTROL = "control"
#: Files that are kept in the cluster for further jobs, such as a copy of the memory.
_KEPT_FILES = 4
#: How long a node may take to say what it has.
_NODE_S = 60.0
#: How long a crew waits for its first worker.
_FIRST_WORKER_S = 120.0


class RayExecutor(Executor):
    """Runs jobs on the nodes of a Ray cluster."""

    name = "ray"

    def unavailable_reason(self, address: str = "auto") -> str | None:
        try:
            import ray  # noqa: F401 - heavy, and an extra
        except ImportError:
            return "Ray is not installed; pip install 'kmem[ray]' here and on every node"
        return None

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job on a core of the cluster that runs here, or of one that is started for it."""
        with self.hire(Wanted(gpus=0, cpus=1, address="any"), lambda text: None) as crew:
            return run_single(crew, job, timeout_s)

    def hire(self, wanted: Wanted, note: Callable[[str], None]) -> Crew:
        import ray  # heavy, and an extra

        was_connected = ray.is_initialized()
        connect(wanted.address, wanted)
        try:
            room = ray.cluster_resources()
            gpus = int(room.get("GPU", 0)) if wanted.gpus is None else wanted.gpus
            cpus = int(room.get("CPU", 0)) if wanted.cpus is None else wanted.cpus
            if gpus > room.get("GPU", 0):
                raise ExecutorError(
                    f"The Ray cluster has {room.get('GPU', 0):g} GPUs, not {gpus}; lower --gpus"
                )
            workers = [
                *(Worker(f"gpu-{n}", gpu="any", at_once=wanted.jobs, ahead=1) for n in range(gpus)),
                *(Worker(f"cpu-{n}", ahead=1) for n in range(cpus)),
            ]
            if not workers:
                raise ExecutorError("The Ray cluster has no room; start a node with ray start")
            return RayCrew(workers, shuts_down=not was_connected)
        except BaseException:
            if not was_connected:
                ray.shutdown()
            raise

    def nodes(self, address: str = "auto") -> list[Node]:
        import ray  # heavy, and an extra

        was_connected = ray.is_initialized()
        connect(address, Wanted())
        try:
            return [_ask_node(node) for node in ray.nodes() if node["Alive"]]
        finally:
            if not was_connected:
                ray.shutdown()


def connect(address: str, wanted: Wanted) -> None:
    """Join a cluster, or start one on this machine.

    Raises:
        ExecutorError: if there is none at the address.
    """
    import ray  # heavy, and an extra

    if ray.is_initialized():
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "local":
        try:
            ray.init(address=None if address == "any" else address, **quiet)
            return
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as ex:
            raise ExecutorError(
                f"No Ray cluster at {address} ({first_line(ex)}); start one with ray start --head, "
                "or give --address local"
            ) from ex
    ray.init(
        address="local",
        num_cpus=max(wanted.cpus or 0, wanted.gpus or 0) or None,
        include_dashboard=False,
        **quiet,
    )


class RayCrew(Crew):
    """Actors with the streams of what they tell."""

    def __init__(self, workers: list[Worker], *, shuts_down: bool) -> None:
        """Have the actors placed.

        Args:
            shuts_down: whether the connection to the cluster ends with the crew.
        """
        import ray  # heavy, and an extra

        self._ray = ray
        self._shuts_down = shuts_down
        self._actors = {worker.id: self._place(worker) for worker in workers}
        self._expected = {
            actor.where.remote(): name for name, actor in self._actors.items()
        }  # workers that come up, by the answer that is awaited
        self._streams: dict[Any, tuple[str, str]] = {}  # stream: worker, ticket
        self._workers: dict[str, str] = {}  # of a ticket
        self._files: dict[tuple[str, int, int], Any] = {}
        self._opened_at = time.monotonic()
        self._closed = False

    def _place(self, worker: Worker) -> Any:
        actor = self._ray.remote(
            num_gpus=1 if worker.gpu else 0,
            num_cpus=0 if worker.gpu else 1,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=worker.at_once,
            concurrency_groups={_CONTROL: 2},
        )(JobActor)
        return actor.remote(worker)

    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        names = list(job.inputs)
        contents = [self._put(job.inputs[name]) for name in names]
        bare = Job(job.argv, job.files, job.environment)
        run = self._actors[worker.id].run.options(num_returns="streaming")
        stream = run.remote(ticket, bare, timeout_s, names, *contents)
        self._streams[stream] = worker.id, ticket
        self._workers[ticket] = worker.id

    def _put(self, file: Path) -> Any:
        """A file's content in the cluster, once for all jobs."""
        stat = file.stat()
        key = str(file), stat.st_mtime_ns, stat.st_size
        if key not in self._files:
            while len(self._files) >= _KEPT_FILES:
                del self._files[next(iter(self._files))]
            self._files[key] = self._ray.put(file.read_bytes())
        return self._files[key]

    def cancel(self, ticket: str) -> None:
        if ticket in self._workers:
            actor = self._actors[self._workers[ticket]]
            actor.cancel.options(concurrency_group=_CONTROL).remote(ticket)

    def events(self, timeout_s: float) -> list[Event]:
        waiting = [*self._expected, *self._streams]
        if not waiting:
            time.sleep(timeout_s)
            return []
        found: list[Event] = []
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if ready and len(waiting) > 1:
            ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for one in ready:
            if one in self._expected:
                found += self._welcome(one)
            elif one in self._streams:  # not of a worker that was found lost just now
                found += self._hear(one)
        if not found and len(self._expected) == len(self._actors):
            self._refuse_to_wait()
        return found

    def _welcome(self, answer: Any) -> list[Event]:
        name = self._expected.pop(answer)
        try:
            return [Joined(self._ray.get(answer))]
        except self._ray.exceptions.RayError:
            self._expect_again(name)
            return []

    def _hear(self, stream: Any) -> list[Event]:
        worker, ticket = self._streams[stream]
        try:
            told = self._ray.get(next(stream))
        except StopIteration:
            del self._streams[stream]
            self._workers.pop(ticket, None)
            return []
        except self._ray.exceptions.RayError as ex:  # what it told went with its node
            return self._lose(worker, ex)
        if told.kind == "began":
            return [Began(ticket)]
        if told.kind == "said":
            return [Said(ticket, name, text) for name, text in told.lines]
        return [Ended(ticket, told.result) if told.result else Failed(ticket, told.reason)]

    def _lose(self, worker: str, error: Exception) -> list[Event]:
        for stream, (name, ticket) in list(self._streams.items()):
            if name == worker:
                del self._streams[stream]
                self._workers.pop(ticket, None)
        self._expect_again(worker)
        return [Lost(worker, _reason(error))]

    def _expect_again(self, worker: str) -> None:
        """Ray restarts the actor where there is room; its answer says that it is there."""
        self._expected[self._actors[worker].where.remote()] = worker

    def _refuse_to_wait(self) -> None:
        """Raise if no worker comes up: there is no room, and nobody would say so."""
        if time.monotonic() - self._opened_at > _FIRST_WORKER_S:
            raise ExecutorError(
                f"No worker of the Ray cluster came up in {_FIRST_WORKER_S:g} s; is it used by "
                "others? ray status says what is taken"
            )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # what jobs committed is here already, so that nothing is asked of them; a job ends with the
        # process of its actor
        for actor in self._actors.values():
            self._ray.kill(actor, no_restart=True)
        if self._shuts_down:
            self._ray.shutdown()


def _reason(error: Exception) -> str:
    """Why an actor is gone, in one line."""
    text = " ".join(str(error).split())
    detail = text.partition("exit detail:")[2] or text
    return detail.strip().split(". ")[0][:200]


def run_single(crew: Crew, job: Job, timeout_s: float) -> JobResult:
    """Run one job on the first worker that comes up.

    Raises:
        ExecutorError: if the machine failed at it.
    """
    while True:
        for event in crew.events(1.0):
            if isinstance(event, Joined):
                crew.start(event.worker, "single", job, timeout_s=timeout_s)
            elif isinstance(event, Ended):
                return event.result
            elif isinstance(event, Failed):
                raise ExecutorError(event.reason)
            elif isinstance(event, Lost):
                raise ExecutorError(f"Worker {event.worker} is lost: {event.reason}; run again")


def _ask_node(node: dict[str, Any]) -> Node:
    """What a node has, asked of a process there."""
    import ray  # heavy, and an extra
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    room, host = node["Resources"], node["NodeManagerHostname"]
    cores, gpus = int(room.get("CPU", 0)), int(room.get("GPU", 0))
    there = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    ask = ray.remote(num_cpus=0, scheduling_strategy=there)(look_around)
    try:
        facts = ray.get(ask.remote(gpus), timeout=_NODE_S)
    except (ray.exceptions.RayError, ImportError) as ex:
        return Node(host, cores, gpus, {}, f"no answer: {first_line(ex)[:200]}")
    return Node(host, cores, gpus, facts)
