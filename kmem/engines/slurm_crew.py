"""The executor of a Slurm cluster: submitit makes the batch scripts, Slurm places their arrays.

Slurm's own queue is the worker here: it takes as many jobs as an array may have, and begins them in
their order, so many at once. What a job tells goes through files in a directory that all nodes
share, so that nothing but Slurm needs to reach a node.
"""

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

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
from kmem.engines.local import GRACE_S
from kmem.engines.ray_crew import run_single
from kmem.engines.single_job import SingleJob
from kmem.errors import ExecutorError, first_line

#: Jobs of one array. Source: slurm.conf(5), MaxArraySize is 1001 unless set.
_ARRAY = 1000
#: Beyond a job's own limit, for its files and for Python to start.
_MARGIN_S = 300.0
#: Slurm wants a limit of its own where a job has none: a day.
_LONGEST_S = 86_400.0
#: A job shows so often that it is there; one that has not for so long is on a node that is gone.
_BEAT_S, _GONE_S = 5.0, 180.0
_POLL_S = 0.2
#: Clusters of submitit that are none of Slurm's: processes of this machine, or this very process.
_WITHOUT_SLURM = ("local", "debug")
#: Options that submitit knows by name; others go to sbatch as they are.
_KNOWN = frozenset(
    {
        "account",
        "array_parallelism",
        "comment",
        "constraint",
        "cpus_per_gpu",
        "exclude",
        "exclusive",
        "gres",
        "mem_per_gpu",
        "nodelist",
        "partition",
        "qos",
        "signal_delay_s",
    }
)
_TOGETHER = frozenset({"cpus_per_task", "mem_gb"})  # named alike for every cluster


