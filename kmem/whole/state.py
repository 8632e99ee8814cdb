"""How a run on a model stands, kept whole in its directory after every step.

A process that is killed leaves the last step; who takes the run up again goes on from there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from kmem.errors import OutputError
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.serialize import from_data, to_data

STATE = "model.json"
Kept = TypeVar("Kept")


class PieceStatus(Enum):
    """Where a piece stands."""

    WAITING = "waiting"
    RUNNING = "running"
    KEPT = "kept"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class PieceState:
    """One piece: the run on it, what one call took and takes, in milliseconds, and why it ended."""

    name: str
    module: str
    operators: tuple[str, ...]
    calls: int
    eager_ms: float
    least_ms: float
    init: tuple[int, ...]  # what the constructor of its module takes
    status: PieceStatus = PieceStatus.WAITING
    run: str | None = None
    kernel_ms: float | None = None
    seconds: float = 0.0
    reason: str = ""
    holds: tuple[str, ...] = ()  # of a stretch, the pieces that it is made of
    pair: str = ""  # of a piece in training, the other of its forward and its backward
    is_outdone: bool = False  # its kernel was right, and the whole no faster with it

    @property
    def saved_ms(self) -> float:
        """Of one forward, by the kernel's own time."""
        if self.status is not PieceStatus.KEPT or self.kernel_ms is None:
            return 0.0
        return (self.eager_ms - self.kernel_ms) * self.calls


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a run on a model is told.

    `piece` is what each piece's run is told; its minutes are the most for one piece.
    """

    model: str
    inputs: tuple[str, ...]
    mode: str | None
    minutes: float  # of all pieces
    piece: RunSettings
    least_gain: float = 0.01  # share of the model's time below which no piece is tried
    backward: bool = False  # prove and time gradients too
    within: float | None = None  # minutes of everything, from the first command to the report

    @property
    def compiled_ways(self) -> tuple[str, ...]:
        """The model's compiled forms that are timed beside it."""
        return tuple(name for name in self.piece.budget.baselines if name != "eager")


@dataclass(frozen=True, slots=True)
class ModelState:
    """A run on a model."""

    settings: ModelSettings
    name: str
    device: str
    estimated: bool
    total_ms: float  # of one forward by its operators, before
    pieces: tuple[PieceState, ...]
    left: tuple[tuple[str, str], ...]
    began_s: float = 0.0  # until the first piece, which the minutes do not count
    seconds: float = 0.0
    finished: str = ""  # why it stopped
    proof_s: float = 0.0  # that holding the model to itself took
    compile_s: float = 0.0  # that its compiled form took, timings included
    beginning: str = ""  # JSON of the proof of the model without kernels, with its baselines
    proof: str = ""  # JSON of the proof of the whole

    def piece(self, name: str) -> PieceState:
        """The piece of a name."""
        return next(each for each in self.pieces if each.name == name)

    def with_piece(self, piece: PieceState) -> "ModelState":
        """The state with another piece of its name."""
        return self._with({piece.name: piece})

    def with_tried(self, piece: PieceState) -> "ModelState":
        """The state after a piece's run, whose clock's time for eager counts in the whole's too.

        Not a stretch's: of one that is not kept the pieces' do, which are tried then.
        """
        if piece.holds:
            return self.with_piece(piece)
        before = self.piece(piece.name)
        more_ms = (piece.eager_ms - before.eager_ms) * piece.calls
        return replace(self.with_piece(piece), total_ms=self.total_ms + more_ms)

    def left_s(self, spent_s: float) -> float:
        """Seconds that are left of `within`; endless without."""
        within = self.settings.within
        return float("inf") if within is None else within * 60 - spent_s

    def without_held(self, stretch: PieceState) -> "ModelState":
        """The state in which nothing that a stretch holds is tried: the stretch is kept."""
        held = {
            each.name: replace(each, status=PieceStatus.DROPPED, reason=_within(stretch))
            for each in self.pieces
            if each.name in stretch.holds and each.status is PieceStatus.WAITING
        }
        return self._with(held)

    def with_dropped(self, piece: PieceState, reason: str) -> "ModelState":
        """The state without a piece that was kept; what it holds may be tried again."""
        is_half_kept = any(each.name == piece.pair for each in self.kept)
        changed = {
            each.name: replace(each, status=PieceStatus.WAITING, reason="")
            for each in self.pieces
            if each.name in piece.holds and each.reason == _within(piece) and not is_half_kept
        }
        dropped = replace(piece, status=PieceStatus.DROPPED, reason=reason)
        return self._with({**changed, piece.name: dropped})

    def _with(self, changed: Mapping[str, PieceState]) -> "ModelState":
        """The state with other pieces, by their names."""
        pieces = tuple(changed.get(each.name, each) for each in self.pieces)
        return replace(self, pieces=pieces)

    @property
    def parts(self) -> tuple[PieceState, ...]:
        """Pieces that do not overlap: a stretch that is kept in the place of what it holds."""
        held = {name for each in self.kept for name in each.holds}
        return tuple(
            each
            for each in self.pieces
            if each.name not in held and (not each.holds or each.status is PieceStatus.KEPT)
        )

    @property
    def kept(self) -> tuple[PieceState, ...]:
        return tuple(each for each in self.pieces if each.status is PieceStatus.KEPT)


def _within(stretch: PieceState) -> str:
    """Why a piece that a stretch holds is not tried: for both halves of one in training."""
    return f"it is in {min(filter(None, (stretch.name, stretch.pair)), key=len)}"


def read_state(directory: Path) -> ModelState | None:
    """The run in a directory; None if there is none.

    Raises OutputError: if there is one of another version.
    """
    return read_kept(ModelState, directory / STATE)


def read_kept(kind: type[Kept], place: Path) -> Kept | None:
    """A record that a run keeps in a file; None if there is no file.

    Raises OutputError: if it is one of another version.
    """
    if not place.is_file():
        return None
    try:
        return from_data(kind, json.loads(place.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as ex:
        raise OutputError(
            f"{place} is of another version of kmem ({ex}); begin in another directory with --out"
        ) from ex


def write_state(directory: RunDirectory, state: ModelState) -> None:
    """Keep a step."""
    directory.write_text(STATE, json.dumps(to_data(state), indent=1) + "\n")
