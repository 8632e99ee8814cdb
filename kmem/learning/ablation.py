"""Run every arm on every problem and seed, on recorded landscapes.

Everything follows from the landscapes, the arms and the seeds. For each seed the problems are
shuffled into an order. First each is searched with an empty memory that is written to: the outcomes
these runs leave are what the arms `read`, `placebo`, `shuffled`, `poison` and `oracle` are made
from. Then every arm searches every problem, each run with a database of its own that holds what
arms.py says.
"""

import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kmem.errors import LandscapeError
from kmem.explore.recipes.author import RecipeAuthor
from kmem.learning.arms import (
    CREATED_AT,
    MEMORY_MODES,
    Arm,
    Source,
    admissible,
    deal_results,
    moment,
    nearest_other_size,
    oracle_outcome,
    poison_outcomes,
    shuffle_outcomes,
)
from kmem.learning.landscape import Landscape
from kmem.learning.metrics import RunMetrics, run_metrics
from kmem.learning.simulate import RecordedEvaluator, open_recorded_session
from kmem.memory.ledger.outcomes import LedgerEntry, ledger_entry
from kmem.memory.skills.embeddings import Embedder, load_embedder
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Attempt, Budget, Outcome, Run, Strategy
from kmem.run.loop import optimize
from kmem.run.setup.session import load_library

if TYPE_CHECKING:
    import numpy as np

#: Who wrote the outcomes of the searches: in every run's memory they are its own.
_SEARCHED = "searched"
#: Leave out of each problem's memory the problem's own operator class.
EACH = "each"