class SlurmExecutor(Executor):
    """Runs jobs by sbatch."""

    name = "slurm"

    def unavailable_reason(self, address: str = "auto") -> str | None:
        try:
            import submitit  # noqa: F401 - an extra
        except ImportError:
            return "submitit is not installed; pip install 'kmem[slurm]'"
        if address not in _WITHOUT_SLURM and shutil.which("sbatch") is None:
            return "There is no sbatch here; run kmem where jobs are submitted from"
        return None

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        """Run one job, through the files of a directory in the current one."""
        place = Path.cwd() / f".kmem-slurm-{os.getpid()}-{threading.get_ident()}"
        address = "auto" if shutil.which("sbatch") else "local"
        try:
            wanted = Wanted(0, 1, address=address, directory=place)
            with self.hire(wanted, lambda text: None) as crew:
                return run_single(crew, job, timeout_s)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def hire(self, wanted: Wanted, note: Callable[[str], None]) -> Crew:
        if wanted.gpus is None:
            raise ExecutorError(
                "Slurm does not say how many GPUs are free; say how many jobs may run at once "
                "with --gpus"
            )
        return SlurmCrew(wanted)

    def nodes(self, address: str = "auto") -> list[Node]:
        """What Slurm says of its nodes: cores and GPUs; versions only a job there could tell."""
        if address in _WITHOUT_SLURM:
            return []
        command = ["sinfo", "-h", "-N", "-o", "%n|%c|%G|%T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as ex:
            raise ExecutorError(f"Slurm does not answer ({first_line(ex)}); try sinfo") from ex
        return read_sinfo(done.stdout)


def read_sinfo(text: str) -> list[Node]:
    """The nodes of sinfo's answer, each once: `host|cores|gres|state`."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) != 4:
            continue
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", words[2]))
        usable = words[3].rstrip("*~#").lower() in ("idle", "mixed", "allocated", "completing")
        trouble = "" if usable else f"Slurm says it is {words[3]}"
        cores = int(words[1]) if words[1].isdigit() else 0
        found[words[0]] = Node(words[0], cores, gpus, {}, trouble)
    return list(found.values())


class SlurmCrew(Crew):
    """Arrays in Slurm's queue, and the files in which their jobs tell how they go."""

    def __init__(self, wanted: Wanted) -> None:
        """Nothing is submitted yet."""
        self._place = wanted.directory.resolve() / "slurm"
        self._place.mkdir(parents=True, exist_ok=True)
        self._at_once = (wanted.gpus or wanted.cpus or 1) * (wanted.jobs if wanted.gpus else 1)
        self._cluster, self._options = _read_address(wanted.address)
        gpu = "slurm" if wanted.gpus else ""
        at_once = _ARRAY if self._cluster == "slurm" else self._at_once
        self._worker = Worker("slurm", gpu=gpu, at_once=at_once)
        self._joined = False
        self._batch: list[_Errand] = []
        self._flying: dict[str, _Flight] = {}

    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        place = self._place / ticket.replace("/", "_")
        place.mkdir(parents=True, exist_ok=True)
        inputs = {}
        for number, (name, source) in enumerate(job.inputs.items()):
            inputs[name] = place / str(number)
            _link_or_copy(source, inputs[name])
        self._batch.append(_Errand(ticket, replace(job, inputs=inputs), timeout_s, place))

    def _submit(self) -> None:
        """Everything that was started since the last call, as one array."""
        import submitit  # an extra

        # where Slurm keeps no accounts it warns at each look, and the files tell all there is
        logging.getLogger("submitit").setLevel(logging.ERROR)
        longest_s = max(errand.timeout_s for errand in self._batch)
        seconds = (longest_s if isfinite(longest_s) else _LONGEST_S) + _MARGIN_S
        executor = submitit.AutoExecutor(self._place / "submitit", cluster=self._cluster)
        given: dict[str, Any] = {"timeout_min": int(seconds // 60) + 1, "name": "kmem"}
        if self._worker.gpu:
            given["gpus_per_node"] = 1
        if self._cluster == "slurm":
            given["slurm_array_parallelism"] = self._at_once
            given |= self._options
        executor.update_parameters(**given)
        visible = None if self._worker.gpu else ""
        try:
            with executor.batch():
                jobs = [executor.submit(work, errand, visible) for errand in self._batch]
        except Exception as ex:
            raise ExecutorError(
                f"sbatch refuses the jobs ({first_line(ex)}); mend --address, which gives it "
                "options, as in partition=gpu,account=ml"
            ) from ex
        now = time.monotonic()
        for errand, job in zip(self._batch, jobs, strict=True):
            self._flying[errand.ticket] = _Flight(job, errand.place, now)
        self._batch.clear()

    def cancel(self, ticket: str) -> None:
        self._batch = [errand for errand in self._batch if errand.ticket != ticket]
        flight = self._flying.get(ticket)
        if flight is not None:
            (flight.place / "cancel").touch()  # while it runs, it may write where it stands
            if not flight.began:
                flight.job.cancel(check=False)

    def events(self, timeout_s: float) -> list[Event]:
        if not self._joined:
            self._joined = True
            return [Joined(self._worker)]
        if self._batch:
            self._submit()
        deadline = time.monotonic() + timeout_s
        while True:
            found: list[Event] = []
            for ticket in list(self._flying):
                found += self._look(ticket)
            if found or time.monotonic() >= deadline:
                return found
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _look(self, ticket: str) -> list[Event]:
        flight = self._flying[ticket]
        if self._cluster == "debug":
            flight.job.wait()  # runs it, here
        over = flight.job.done()
        found: list[Event] = []
        for told in flight.read():
            if told[0] == "began":
                flight.began = True
                found.append(Began(ticket))
            elif told[0] == "said":
                found.append(Said(ticket, told[1], told[2]))
        if over:
            found.append(self._end(ticket, flight))
        elif flight.began and time.monotonic() - flight.heard_at > _GONE_S:
            flight.job.cancel(check=False)
            del self._flying[ticket]
            found.append(Failed(ticket, f"nothing is heard of it for {_GONE_S:g} s"))
        return found

    def _end(self, ticket: str, flight: "_Flight") -> Event:
        del self._flying[ticket]
        try:
            result = flight.job.result()
        except Exception as ex:  # noqa: BLE001 - of submitit, or of whatever failed there
            return Failed(ticket, f"job {flight.job.job_id}: {first_line(ex)}")
        shutil.rmtree(flight.place, ignore_errors=True)
        return Ended(ticket, result) if isinstance(result, JobResult) else Failed(ticket, result)

    def close(self) -> None:
        for ticket in list(self._flying):
            flight = self._flying.pop(ticket)
            flight.job.cancel(check=False)
        self._batch.clear()


@dataclass(frozen=True, slots=True)
class _Errand:
    """A job as it is sent to a node."""

    ticket: str
    job: Job
    timeout_s: float
    place: Path  # a directory that the node sees, too


class _Flight:
    """A job in Slurm's queue, or on a node."""

    def __init__(self, job: Any, place: Path, now: float) -> None:
        self.job = job
        self.place = place
        self.began = False
        self.heard_at = now
        self._read = 0
        self._size = -1

    def read(self) -> list[list[str]]:
        """What it has told since the last call: whole lines, of which empty ones only show life."""
        told = self.place / "told.jsonl"
        try:
            size = told.stat().st_size
            if size == self._size:
                return []
            with told.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        self._size, self.heard_at = size, time.monotonic()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]


def work(errand: _Errand, visible: str | None) -> JobResult | str:
    """Run a job on a node; the reason if the machine failed at it.

    Args:
        visible: what the job sees of GPUs; None: what Slurm gives it.
    """
    lock = threading.Lock()
    told = open(errand.place / "told.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - closed below

    def tell(*words: str) -> None:
        with lock:
            told.write((json.dumps(words) if words else "") + "\n")
            told.flush()

    job, over = errand.job, threading.Event()
    if visible is not None:
        job = replace(job, environment={"CUDA_VISIBLE_DEVICES": visible, **job.environment})
    single = SingleJob(
        job,
        timeout_s=errand.timeout_s,
        on_line=lambda stream, text: tell("said", stream, text),
        grace_s=GRACE_S,
    )

    def watch() -> None:
        beat = time.monotonic()
        while not over.wait(_POLL_S):
            if (errand.place / "cancel").exists():
                single.cancel()
            if time.monotonic() - beat > _BEAT_S:
                beat = time.monotonic()
                tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    tell("began", socket.gethostname())
    try:
        return single.run()
    except ExecutorError as ex:
        return str(ex)
    finally:
        over.set()
        watcher.join()
        told.close()


def _read_address(address: str) -> tuple[str, dict[str, Any]]:
    """submitit's cluster, and what it is told for each job.

    Raises:
        ExecutorError: if an option has no value.
    """
    if address in _WITHOUT_SLURM:
        return address, {}
    options: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for word in address.split(",") if address != "auto" else ():
        name, value = [*word.strip().split("=", 1), ""][:2]
        if not value:
            raise ExecutorError(
                f"'{word}' is no option of sbatch; write --address partition=gpu,account=ml"
            )
        name = name.replace("-", "_")
        number: str | int = int(value) if value.isdigit() else value
        if name in _TOGETHER:
            options[name] = number
        elif name in _KNOWN:
            options[f"slurm_{name}"] = number
        else:
            further[name] = number
    if further:
        options["slurm_additional_parameters"] = further
    return "slurm", options


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
