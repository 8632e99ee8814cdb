"""A run on a model: piece by piece, as long as it pays, and put together again.

The whole forward is tried first, as one problem: what several pieces make up that run one after
another, with fusion across them. Where it has no kernel that makes the model faster its pieces are
tried, by expected seconds saved per second spent, which are ranked again after each: what the
kernels so far reached of their bounds says what the next may reach. A piece is kept if the whole
gets faster. Every step is in the run's directory, and each piece's run in memory, so that a
killed run goes on where it was.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import OutputError
from kmem.plugins import Registry
from kmem.run.directory import default_run_directory
from kmem.whole.beginning import Beginning
from kmem.whole.cutting.pieces import (
    EXPECTED_SPEED_OF_LIGHT,
    PieceGroup,
)
from kmem.whole.graphs.source import absolute_name, read_source
from kmem.whole.holding import OpenModel, Watch, hold_to_the_whole, prove_whole
from kmem.whole.opening import open_model
from kmem.whole.proving.proof import read_proof
from kmem.whole.report import write_model_report
from kmem.whole.result import ModelResult
from kmem.whole.state import (
    ModelSettings,
    ModelState,
    PieceState,
    PieceStatus,
    read_state,
    write_state,
)
from kmem.whole.trying import PieceCrew, Trials, TrialsHere, TrialsThere

#: What the last proof takes: as long as so many of the model to itself, so much for what it
#: compiles, and so many seconds; at least some, at most a share of all. Guesses.
_PROOFS, _COMPILES = 3.0, 1.3
_BESIDE_S = 30.0
_LEAST_PROOF_S, _MOST_PROOF = 45.0, 0.35
#: What holding a piece to the whole takes: as long as so many proofs of the model to itself. One
#: H200, 2026-11-29, ViT's step of training: 48 s, and the model to itself 19.
_HELD_PROOFS = 2.5
#: Of the time that is left, what all stretches get, so that their pieces have some if they fail.
_STRETCH = 0.6
#: A run of a piece is not begun with less, in minutes.
_LEAST_MINUTES = 0.2
#: In which a piece's first kernel is written, compiled, judged and verified. A guess from runs on
#: level 2, one H200, whose first took 20 to 40 s.
_FIRST_MINUTES = 0.7
#: What kernels of pieces are timed against by themselves.
_BASELINES = ("eager",)


def optimize_model(
    settings: ModelSettings,
    registry: Registry,
    watch: Watch,
    say: Callable[[str], None],
    crew: PieceCrew | None = None,
) -> ModelResult:
    """Make a model fast, or go on with a run that its directory holds.

    Args:
        watch: gives who is told of each piece's run.
        say: told in a line what is being done.
        crew: the workers that pieces run on; None: this process.

    Raises ProblemError, TargetError, OutputError: if it cannot be begun, each with its remedy.
    """
    started = time.monotonic()
    settings = replace(settings, model=absolute_name(settings.model))
    name = read_source(settings.model, settings.inputs, mode=settings.mode).name
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    root = settings.piece.out or default_run_directory(f"{name}-pieces-{stamp}")
    known = read_state(root)
    if known is not None:
        _refuse_another_model(root, known.settings, settings)
        known = replace(known, settings=asked_anew(known.settings, settings))
        settings = known.settings
        if known.finished:
            known = replace(known, finished=why_finished(known))
        if is_over(known):
            say(f"The run in {root} has finished: {known.finished}; nothing is done again.")
            return ModelResult(root, known)
        say(f"going on with the run in {root}")
    # workers try many pieces at once
    model, state = open_model(settings, root, registry, watch, say, whole_first=crew is None)
    if known is not None:
        state = known
    else:
        state = replace(state, began_s=time.monotonic() - started)
        write_state(model.directory, state)
    before_s = state.seconds

    def spent_s() -> float:
        return before_s + time.monotonic() - started

    trials = TrialsHere(model) if crew is None else TrialsThere(model, crew)
    with Beginning(model, state, spent_s()) as beginning:
        state = _go_through_pieces(model, state, spent_s, trials, beginning)
        state = replace(beginning.wait(state), seconds=spent_s())
    write_state(model.directory, state)
    state = prove_whole(model, state)
    state = replace(state, seconds=spent_s())
    write_state(model.directory, state)
    write_model_report(model.directory, state)
    return ModelResult(root, state)


def asked_anew(known: ModelSettings, asked: ModelSettings) -> ModelSettings:
    """A run's settings with other minutes, which may be given later; the rest stays as it was."""
    piece = replace(known.piece, budget=asked.piece.budget)
    return replace(
        known,
        minutes=asked.minutes,
        least_gain=asked.least_gain,
        within=asked.within,
        piece=piece,
    )


