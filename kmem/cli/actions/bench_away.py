"""A bench on the workers of a crew."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from kmem.away.home import Home
from kmem.away.runner import CrewRunner
from kmem.bench.problems import BenchProblem
from kmem.bench.results import Settings
from kmem.cli.actions.crews import (
    Reference,
    ask_for_card,
    count_gpus,
    find_executor,
    open_desk,
    target_of,
)
from kmem.cli.options.bench import BenchOptions
from kmem.engines.desk import Desk
from kmem.engines.executor import Wanted
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Device
from kmem.serialize import to_json


@dataclass(frozen=True, slots=True)
class Away:
    """A crew that is ready for the problems of a bench."""

    desk: Desk
    home: Home
    root: Path
    reference: Reference | None
    target: tuple[Device, bool]
    at_once: int  # problems that are handed to the desk

    def longest_first(self, problems: Sequence[BenchProblem]) -> tuple[BenchProblem, ...]:
        """The problems by how long their runs took before, those that nobody ran first of all."""
        with Memory.to_read() as memory:
            spent_s = {
                entry.run.problem.name: memory.runs.seconds_spent(entry.run.id)
                for entry in memory.run_entries.all()
            }
        return tuple(sorted(problems, key=lambda problem: -spent_s.get(problem.name, math.inf)))

    def runner(self, settings: Settings, candidates: Mapping[str, int]) -> CrewRunner:
        """What runs problems there; arguments as of `OptimizeProcess`."""
        reference, ceilings = self.reference, None
        if reference is not None:
            with Memory.to_read() as memory:
                known = memory.devices.ceilings(reference.device.name)
            ceilings = to_json(known) if known is not None else None
        return CrewRunner(
            self.desk,
            self.home,
            settings,
            self.root.resolve(),
            gpu=reference is not None,
            reference=reference.card if reference is not None else None,
            ceilings=ceilings,
            candidates=candidates,
        )


@contextmanager
def open_away(root: Path, options: BenchOptions, registry: Registry) -> Iterator[Away]:
    """Open a crew for a bench, and find out what it measures on.

    Raises:
        UsageError: if language models are to write: they are asked by the run, which is elsewhere.
        ExecutorError: if the crew cannot be opened.
    """
    if options.usd is not None or options.author != "recipes":
        raise click.UsageError(
            f"Language models need keys, which do not leave this machine; with --executor "
            f"{options.where.executor} recipes write (--author recipes)"
        )
    executor = find_executor(registry, options.where)
    gpus = count_gpus(executor, options.where, options.gpus)
    place = root.resolve() / "crew"
    place.mkdir(parents=True, exist_ok=True)
    wanted = Wanted(
        gpus=gpus,
        cpus=0 if gpus else options.jobs,
        jobs=options.jobs,
        address=options.where.address,
        directory=place,
    )
    home = Home(place)
    with open_desk(executor, wanted, home.close) as desk:
        reference = ask_for_card(desk) if gpus else None
        # one more for each worker, which is handed over while others run
        at_once = max(1, gpus) * (options.jobs + 1)
        target = target_of(options.target, reference)
        yield Away(desk, home, root, reference, target, at_once)