@dataclass(frozen=True, slots=True)
class Setup:
    """What to compare.

    `left_out` are operator classes that no memory may know of; `each` is every problem's own.
    """

    arms: tuple[Arm, ...]
    seeds: int
    left_out: tuple[str, ...] = ()
    strategy: Strategy = Strategy.BANDIT
    budget: Budget = Budget()


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: which problem, with which memory, and what it cost and reached.

    `known` is how many outcomes the memory held.
    """

    problem: str
    family: str
    seed: int
    arm: Arm
    known: int
    metrics: RunMetrics


#: Runs every seed somewhere and gives the trials of each as they come.
Lanes: TypeAlias = Callable[[Sequence[Landscape], Setup], Iterator[list[Trial]]]


def ablate(
    landscapes: Sequence[Landscape],
    setup: Setup,
    on_progress: Callable[[int, int], None],
    lanes: Lanes | None = None,
) -> list[Trial]:
    """Every trial, ordered by problem, seed and arm.

    With operator classes left out only their problems are searched: the others are what memory may
    know.

    Args:
        on_progress: told (seeds done, seeds in all).
        lanes: where seeds are run; None: on the cores of this machine.

    Raises:
        LandscapeError: if a landscape is not measured, has no setting that passed or cannot be
            simulated, or nothing is left to search.
    """
    for landscape in landscapes:
        if landscape.header.estimated:
            raise LandscapeError(
                f"{landscape.name} holds estimates, which teach memory nothing; record it where "
                "the device is"
            )
    families = {landscape.header.family for landscape in landscapes}
    unknown = sorted(set(setup.left_out) - families - {EACH})
    if unknown:
        raise LandscapeError(
            f"No landscape is of class {', '.join(unknown)}; there are "
            f"{', '.join(sorted(families))} (or {EACH})"
        )
    trials: list[Trial] = []
    for done, found in enumerate((lanes or _on_cores)(landscapes, setup), start=1):
        trials += found
        on_progress(done, setup.seeds)
    arms = list(Arm)
    return sorted(trials, key=lambda trial: (trial.problem, trial.seed, arms.index(trial.arm)))


def _on_cores(landscapes: Sequence[Landscape], setup: Setup) -> Iterator[list[Trial]]:
    cores = min(setup.seeds, len(os.sched_getaffinity(0)))
    if cores == 1:
        for seed in range(setup.seeds):
            yield run_seed(landscapes, setup, seed)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(run_seed, landscapes, setup, seed) for seed in range(setup.seeds)]
        for run in as_completed(runs):
            yield run.result()


def run_seed(landscapes: Sequence[Landscape], setup: Setup, seed: int) -> list[Trial]:
    """Every arm on every problem, at one seed."""
    with tempfile.TemporaryDirectory(prefix="kmem-ablate-", dir=_fast_directory()) as directory:
        bench = _Bench(landscapes, setup, Path(directory))
        order = random.Random(f"order:{seed}").sample(range(len(landscapes)), len(landscapes))
        # what a search without memory would leave
        left = {place: bench.search(place, Arm.RW, seed, ())[1] for place in order}
        wanted = [place for place in order if bench.is_target(place)]
        trials = []
        control: dict[int, list[Attempt]] = {}
        for arm in setup.arms:
            grown: dict[int, list[LedgerEntry]] = {}
            for place in order if arm is Arm.RW else wanted:
                known = bench.recollect(place, arm, seed, grown if arm is Arm.RW else left)
                attempts, grown[place] = bench.search(place, arm, seed, known)
                if place not in control:
                    control[place] = bench.search(place, Arm.OFF, seed, (), Strategy.BEST_OF_N)[0]
                if place in wanted:
                    trials.append(
                        bench.trial(place, arm, seed, len(known), attempts, control[place])
                    )
        return trials


def _fast_directory() -> str | None:
    """A directory in RAM, where the system has a file system for it; None elsewhere.

    Hundreds of short-lived databases need no disk.
    """
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _Bench:
    """The landscapes opened for searching, and a database that every run's own is copied from.

    That database holds the skill library.
    """

    def __init__(self, landscapes: Sequence[Landscape], setup: Setup, directory: Path) -> None:
        self._landscapes = landscapes
        self._setup = setup
        self._directory = directory
        registry = collect(build_plugin_manager())
        library = load_library(registry)
        self.sessions = [open_recorded_session(landscape, library) for landscape in landscapes]
        # An author keeps the ranking of the last module it saw: each module gets one of its own.
        self._registries = [
            replace(registry, authors={**registry.authors, RecipeAuthor.name: RecipeAuthor()})
            for _ in landscapes
        ]
        self._embedder = _remembering(load_embedder())
        self._template = directory / "template.db"
        with Memory(self._template, self._embedder) as memory:
            memory.skills.sync(list(library.values()))
            memory.skills.search("any", limit=1)  # embeds the skill library once for all runs
            memory.track_records.refresh()
        self._sources = [
            Source(landscape.name, landscape.header.family, session.traced.graph.hash)
            for landscape, session in zip(landscapes, self.sessions, strict=True)
        ]

    def is_target(self, place: int) -> bool:
        """Whether this problem is searched; with classes left out only theirs are."""
        left_out = self._setup.left_out
        return not left_out or EACH in left_out or self._sources[place].family in left_out

    def recollect(
        self, place: int, arm: Arm, seed: int, left: dict[int, list[LedgerEntry]]
    ) -> list[LedgerEntry]:
        """What an arm's memory holds when it searches a problem.

        Args:
            left: what runs left, by problem.
        """
        if arm is Arm.OFF:
            return []
        target = self._sources[place]
        left_out = frozenset(
            {target.family} if EACH in self._setup.left_out else self._setup.left_out
        )
        allowed = set(admissible([self._sources[other] for other in left], target, left_out))
        entries = {other: left[other] for other in sorted(left) if self._sources[other] in allowed}
        if arm is Arm.ORACLE:
            others = {self._landscapes[other].name: other for other in entries if entries[other]}
            nearest = nearest_other_size(
                self._landscapes[place], [self._landscapes[other] for other in others.values()]
            )
            if nearest is None:
                return []
            like = entries[others[nearest.name]][0].outcome
            return [ledger_entry(oracle_outcome(nearest, like))]
        known = [entry for other in entries for entry in entries[other]]
        outcomes = [entry.outcome for entry in known]
        if arm is Arm.PLACEBO:
            return [ledger_entry(outcome) for outcome in deal_results(outcomes, seed)]
        if arm is Arm.SHUFFLED:
            return [ledger_entry(outcome) for outcome in shuffle_outcomes(outcomes, seed)]
        if arm is Arm.POISON:
            return [ledger_entry(outcome) for outcome in poison_outcomes(outcomes)]
        return known

    def search(
        self,
        place: int,
        arm: Arm,
        seed: int,
        known: Sequence[LedgerEntry],
        strategy: Strategy | None = None,
    ) -> tuple[list[Attempt], list[LedgerEntry]]:
        """One run of kmem's loop, by another strategy than the ablation's if one is given.

        Returns:
            Its attempts, and the outcomes it left where its memory is written to.
        """
        session, landscape = self.sessions[place], self._landscapes[place]
        out_dir = self._directory / "run"
        database = self._directory / "run.db"
        shutil.copyfile(self._template, database)
        run = Run(
            "simulated",
            session.traced.problem,
            session.traced.device.name,
            session.traced.contract,
            self._setup.budget,
            MEMORY_MODES[arm],
            seed,
            str(out_dir),
            CREATED_AT,
            strategy=strategy or self._setup.strategy,
        )
        try:
            with Memory(database, self._embedder) as memory:
                own_name = memory.contributors.own_name
                memory.ledger.record_entries(
                    replace(entry, writer=own_name) if entry.writer == _SEARCHED else entry
                    for entry in sorted(known, key=lambda entry: entry.hash)
                )
                memory.runs.start(run)
                optimize(
                    run,
                    session,
                    memory,
                    self._registries[place],
                    lambda event: None,
                    open_evaluator=lambda announce: RecordedEvaluator(landscape, session),
                )
                own = memory.ledger.outcomes(graph_hash=session.traced.graph.hash)
                attempts = memory.runs.attempts(run.id)
                return attempts, _canonical(own, attempts)
        finally:
            shutil.rmtree(out_dir, ignore_errors=True)
            for file in self._directory.glob("run.db*"):
                file.unlink()

    def trial(
        self,
        place: int,
        arm: Arm,
        seed: int,
        known: int,
        attempts: Sequence[Attempt],
        control: Sequence[Attempt],
    ) -> Trial:
        """One run as a trial: what it cost and reached, beside best-of-n."""
        source = self._sources[place]
        rounds = self._setup.budget.rounds + 1
        metrics = run_metrics(attempts, self._landscapes[place], rounds, control)
        return Trial(source.name, source.family, seed, arm, known, metrics)


def _canonical(outcomes: Sequence[Outcome], attempts: Sequence[Attempt]) -> list[LedgerEntry]:
    """Outcomes without what differs between two simulated runs: when, and in whose database.

    Their order, which memory learns from, is that of the attempts: one a millisecond.
    """
    places = {attempt.candidate.kernel.hash: place for place, attempt in enumerate(attempts)}
    canonical = [
        replace(
            outcome,
            created_at=moment(places.get(outcome.source_hash, len(places))),
            origin=_SEARCHED,
        )
        for outcome in outcomes
    ]
    return sorted(map(ledger_entry, canonical), key=lambda entry: entry.hash)


def _remembering(embedder: Embedder | None) -> Embedder | None:
    """The embedder with every vector kept in this process.

    The databases of runs are too short-lived to keep them.
    """
    return _RememberingEmbedder(embedder) if embedder is not None else None


class _RememberingEmbedder:
    def __init__(self, embedder: Embedder) -> None:
        self.model = embedder.model
        self._embedder = embedder
        self._vectors: dict[str, np.ndarray] = {}

    def verify(self) -> None:
        self._embedder.verify()

    def __call__(self, texts: list[str]) -> "np.ndarray":
        import numpy as np  # as late as in kmem.memory

        fresh = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if fresh:
            self._vectors |= dict(zip(fresh, self._embedder(fresh), strict=True))
        return np.stack([self._vectors[text] for text in texts])
