"""Crews as the command line opens them: by the name of an executor."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.executor import ExecutorOptions
from kmem.devices import resolve_target
from kmem.engines.desk import Desk
from kmem.engines.executor import Executor, Job, JobResult, Wanted, Worker
from kmem.engines.scheduler import Listener, Verdict, Work
from kmem.errors import ExecutorError
from kmem.memory.store import Memory
from kmem.plugins import Registry, lookup
from kmem.records import Device
from kmem.serialize import from_data, to_json

_CARD_LIMIT_S = 300.0


def find_executor(registry: Registry, options: ExecutorOptions) -> Executor:
    """The executor that is asked for.

    Raises NotRegistered if there is none of this name, ExecutorError if it cannot work.
    """
    executor = lookup(registry.executors, options.executor, "executor")
    reason = executor.unavailable_reason(options.address)
    if reason is not None:
        raise ExecutorError(reason)
    return executor


@contextmanager
def open_desk(
    executor: Executor, wanted: Wanted, at_end: Callable[[], None] = lambda: None
) -> Iterator[Desk]:
    """A desk over a crew, both ended at the end."""
    with Desk(executor.hire(wanted, say), say, at_end) as desk:
        yield desk


@contextmanager
def crew_directory() -> Iterator[Path]:
    """A directory that a crew may use, on a file system that every node sees if this one is."""
    with tempfile.TemporaryDirectory(prefix="kmem-crew-", dir=Path.cwd()) as place:
        yield Path(place)


def say(text: str) -> None:
    """Tell what goes wrong with workers, on stderr."""
    click.echo(f"note: {text}", err=True)


@dataclass(frozen=True, slots=True)
class Reference:
    """What all figures of a crew are to be of: a card, as JSON, and its device."""

    card: str
    device: Device


def ask_for_card(desk: Desk) -> Reference:
    """The card of whichever worker with a GPU answers first.

    Raises:
        ExecutorError: if no worker has a GPU that works.
    """
    answer = _Answer()
    job = Job(("python", "-P", "-m", "kmem.away.process", "--card"), {}, {})
    desk.add(Work("card", lambda worker: job, answer, limit_s=_CARD_LIMIT_S, gpu=True))
    while not answer.over.wait(0.2):
        desk.check()
    try:
        found = json.loads(answer.text.strip().splitlines()[-1])
        return Reference(found["card"], from_data(Device, found["device"]))
    except (ValueError, IndexError, KeyError, TypeError) as ex:
        raise ExecutorError(
            f"A worker does not say which GPU it has ({answer.text.strip()[-300:] or 'no word'}); "
            "try kmem doctor there, or give --gpus 0 and a --target"
        ) from ex


def known_ceilings(reference: Reference | None) -> str | None:
    """What the card's device was measured to do at most, as JSON; None if memory does not know."""
    if reference is None:
        return None
    with Memory.to_read() as memory:
        known = memory.devices.ceilings(reference.device.name)
    return to_json(known) if known is not None else None


class _Answer(Listener):
    def __init__(self) -> None:
        self.over = threading.Event()
        self.text = ""

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        self.text = result.stdout if result.exit_code == 0 else result.stderr
        self.over.set()
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        self.text = reason
        self.over.set()


def count_gpus(executor: Executor, options: ExecutorOptions, gpus: int | None) -> int:
    """On how many GPUs a crew is to measure: as many as are asked for, or all of the cluster."""
    if gpus is not None:
        return gpus
    if options.executor == "slurm":
        return 0  # a node's GPUs are not ours to take: how many at once is said by --gpus
    return sum(node.gpus for node in executor.nodes(options.address))


def target_of(name: str | None, reference: Reference | None) -> tuple[Device, bool]:
    """The device that a crew works for, and whether it is there to measure on.

    Raises TargetError as `resolve_target` does.
    """
    if reference is None:
        return resolve_target(name)[0], False
    return reference.device, True
