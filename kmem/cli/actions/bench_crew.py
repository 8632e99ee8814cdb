"""The crew of a bench: the workers of an executor, and what its problems are run by on them."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from kmem.away.errand import Asked, Errand
from kmem.away.here import Here
from kmem.away.home import Home
from kmem.away.prefetch import Prefetch
from kmem.away.runner import CrewRunner, MakeErrand
from kmem.away.there import There
from kmem.bench.problems import BenchProblem
from kmem.bench.purse import Purse
from kmem.bench.results import Settings
from kmem.bench.sharing import share_cores
from kmem.bench.utilisation import Hold, read_holds
from kmem.cli.actions.crews import (
    ask_for_card,
    count_gpus,
    find_executor,
    known_ceilings,
    open_desk,
    target_of,
)
from kmem.cli.options.bench import BenchOptions
from kmem.devices import resolve_target
from kmem.engines.card import read_card
from kmem.engines.desk import Desk
from kmem.engines.executor import Executor, JobResult, Wanted
from kmem.host.lease import HOLDS_VARIABLE
from kmem.host.visible_gpus import visible_gpus
from kmem.memory.location import default_db_path
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Device


@dataclass(frozen=True, slots=True)
class BenchCrew:
    """A crew that is ready for the problems of a bench."""

    desk: Desk
    root: Path
    gpu: bool  # whether runs are measured
    at_once: int  # problems that are handed to the desk
    make_errand: MakeErrand
    take_holds: Callable[[], Mapping[str, Sequence[Hold]]]  # when each GPU was held; asked once
    target: tuple[Device, bool] | None = None  # the device of other machines; None: this one's
    crowded: float = 1.0
    home: Home | None = None  # of the memory as workers that compile ahead see it, if any do

    def longest_first(self, problems: Sequence[BenchProblem]) -> tuple[BenchProblem, ...]:
        """The problems by how long their runs took before, those that nobody ran first of all."""
        with Memory.to_read() as memory:
            spent_s = {
                entry.run.problem.name: memory.runs.seconds_spent(entry.run.id)
                for entry in memory.run_entries.all()
            }
        return tuple(sorted(problems, key=lambda problem: -spent_s.get(problem.name, math.inf)))

    def runner(
        self,
        settings: Settings,
        problems: Sequence[BenchProblem],
        candidates: Mapping[str, int],
        purse: Purse | None,
    ) -> CrewRunner:
        """What runs problems there, in their order.

        Args:
            candidates: of a round, by the key of the problem; by default those of the settings.
            purse: what language models may cost; None: no limit.
        """

        def settings_of(problem: BenchProblem) -> Settings:
            return replace(settings, candidates=candidates.get(problem.key, settings.candidates))

        prefetch = None
        if self.home is not None:
            device, present = self.target or resolve_target(settings.target)
            with Memory.to_read() as memory:
                target = memory.devices.ceilings(device.name) or device, present
            prefetch = Prefetch(self.desk, self.home, settings_of, target, self.root)
            prefetch.begin(problems[self.at_once :])
        return CrewRunner(
            self.desk,
            settings_of,
            self.root,
            self.make_errand,
            gpu=self.gpu,
            crowded=self.crowded,
            purse=purse,
            prefetch=prefetch,
        )


@contextmanager
def open_bench_crew(root: Path, options: BenchOptions, registry: Registry) -> Iterator[BenchCrew]:
    """Open a crew for a bench, and find out what it measures on.

    Raises:
        UsageError: if language models are to write on other machines: the run asks them.
        ExecutorError: if the crew cannot be opened.
        TargetError: if there are fewer GPUs here than are wanted.
    """
    executor = find_executor(registry, options.where)
    opened = _open_here if options.where.executor == "local" else _open_there
    with opened(root.resolve(), options, executor) as crew:
        yield crew


@contextmanager
def _open_here(root: Path, options: BenchOptions, executor: Executor) -> Iterator[BenchCrew]:
    """The crew of this machine, by default on its first GPU."""
    gpus = visible_gpus(options.gpus)[: 1 if options.gpus is None else None]
    word = f"bench-{os.getpid()}"
    share = share_cores(root, len(gpus), options.jobs)
    environment = {**share.environment, HOLDS_VARIABLE: word}
    reference = read_card(gpus[0]).to_json() if gpus else None

    def make(
        asked: Asked, on_line: Callable[[str], None], on_end: Callable[[JobResult], None]
    ) -> Errand:
        asked = replace(asked, reference=reference, shared=options.jobs > 1)
        return Here(asked, on_line, on_end, environment)

    wanted = Wanted(len(gpus), _cpus(options, len(gpus)), options.jobs, directory=root)
    at_once = options.jobs * max(1, len(gpus))
    home = Home(root / "crew")
    with open_desk(executor, wanted, home.close) as desk:
        yield BenchCrew(
            desk,
            root,
            bool(gpus),
            at_once,
            make,
            partial(_take_holds, word),
            crowded=share.crowded,
            home=home if options.ahead else None,
        )


def _cpus(options: BenchOptions, gpus: int) -> int:
    return options.ahead + (0 if gpus else options.jobs)


def _take_holds(word: str) -> dict[str, list[Hold]]:
    """When this machine's GPUs were held, as written down beside their lock files; removes that."""
    locks = default_db_path().parent / "cache" / "locks"
    found = read_holds(locks, word)
    for file in locks.glob(f"*.{word}.holds"):
        file.unlink(missing_ok=True)
    return found


@contextmanager
def _open_there(root: Path, options: BenchOptions, executor: Executor) -> Iterator[BenchCrew]:
    """The crew of a cluster."""
    if options.usd is not None or options.author != "recipes":
        raise click.UsageError(
            f"Language models need keys, which do not leave this machine; with --executor "
            f"{options.where.executor} recipes write (--author recipes)"
        )
    if options.ahead and options.where.executor == "slurm":
        raise click.UsageError(
            "With slurm all jobs of a bench are of one kind; leave out --compile-ahead"
        )
    gpus = count_gpus(executor, options.where, options.gpus)
    place = root / "crew"
    place.mkdir(parents=True, exist_ok=True)
    cpus = _cpus(options, gpus)
    wanted = Wanted(gpus, cpus, options.jobs, options.where.address, directory=place)
    home = Home(place)
    with open_desk(executor, wanted, home.close) as desk:
        reference = ask_for_card(desk) if gpus else None
        ceilings = known_ceilings(reference)

        def make(
            asked: Asked, on_line: Callable[[str], None], on_end: Callable[[JobResult], None]
        ) -> Errand:
            card = reference.card if reference is not None else None
            asked = replace(asked, reference=card, ceilings=ceilings, shared=options.jobs > 1)
            return There(asked, home, on_line, on_end)

        # one more for each worker, which is handed over while others run
        at_once = max(1, gpus) * (options.jobs + 1)
        target = target_of(options.target, reference)
        ahead = home if options.ahead else None
        yield BenchCrew(
            desk, root, bool(gpus), at_once, make, lambda: home.holds, target, home=ahead
        )