def is_over(known: ModelState) -> bool:
    """Whether nothing is left: one that was ended in its last proof has that to do."""
    return bool(known.finished) and bool(known.proof or not known.kept)


def why_finished(known: ModelState) -> str:
    """Why a run that had finished has nothing to do with the minutes that it has now, or ""."""
    piece, reason = next_piece(known, _left_minutes(known, known.seconds))
    return reason if piece is None else ""


def _left_minutes(state: ModelState, spent_s: float) -> float:
    """Of a run; what was spent on the model itself and its baselines does not count.

    Where everything has to end within some minutes, the last proof has its part of them, and that
    by which the piece that is tried next is held to the whole.
    """
    left = state.settings.minutes - (spent_s - state.began_s) / 60
    compile_s = state.compile_s * _COMPILES + _BESIDE_S if state.compile_s else 0.0
    proof_s = max(_LEAST_PROOF_S, state.proof_s * _PROOFS + compile_s)
    if state.settings.within is not None:
        proof_s = min(proof_s, max(_LEAST_PROOF_S, state.settings.within * 60 * _MOST_PROOF))
        beginning = read_proof(state.beginning)
        if beginning is not None and beginning.eager_ms is not None:  # else nothing is timed
            proof_s += state.proof_s * _HELD_PROOFS
    return min(left, (state.left_s(spent_s) - proof_s) / 60)


def _refuse_another_model(root: Path, known: ModelSettings, asked: ModelSettings) -> None:
    ways = [
        (each.model, each.inputs, each.mode, each.backward, each.piece.contract)
        for each in (known, asked)
    ]
    if ways[0] != ways[1]:
        raise OutputError(
            f"{root} holds a run on {' '.join((known.model, *known.inputs))}; begin one on another "
            "model, or with other inputs or another contract, in another directory with --out"
        )


# --- the pieces


def _go_through_pieces(
    model: OpenModel,
    state: ModelState,
    spent_s: Callable[[], float],
    trials: Trials,
    beginning: Beginning,
) -> ModelState:
    began: dict[str, float] = {}  # of each piece that is being tried
    while not state.finished:
        state, reason = _begin_pieces(model, state, spent_s(), trials, began)
        if not began:
            state = replace(state, finished=reason)
            break
        piece = trials.ended()
        before_ms = state.piece(piece.name).eager_ms
        state = state.with_tried(piece)
        is_kept = piece.status is PieceStatus.KEPT and model.present
        state = beginning.settle(state, wait=is_kept)
        if is_kept:
            state = hold_to_the_whole(model, replace(state, seconds=spent_s()), piece.name)
        spent = state.piece(piece.name)
        if spent.status is PieceStatus.KEPT and spent.holds:
            more_ms = (spent.eager_ms - before_ms) * spent.calls
            state = replace(state.without_held(spent), total_ms=state.total_ms + more_ms)
        seconds = spent.seconds + time.monotonic() - began.pop(piece.name)
        state = replace(state.with_piece(replace(spent, seconds=seconds)), seconds=spent_s())
        write_state(model.directory, state)
        model.say(f"{spent.name}: {spent.status.value}, {spent.reason}")
    return state


