"""A run's composed model held to its model: before anything is spent, piece by piece, in the end.

A piece is kept if the whole is right with it and, where there is a GPU, faster: the time with it
over that without, called and as one CUDA graph, is below 1 by more than timings vary.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kmem.errors import ProblemError
from kmem.plugins import Registry
from kmem.records import Device, Run
from kmem.run.directory import RunDirectory
from kmem.run.perform import Audience
from kmem.whole.composing.compose import write_composed
from kmem.whole.cutting.pieces import Cost, PieceGroup
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.source import ModelSource
from kmem.whole.proving.clock import EAGER
from kmem.whole.proving.proof import LONGEST_PROOF_S, Proof, Question, prove
from kmem.whole.state import ModelState, PieceState, PieceStatus, write_state

#: The whole must be faster by so much with a piece than without, beyond what timings vary.
_KEPT_BELOW = 0.995
#: For the model and its baselines, in seconds; else it is held to itself without them.
_BEGINNING_S = 480.0

#: Of the time that is left, where everything has to end in time; and what a proof gets at least.
_BEGINNING_SHARE, _LEAST_PROOF_S = 0.4, 60.0

Watch = Callable[[Run], Audience]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What a run works with and never changes."""

    source: ModelSource
    captured: Captured
    cost: Cost
    groups: Mapping[str, PieceGroup]
    device: Device
    present: bool
    directory: RunDirectory
    registry: Registry
    watch: Watch
    say: Callable[[str], None]

    @property
    def root(self) -> Path:
        return self.directory.root

    def file(self, piece: str) -> Path:
        """The problem file of a piece."""
        return self.root / "pieces" / f"{piece}.py"


def begin(model: OpenModel, state: ModelState, spent_s: float = 0.0) -> ModelState:
    """Time the model and its baselines, and hold it to itself as it will be held in the end.

    Args:
        spent_s: seconds that the run has taken so far.

    Raises ProblemError: if no kernel could ever be proved in it, with the reason.
    """
    model.say("holding the model to itself, and timing it")
    asked = replace(_question(model, state), draws=1, baselines=state.settings.compile)
    limit_s = min(_BEGINNING_S, state.left_s(spent_s) * _BEGINNING_SHARE)
    proof = prove(asked, gpu=model.present, timeout_s=limit_s)
    if not proof.passed and model.present and asked.baselines:  # compiling may take too long
        proof = prove(replace(asked, baselines=False), gpu=True, timeout_s=limit_s)
    if not proof.passed:
        raise ProblemError(
            f"No kernel could be proved in {state.name}: {proof.reason}; "
            "name a submodule, or extract its pieces and run them by themselves"
        )
    return replace(state, beginning=json.dumps(asdict(proof)))


def _compose(model: OpenModel, state: ModelState) -> Path:
    kernels = {}
    for piece in state.kept:
        place = model.root / "runs" / piece.name / "best_kernel.py"
        kernels[piece.name] = (place.read_text(encoding="utf-8"), piece.init)
    groups = list(model.groups.values())
    return write_composed(
        model.root / "composed",
        model.captured,
        kernels,
        groups,
        backward=state.settings.backward,
    )


def _question(model: OpenModel, state: ModelState) -> Question:
    settings = state.settings
    return Question(
        settings.model,
        settings.inputs,
        settings.mode,
        settings.piece.contract.precision.value,
        str(_compose(model, state).resolve()),
        settings.piece.seed,
        time=model.present,
        backward=settings.backward,
    )


def hold_to_the_whole(model: OpenModel, state: ModelState, name: str) -> ModelState:
    """Keep a piece that has a kernel only if the model is right with it, and faster."""
    others = len(state.kept) > 1
    asked = replace(_question(model, state), without=(name,) if others else ())
    proof = prove(asked, gpu=model.present, timeout_s=_limit_s(state))
    reason = why_dropped(proof, name)
    if not reason:
        return state
    piece = next(each for each in state.pieces if each.name == name)
    return state.with_piece(replace(piece, status=PieceStatus.DROPPED, reason=reason))


def _limit_s(state: ModelState) -> float:
    """Seconds for one more proof, so that a second one has time, too."""
    return min(LONGEST_PROOF_S, max(_LEAST_PROOF_S, state.left_s(state.seconds) / 2))


def why_dropped(proof: Proof, name: str) -> str:
    """Why a piece does not stay in a model that was proved with it; empty if it does."""
    if not proof.passed:
        return f"the whole is not right with it: {proof.reason}"
    ways = proof.without.get(name)
    if ways is None:  # it is alone: without it the model is as it was
        eager = [gain for way, gain in proof.gains.items() if way.startswith(EAGER)]
        ways = [(1 / median, 1 / low) for median, low in eager]
    if not ways:
        return ""
    median, high = (math.prod(each[end] for each in ways) ** (1 / len(ways)) for end in (0, 1))
    if median < _KEPT_BELOW and high < 1:
        return ""
    return f"the whole takes {median:.3f} of its time without it (95% below {high:.3f})"


def prove_whole(model: OpenModel, state: ModelState) -> ModelState:
    """The proof of what is composed; pieces without which alone it holds are dropped."""
    beginning = Proof(**json.loads(state.beginning)) if state.beginning else None
    while state.kept:
        model.say(f"proving the whole with {len(state.kept)} pieces")
        names = tuple(piece.name for piece in state.kept)
        asked = replace(_question(model, state), without=names if len(names) > 1 else ())
        best = beginning.best if beginning is not None else ()
        limit_s = _limit_s(state)
        proof = prove(replace(asked, against=best), gpu=model.present, timeout_s=limit_s)
        if not proof.passed and best:  # compiling the best baseline again may take too long
            proof = prove(asked, gpu=model.present, timeout_s=limit_s)
        if proof.passed:
            return replace(state, proof=json.dumps(asdict(_with_baselines(proof, beginning))))
        culprits = [piece for piece in state.kept if not _holds_alone(model, state, piece)]
        for piece in culprits or state.kept:
            reason = f"the whole is not right with it: {proof.reason}"
            dropped = replace(piece, status=PieceStatus.DROPPED, reason=reason)
            state = state.with_piece(dropped)
        write_state(model.directory, state)
    return replace(state, proof="")


def _with_baselines(proof: Proof, beginning: Proof | None) -> Proof:
    """With what was timed before the search; what was timed again is as it is now."""
    if beginning is None:
        return proof
    return replace(
        proof,
        baselines_ms={**beginning.baselines_ms, **proof.baselines_ms},
        peak_bytes={**beginning.peak_bytes, **proof.peak_bytes},
        missing=beginning.missing,
    )


def _holds_alone(model: OpenModel, state: ModelState, piece: PieceState) -> bool:
    """Whether the model is right with one kernel and no other."""
    if len(state.kept) == 1:
        return False
    others = replace(
        state,
        pieces=tuple(
            each if each.name == piece.name else replace(each, status=PieceStatus.WAITING)
            for each in state.pieces
        ),
    )
    return prove(replace(_question(model, others), time=False), gpu=model.present).passed
