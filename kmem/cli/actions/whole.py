"""Whole models: their tables, their plan, and their pieces as files."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from kmem.cli.display.whole import describe_account, describe_plan
from kmem.cli.options.contract import ContractOptions
from kmem.cli.options.stages import ProfileOptions
from kmem.cli.options.whole import ExtractOptions, ModelOptions
from kmem.devices import detect_device, named_target
from kmem.memory.store import Memory
from kmem.records import Device, Purity
from kmem.run.directory import RunDirectory
from kmem.serialize import to_data
from kmem.ui.alone import treemap_svg
from kmem.whole.accounting.account import Account, account_for, breakdown_of
from kmem.whole.accounting.measured import find_cost
from kmem.whole.accounting.remembered import remembered_pieces
from kmem.whole.cutting.extract import describe_pieces, write_pieces
from kmem.whole.cutting.pieces import Cost, PieceGroup, find_pieces, find_stretches
from kmem.whole.graphs.capture import Captured, capture
from kmem.whole.graphs.source import ModelSource, read_source

_say = partial(click.echo, err=True)
_DEFAULT_TARGET = "h200"


def device_for(target: str | None) -> tuple[Device, bool]:
    """The device of the figures, and whether it is here."""
    present = detect_device()
    if target is None and present is not None:
        return present, True
    named = named_target(target or _DEFAULT_TARGET)
    return (present, True) if present is not None and present.name == named.name else (named, False)


@dataclass(frozen=True, slots=True)
class Look:
    """A model captured and cut, with its costs."""

    source: ModelSource
    captured: Captured
    cost: Cost
    groups: tuple[PieceGroup, ...]
    device: Device

    @property
    def total_ms(self) -> float:
        return self.cost.total_ms(self.captured)


def look_at(model: str, options: ModelOptions) -> Look:
    """Capture and cut a model, and find out what it takes: measured where there is a GPU."""
    source = read_source(model, options.inputs, mode=options.mode)
    contract = options.contract.contract
    device, present = device_for(options.target)
    captured = capture(source, contract.precision)
    cost = find_cost(source, captured, device, contract, present=present)
    groups = find_pieces(captured, cost, device, contract)
    return Look(source, captured, cost, groups, device)


def profile_model(model: str, options: ProfileOptions) -> Account:
    """The tables of a model; the treemap goes to a file if one is named."""
    terms = ContractOptions(precision=options.precision, purity=Purity.LIBRARY.value)
    found = look_at(model, ModelOptions(options.inputs, options.target, terms, options.mode))
    captured, contract = found.captured, terms.contract
    with Memory() as memory:
        known = remembered_pieces(memory, found.groups, found.device, contract)
    if options.picture is not None:
        parts = breakdown_of(captured, found.cost, found.device, contract)
        svg = treemap_svg(parts, captured.name)
        place = options.picture.absolute()
        RunDirectory(place.parent).write_text(place.name, svg)
        _say(f"treemap: {options.picture}")
    return account_for(captured, found.cost, found.groups, found.device, contract, known)


def show_account(account: Account, *, as_json: bool) -> None:
    """Print the tables."""
    click.echo(json.dumps(to_data(account)) if as_json else describe_account(account))


def show_plan(model: str, options: ModelOptions, piece_minutes: float, *, as_json: bool) -> None:
    """Print what a run on a model would do."""
    found = look_at(model, options)
    captured, device = found.captured, found.device
    terms = options.contract.contract
    whole = find_stretches(captured, found.cost, device, terms)
    with Memory() as memory:
        known = remembered_pieces(memory, (*whole, *found.groups), device, terms)
    rows = describe_pieces(found.groups, found.total_ms, known)
    stretches = describe_pieces(whole, found.total_ms, known)
    if as_json:
        data = {
            "model": captured.name,
            "device": device.name,
            "estimated": found.cost.estimated,
            "total_ms": found.total_ms,
            "piece_minutes": piece_minutes,
            "stretches": stretches,
            "pieces": rows,
            "left": [list(each) for each in captured.left],
        }
        click.echo(json.dumps(data))
        return
    click.echo(describe_plan(captured, found.cost, rows, stretches, device, piece_minutes))


def extract_pieces(model: str, directory: Path, options: ExtractOptions) -> None:
    """Write pieces as problem files; print the files."""
    found = look_at(model, options.model)
    captured = found.captured
    ranked = sorted(found.groups, key=lambda group: -group.saved_ms())[: options.top]
    precision = options.model.contract.contract.precision
    written = write_pieces(RunDirectory(directory), found.source, captured, ranked, precision)
    rows = describe_pieces(ranked, found.total_ms, {})
    table = {"model": captured.name, "estimated": found.cost.estimated, "pieces": rows}
    RunDirectory(directory).write_text("pieces.json", json.dumps(table, indent=1) + "\n")
    for path, reason in captured.left:
        _say(f"left as it is written: {path or 'the model as a whole'} ({reason})")
    for place in written:
        click.echo(str(place))