def _begin_pieces(
    model: OpenModel, state: ModelState, spent_s: float, trials: Trials, began: dict[str, float]
) -> tuple[ModelState, str]:
    """Begin as many pieces as can be tried at once; the state then, and why no more were begun.

    Args:
        began: when each piece was begun that is being tried, to which those begun here are added.
    """
    while len(began) < trials.at_once:
        left = _left_minutes(state, spent_s)
        piece, reason = next_piece(state, left, began)
        if piece is None:
            return state, reason
        model.say(f"{piece.name}: {_expected(state, piece):.3g} ms of a forward may be saved")
        began[piece.name] = time.monotonic()
        told = state.settings.piece
        minutes = _minutes_for(state, piece, left)
        # it stands among eager operators, whatever compiles it by itself: that is the whole's gate
        budget = replace(told.budget, minutes=minutes, baselines=_BASELINES)
        told = replace(told, budget=budget)
        state = state.with_piece(trials.begin(piece, told))
        write_state(model.directory, state)
    return state, ""


def _minutes_for(state: ModelState, piece: PieceState, left_minutes: float) -> float:
    """Of what is left, a share by what a piece may save, so that each that pays has its turn."""
    waiting = [
        each
        for each in state.pieces
        if each.status is PieceStatus.WAITING and bool(each.holds) is bool(piece.holds)
    ]
    all_ms = sum(_expected(state, each) for each in waiting) or 1.0
    share = left_minutes * _expected(state, piece) / all_ms
    most = min(left_minutes, state.settings.piece.budget.minutes)
    if piece.holds:
        most = share = min(left_minutes, share) * _STRETCH
    return max(_LEAST_MINUTES, min(most, max(share, _FIRST_MINUTES)))


def reached_so_far(state: ModelState) -> float:
    """What share of its bound the next piece may reach, from those that have kernels."""
    found = [
        piece.least_ms / piece.kernel_ms
        for piece in state.pieces
        if piece.kernel_ms and piece.status in (PieceStatus.KEPT, PieceStatus.DROPPED)
    ]
    return min(1.0, (EXPECTED_SPEED_OF_LIGHT + sum(found)) / (1 + len(found)))


def _expected(state: ModelState, piece: PieceState) -> float:
    """Milliseconds of one forward that a piece may save."""
    group = PieceGroup(
        piece.name, piece.module, (), (), piece.calls, piece.eager_ms, piece.least_ms
    )
    return group.saved_ms(reached_so_far(state))


def next_piece(
    state: ModelState, left_minutes: float, tried: Collection[str] = ()
) -> tuple[PieceState | None, str]:
    """The piece that pays most, or why there is none; one that was begun comes first.

    Args:
        tried: names of those that are being tried.
    """
    begun = [
        each
        for each in state.pieces
        if each.status is PieceStatus.RUNNING and each.name not in tried
    ]
    if begun:
        return begun[0], ""
    busy = {name for each in state.pieces if each.name in tried for name in each.holds}
    # a stretch in training has two halves, and what it holds waits for both
    later = {
        name for each in state.pieces if each.status is PieceStatus.WAITING for name in each.holds
    }
    waiting = [
        each
        for each in state.pieces
        if each.status is PieceStatus.WAITING
        and each.name not in busy | later
        and not set(each.holds) & set(tried)
    ]
    if not waiting:
        return None, "every piece was tried"
    if left_minutes < _LEAST_MINUTES:
        return None, "the minutes are used up"
    best = max(waiting, key=lambda piece: _expected(state, piece))
    least = state.settings.least_gain * (
        state.total_ms - sum(each.saved_ms for each in state.pieces)
    )
    if _expected(state, best) < least:
        share = state.settings.least_gain
        return None, f"no piece that is left may save {share:.0%} of a forward"
    return best, ""
