"""The model of a run opened: captured, cut, and its pieces written as problem files."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kmem.devices import resolve_target
from kmem.plugins import Registry
from kmem.problem.source.load import execute_problem, load_problem
from kmem.records import Contract
from kmem.run.directory import RunDirectory
from kmem.whole.accounting.measured import find_cost
from kmem.whole.cutting.extract import write_pieces
from kmem.whole.cutting.pieces import PieceGroup, find_pieces, find_stretches, holds
from kmem.whole.graphs.capture import capture
from kmem.whole.graphs.source import read_source
from kmem.whole.holding import OpenModel, Watch
from kmem.whole.state import ModelSettings, ModelState, PieceState, read_state
from kmem.whole.training.groups import (
    BACKWARD_SHARE,
    backward_least_ms,
    backward_operators,
    with_backwards,
)

#: Of a model that falls into more, as an unrolled recurrence does, those that take most.
MOST_PIECES = 24


def open_model(
    settings: ModelSettings,
    root: Path,
    registry: Registry,
    watch: Watch,
    say: Callable[[str], None],
    *,
    whole_first: bool,
) -> tuple[OpenModel, ModelState]:
    """Capture, cut, and write the pieces as problem files; the state of a run that begins.

    Args:
        whole_first: whether a run that begins tries what several pieces make up before these.
    """
    contract = settings.piece.contract
    device, present = resolve_target(settings.piece.target)
    source = read_source(settings.model, settings.inputs, mode=settings.mode)
    captured = capture(source, contract.precision)
    cost = find_cost(source, captured, device, contract, present=present)
    known = read_state(root)
    backward = settings.backward
    groups = find_pieces(captured, cost, device, contract, backward=backward)
    stretches: tuple[PieceGroup, ...] = ()
    if whole_first or known is not None:
        stretches = find_stretches(captured, cost, device, contract, backward=backward)
    if known is None:
        groups = (*stretches, *groups[:MOST_PIECES])
    else:  # times that are measured anew rank them otherwise
        names = {piece.name for piece in known.pieces}
        groups = tuple(group for group in (*stretches, *groups) if group.name in names)
    left = captured.left
    if backward:
        say("tracing the backwards of its pieces")
        groups, without = with_backwards(captured, groups)
        left = (*left, *without)
    directory = RunDirectory(root)
    pieces = RunDirectory(root / "pieces")
    if known is None:
        write_pieces(pieces, source, captured, groups, contract.precision)
    model = OpenModel(
        source,
        captured,
        cost,
        {group.name: group for group in groups},
        device,
        present,
        directory,
        registry,
        watch,
        say,
    )
    state = ModelState(
        replace(settings, piece=replace(settings.piece, out=None)),  # it may be moved
        captured.name,
        device.name,
        cost.estimated,
        cost.total_ms(captured) * (1 + BACKWARD_SHARE * backward),
        tuple(piece for group in groups for piece in _piece_states(model, group, contract)),
        left,
    )
    say(f"{captured.name}: {len(state.parts)} pieces in {root}")
    return model, state


def _piece_states(model: OpenModel, group: PieceGroup, contract: Contract) -> Iterator[PieceState]:
    """A piece and, where it is trained, its backward."""
    others = [each for each in model.groups.values() if each is not group]
    held = [each for each in others if holds(group, each)] if group.is_stretch else []
    names = [each.name for each in held]
    names += [each.backward_name for each in held if each.joint is not None]
    forward = PieceState(
        group.name,
        group.module,
        group.operators,
        group.calls,
        group.eager_ms,
        group.least_ms,
        _init_of(model, group.name),
        holds=tuple(names),
    )
    if group.joint is None:
        yield forward
        return
    name = group.backward_name
    yield replace(forward, pair=name)
    yield replace(
        forward,
        name=name,
        operators=backward_operators(group),
        eager_ms=group.eager_ms * BACKWARD_SHARE,
        least_ms=backward_least_ms(group, model.device, contract),
        init=_init_of(model, name),
        pair=group.name,
    )


def _init_of(model: OpenModel, name: str) -> tuple[int, ...]:
    module = execute_problem(load_problem(model.file(name)))
    return tuple(module.get_init_inputs())
