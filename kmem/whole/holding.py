"""A run's composed model held to its model: piece by piece, and in the end.

A piece is kept if the whole is right with it and, where there is a GPU, faster: the time with it
over that without, called and as one CUDA graph, is below 1 by more than timings vary. What is
outside of the kernels runs as eager operators or compiled around them, whichever is faster, with
the piece and without.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kmem.plugins import Registry
from kmem.records import Device, Run
from kmem.run.directory import RunDirectory
from kmem.run.perform import Audience
from kmem.whole.composing.compose import COMPILED_REST, EAGER_REST, write_composed, write_rest
from kmem.whole.cutting.pieces import Cost, PieceGroup
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.source import ModelSource
from kmem.whole.proving.clock import EAGER, LONGEST_COMPILE_S
from kmem.whole.proving.proof import (
    LONGEST_PROOF_S,
    Proof,
    Question,
    prove,
    read_proof,
    together,
)
from kmem.whole.state import ModelState, PieceState, PieceStatus, write_state

#: The whole must be faster by so much with a piece than without, beyond what timings vary.
_KEPT_BELOW = 0.995
#: What a proof gets at least, in seconds.
_LEAST_PROOF_S = 60.0
#: What of it stays for all but compiled ways: as long as so many of the model to itself, and so
#: many seconds. Guesses.
_PROOFS, _BESIDE_COMPILING_S = 1.5, 30.0
#: What is compiled last, for it is chosen by timing on a GPU that nobody else may have meanwhile.
_LAST = "max_autotune"

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


def _compose(model: OpenModel, state: ModelState, place: str) -> Path:
    kernels, problems = {}, {}
    for piece in state.kept:
        kernel = model.root / "runs" / piece.name / "best_kernel.py"
        kernels[piece.name] = (kernel.read_text(encoding="utf-8"), piece.init)
        if piece.pair:
            text = model.file(piece.pair).read_text(encoding="utf-8")
            problems[piece.pair] = (text, state.piece(piece.pair).init)
    groups = list(model.groups.values())
    return write_composed(
        model.root / place,
        model.captured,
        kernels,
        groups,
        problems=problems,
        backward=state.settings.backward,
    )


def question_about(model: OpenModel, state: ModelState, place: str = "composed") -> Question:
    """What is to be proved of the model with the pieces that are kept so far.

    Args:
        place: the directory in the run's that it is composed in.
    """
    settings = state.settings
    return Question(
        settings.model,
        settings.inputs,
        settings.mode,
        settings.piece.contract.precision.value,
        str(_compose(model, state, place).resolve()),
        settings.piece.seed,
        time=model.present,
        backward=settings.backward,
    )


def hold_to_the_whole(model: OpenModel, state: ModelState, name: str) -> ModelState:
    """Keep a piece that has a kernel only if the model is right with it, and faster.

    Of a piece in training, whose forward saves for its backward, one half may pay with the other
    alone: if the whole is no faster with either by itself, both are held to it at once.
    """
    proof, state = _held(model, state, (name,))
    piece = state.piece(name)
    if piece.status is PieceStatus.KEPT or not proof.passed:
        return state
    state = state.with_piece(replace(piece, is_outdone=True))
    halves = (name, piece.pair)
    if not piece.pair or not all(state.piece(half).is_outdone for half in halves):
        return state
    model.say(f"holding {' and '.join(halves)} to the whole at once")
    both = state
    for half in halves:
        both = both.with_piece(replace(both.piece(half), status=PieceStatus.KEPT))
    return _held(model, both, halves)[1]


def _held(model: OpenModel, state: ModelState, names: tuple[str, ...]) -> tuple[Proof, ModelState]:
    """The proof of the model with pieces that are kept, and the state, without them if it fails."""
    limit_s = max(_LEAST_PROOF_S, min(LONGEST_PROOF_S, state.left_s(state.seconds) / 2))
    rests = _rests(model, state)
    is_alone = len(state.kept) == len(names) and rests == (EAGER_REST,)
    name = together(*names)
    asked = replace(question_about(model, state), without=() if is_alone else (name,))
    compile_s = _compile_s(state, limit_s)
    with_rests = replace(asked, rests=rests, compile_s=compile_s)
    proof = prove(with_rests, gpu=model.present, timeout_s=limit_s)
    if _was_ended(proof) and len(rests) > 1:  # by compiling, it may be
        proof = prove(asked, gpu=model.present, timeout_s=limit_s)
    if reason := why_dropped(proof, name):
        for each in names:
            state = state.with_dropped(state.piece(each), reason)
    return proof, state


def _rests(model: OpenModel, state: ModelState) -> tuple[str, ...]:
    """How the operators outside of the kernels may run: a compiled rest has no backward."""
    settings = state.settings
    with_compiler = bool(settings.compiled_ways) and model.present and not settings.backward
    return (EAGER_REST, COMPILED_REST) if with_compiler else (EAGER_REST,)


def _was_ended(proof: Proof) -> bool:
    """Whether a proof failed because its process did, before anything was found."""
    return not proof.passed and not proof.how


def _limit_s(state: ModelState) -> float:
    """Seconds for the last proof, so that a second one, which compiles nothing, has time, too."""
    left_s = state.left_s(state.seconds) - _PROOFS * state.proof_s
    return min(LONGEST_PROOF_S, max(_LEAST_PROOF_S, left_s))


def why_dropped(proof: Proof, name: str) -> str:
    """Why a piece does not stay in a model that was proved with it; empty if it does."""
    if not proof.passed:
        return _fault_of(proof)
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


def _fault_of(proof: Proof) -> str:
    """What is said of a piece that is dropped for a proof that failed."""
    said = "could not be held to the model" if _was_ended(proof) else "is not right"
    return f"the whole {said} with it: {proof.reason}"


def prove_whole(model: OpenModel, state: ModelState) -> ModelState:
    """The proof of what is composed; pieces without which alone it holds are dropped.

    The ways to run the model that are still unknown are timed here, also where nothing is kept.
    """
    beginning = read_proof(state.beginning)
    while state.kept:
        model.say(f"proving the whole with {len(state.kept)} pieces")
        names = tuple(piece.name for piece in state.kept)
        rests = _rests(model, state)
        # each piece was held to the whole when it was kept; every graph without one takes compiling
        without = names if len(names) > 1 and rests == (EAGER_REST,) else ()
        asked = replace(question_about(model, state), without=without)
        best = beginning.best if beginning is not None else ()
        limit_s, started = _limit_s(state), time.monotonic()
        against = (*best, *_untimed(state, beginning))
        compile_s = _compile_s(state, limit_s)
        proof = prove(
            replace(asked, against=against, compile_s=compile_s, rests=rests),
            gpu=model.present,
            timeout_s=limit_s,
        )
        if not proof.passed and against:  # compiling may take too long
            left_s = state.left_s(state.seconds) - (time.monotonic() - started)
            limit_s = min(LONGEST_PROOF_S, max(_LEAST_PROOF_S, left_s))
            proof = prove(asked, gpu=model.present, timeout_s=limit_s)
        if proof.passed:
            write_rest(model.root / "composed", proof.rest)
            return replace(state, proof=json.dumps(asdict(with_baselines(proof, beginning))))
        culprits = [piece for piece in state.kept if not _holds_alone(model, state, piece)]
        for piece in culprits or state.kept:
            state = state.with_dropped(piece, _fault_of(proof))
        write_state(model.directory, state)
    return replace(_with_last_way(model, state, beginning), proof="")


def _untimed(state: ModelState, beginning: Proof | None) -> tuple[str, ...]:
    """The compiled way that is left for the end, if it is asked for."""
    known = beginning is not None and _LAST in {**beginning.baselines_ms, **beginning.missing}
    return (_LAST,) if _LAST in state.settings.compiled_ways and not known else ()


def _compile_s(state: ModelState, limit_s: float) -> float:
    """Of so many seconds for a proof, those for compiled ways."""
    beside_s = _PROOFS * state.proof_s + _BESIDE_COMPILING_S
    return min(LONGEST_COMPILE_S, max(1.0, limit_s - beside_s))


def _with_last_way(model: OpenModel, state: ModelState, beginning: Proof | None) -> ModelState:
    """With what is left to be timed of a model that runs as it is."""
    ways = _untimed(state, beginning)
    limit_s = min(LONGEST_PROOF_S, state.left_s(state.seconds))
    if beginning is None or not ways or not model.present or limit_s < _LEAST_PROOF_S:
        return state
    model.say("timing other ways to run the model")
    asked = replace(
        question_about(model, state),
        draws=0,
        baselines=ways,
        compile_s=_compile_s(state, limit_s),
    )
    found = prove(asked, gpu=True, timeout_s=limit_s)
    if not found.passed:
        return state
    return replace(state, beginning=json.dumps(asdict(with_baselines(beginning, found))))


def with_baselines(proof: Proof, other: Proof | None) -> Proof:
    """With what was timed at another time, too; what both timed is as the proof has it."""
    if other is None:
        return proof
    times = {**other.baselines_ms, **proof.baselines_ms}
    missing = {**other.missing, **proof.missing}
    return replace(
        proof,
        baselines_ms=times,
        peak_bytes={**other.peak_bytes, **proof.peak_bytes},
        missing={name: reason for name, reason in missing.items() if name not in times},
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
    return prove(replace(question_about(model, others), time=False), gpu=model.present).passed
