"""Carry out a run on a whole model, new or taken up again, and say what came of it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from kmem.cli.actions.piece_crew import open_piece_crew
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.run import RunDisplay
from kmem.cli.exit_codes import EXIT_INTERRUPTED, EXIT_NOTHING_BEAT_BASELINE
from kmem.cli.options.run import RunOptions
from kmem.cli.options.whole import PieceOptions
from kmem.errors import OutputError
from kmem.plugins import Registry
from kmem.records import ModelChoice, Run, Strategy
from kmem.run.perform import Audience
from kmem.run.report.first_screen import NOT_REMEMBERED
from kmem.run.setup.settings import RunSettings
from kmem.whole.at_shapes import AskedShapes, optimize_at_shapes, read_asked
from kmem.whole.optimizing import optimize_model
from kmem.whole.result import ModelResult
from kmem.whole.state import ModelSettings, read_state
from kmem.whole.trying import PieceCrew

_say = partial(click.echo, err=True)


def run_model(
    model: str,
    options: RunOptions,
    pieces: PieceOptions,
    models: tuple[ModelChoice, ...],
    registry: Registry,
    *,
    shapes: str | None,
    as_json: bool,
) -> None:
    """Make a model fast piece by piece, with progress on stderr; print where it lies.

    Args:
        shapes: at which it is made fast, as `--shapes` says them; None for its own.
    """
    budget = replace(options.budget, minutes=min(options.minutes, pieces.piece_minutes))
    told = RunSettings(
        budget,
        options.contract.contract,
        options.target,
        None,
        options.memory_mode,
        options.authors,
        models,
        Strategy(options.strategy),
        options.out,
        options.seed,
    )
    settings = ModelSettings(
        model,
        pieces.inputs,
        options.mode,
        options.minutes,
        told,
        pieces.least_gain,
        backward=pieces.backward,
        within=pieces.within,
    )
    if shapes is not None:
        _carry_out_shapes(AskedShapes(settings, shapes), registry, as_json=as_json)
        return
    if options.where.executor == "local":
        _carry_out(settings, registry, as_json=as_json)
        return
    with (
        interrupt_on_termination(),
        open_piece_crew(options.where, pieces.gpus, options.target, registry) as crew,
    ):
        _carry_out(settings, registry, as_json=as_json, crew=crew)


def resume_model(directory: Path, registry: Registry, *, as_json: bool) -> None:
    """Go on with the run in a directory."""
    asked = read_asked(directory)
    if asked is not None:
        piece = replace(asked.settings.piece, out=directory)
        again = replace(asked, settings=replace(asked.settings, piece=piece))
        _carry_out_shapes(again, registry, as_json=as_json)
        return
    state = read_state(directory)
    if state is None:
        raise OutputError(f"{directory} holds no run on a model; give the directory of one")
    piece = replace(state.settings.piece, out=directory)
    _carry_out(replace(state.settings, piece=piece), registry, as_json=as_json)


def _carry_out(
    settings: ModelSettings, registry: Registry, *, as_json: bool, crew: PieceCrew | None = None
) -> None:
    with _interruptible(settings):
        result = optimize_model(settings, registry, _watch, _say, crew)
    _tell(result, as_json=as_json)


def _carry_out_shapes(asked: AskedShapes, registry: Registry, *, as_json: bool) -> None:
    with _interruptible(asked.settings):
        found = optimize_at_shapes(asked, registry, _watch, _say)
    _say(str(found))
    if as_json:
        rows = [
            {"shape": label, "fault": result}
            if isinstance(result, str)
            else {"shape": label, **_data(result)}
            for label, result in found.results
        ]
        click.echo(json.dumps({"directory": str(found.directory), "shapes": rows}))
    elif found.proved:
        click.echo(str(found.directory))
    if not found.is_faster:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


@contextmanager
def _interruptible(settings: ModelSettings) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        where = settings.piece.out or "the run's directory"
        _say(f"\nInterrupted. Nothing measured is lost: kmem runs resume {where}")
        raise SystemExit(EXIT_INTERRUPTED) from None


def _watch(run: Run) -> Audience:
    return Audience(RunDisplay(run), _say)


def _tell(result: ModelResult, *, as_json: bool) -> None:
    _say(str(result))
    if result.state.estimated:
        _say(NOT_REMEMBERED)
    _say(f"report: {result.directory / 'report.md'}")
    if as_json:
        click.echo(json.dumps(_data(result)))
    elif result.is_proved:
        click.echo(str(result.directory / "composed"))
    if not result.is_faster:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


def _data(result: ModelResult) -> dict[str, object]:
    state = result.state
    return {
        "model": state.name,
        "directory": str(result.directory),
        "device": state.device,
        "estimated": state.estimated,
        "faster": result.is_faster,
        "proved": result.is_proved,
        "speedup": result.speedup,
        "before_ms": state.total_ms,
        "after_ms": result.after_ms,
        "beginning": json.loads(state.beginning) if state.beginning else None,
        "proof": json.loads(state.proof) if state.proof else None,
        "stopped": state.finished,
        "began_s": state.began_s,
        "seconds": state.seconds,
        "parts": [piece.name for piece in state.parts],
        "pieces": [
            {
                "name": piece.name,
                "module": piece.module,
                "calls": piece.calls,
                "status": piece.status.value,
                "eager_ms": piece.eager_ms,
                "kernel_ms": piece.kernel_ms,
                "saved_ms": piece.saved_ms,
                "run": piece.run,
                "reason": piece.reason,
                "holds": list(piece.holds),
            }
            for piece in state.pieces
        ],
    }
