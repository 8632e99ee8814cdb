"""Where the runs of pieces work: here one after another, or on the workers of a crew at once.

The whole is held to its model on this machine either way, so that what is kept was faster on one
GPU; the time of a piece by itself only says which piece is worth trying.
"""

import queue
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kmem.away.errand import Asked
from kmem.away.home import Home
from kmem.away.there import There
from kmem.bench.command import optimize_words, run_limit_s
from kmem.bench.results import Settings
from kmem.engines.desk import Desk
from kmem.engines.executor import JobResult
from kmem.engines.scheduler import Work
from kmem.errors import KmemError, first_line
from kmem.memory.store import Memory
from kmem.records import Attempt, Run, RunResult
from kmem.run.directory import owner_of
from kmem.run.perform import perform
from kmem.run.setup.settings import RunSettings, new_run
from kmem.whole.holding import OpenModel
from kmem.whole.state import PieceState, PieceStatus


class Trials(ABC):
    """Pieces that are tried, some at once."""

    at_once = 1

    @abstractmethod
    def begin(self, piece: PieceState, told: RunSettings) -> PieceState:
        """Begin a piece's run, or go on with it; the piece as it stands then."""

    @abstractmethod
    def ended(self) -> PieceState:
        """What became of a piece that was begun; waits for one."""


class TrialsHere(Trials):
    """One run at a time, in this process."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model
        self._begun: list[tuple[PieceState, Run | None]] = []

    def begin(self, piece: PieceState, told: RunSettings) -> PieceState:
        try:
            run = _begun(piece)
            if run is None:
                place = self._model.root / "runs" / piece.name
                shutil.rmtree(place, ignore_errors=True)  # of a run on a worker, on another card
                run = new_run(self._model.file(piece.name), replace(told, out=place, mode=None))
            piece = replace(piece, status=PieceStatus.RUNNING, run=run.id)
        except KmemError as ex:
            run, piece = None, _dropped(piece, first_line(ex))
        self._begun.append((piece, run))
        return piece

    def ended(self) -> PieceState:
        piece, run = self._begun.pop()
        if run is None:
            return piece
        try:
            performed = perform(run, self._model.registry, self._model.watch(run))
        except KmemError as ex:
            return _dropped(piece, first_line(ex))
        return _outcome(piece, performed.finished.result, performed.finished.attempts)


@dataclass(frozen=True, slots=True)
class PieceCrew:
    """The workers that pieces run on."""

    desk: Desk
    home: Home
    gpu: bool
    at_once: int
    reference: str | None = None  # the card that all figures are to come from, as JSON
    ceilings: str | None = None


class TrialsThere(Trials):
    """Each run a work of a desk, with what it commits carried home."""

    def __init__(self, model: OpenModel, crew: PieceCrew) -> None:
        self._model = model
        self._crew = crew
        self.at_once = crew.at_once
        self._pieces: dict[str, PieceState] = {}
        self._ended: queue.SimpleQueue[tuple[str, JobResult]] = queue.SimpleQueue()

    def begin(self, piece: PieceState, told: RunSettings) -> PieceState:
        crew, name = self._crew, piece.name
        out = self._model.root / "runs" / name
        settings = _settings_of(told)
        words = ["--seed", str(told.seed)]
        asked = Asked(
            self._model.file(name),
            lambda file, there: [*optimize_words(settings, file, there), *words],
            out.resolve(),
            told.memory_mode,
            reference=crew.reference,
            ceilings=crew.ceilings,
        )
        errand = There(
            asked,
            crew.home,
            lambda line: self._model.say(f"{name}: {line}"),
            lambda result: self._ended.put((name, result)),
        )
        limit_s = run_limit_s(settings)
        crew.desk.add(Work(name, errand.job, errand, limit_s=limit_s, gpu=crew.gpu))
        self._pieces[name] = replace(piece, status=PieceStatus.RUNNING)
        return self._pieces[name]

    def ended(self) -> PieceState:
        while True:
            self._crew.desk.check()
            try:
                name, result = self._ended.get(timeout=0.2)
            except queue.Empty:
                continue
            return self._outcome(self._pieces.pop(name), result)

    def _outcome(self, piece: PieceState, result: JobResult) -> PieceState:
        run_id = owner_of(self._model.root / "runs" / piece.name)
        with Memory.to_read() as memory:
            if run_id is None or not memory.runs.has(run_id):
                found, attempts = None, []
            else:
                found, attempts = memory.runs.result(run_id), memory.runs.attempts(run_id)
        if found is None:
            lines = result.stderr.strip().splitlines() or [f"no answer in {result.seconds:.0f} s"]
            return _dropped(piece, lines[-1].removeprefix("Error: "))
        return _outcome(replace(piece, run=run_id), found, attempts)


def _settings_of(told: RunSettings) -> Settings:
    """What a run is told, as a bench keeps it."""
    budget = told.budget
    return Settings(
        told.contract.precision.value,
        told.contract.purity.value,
        told.target,
        told.memory_mode,
        budget.rounds,
        budget.minutes,
        ",".join(budget.baselines),
        budget.baseline_minutes,
        budget.candidates_per_round,
        strategy=told.strategy.value,
    )


def _begun(piece: PieceState) -> Run | None:
    """The run of a piece that a killed process had begun; None if memory knows of none."""
    if piece.run is None:
        return None
    with Memory() as memory:
        return memory.runs.get(piece.run) if memory.runs.has(piece.run) else None


def _dropped(piece: PieceState, reason: str) -> PieceState:
    return replace(piece, status=PieceStatus.DROPPED, reason=reason)


def _outcome(piece: PieceState, found: RunResult, attempts: Sequence[Attempt]) -> PieceState:
    """What became of a piece whose run has ended."""
    # timed by the same clock as the kernel, which the operators of the whole are not
    eager = [each.timing for each in found.baselines if each.name == "eager" and each.timing]
    if eager:
        piece = replace(piece, eager_ms=eager[0].latency_ms)
    if found.best is None or found.speedup is None:
        measured = [each.measurement.latency_ms for each in attempts]
        fastest = min((ms for ms in measured if ms is not None and isfinite(ms)), default=None)
        return _dropped(replace(piece, kernel_ms=fastest), "nothing beat its fastest baseline")
    kind = "estimated" if found.estimated else "measured"
    return replace(
        piece,
        status=PieceStatus.KEPT,
        kernel_ms=found.best.measurement.latency_ms,
        reason=f"{found.speedup:.2f}x of its fastest baseline, {kind}",
    )
