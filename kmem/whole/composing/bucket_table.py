"""A model composed at several shapes, bound as a table: a call goes to what was proved at its own.

A composed graph holds at the shapes that it was captured at and at no others. A call at shapes that
are in no row, or whose row has an objection, runs the module's own code, and `status` says why.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kmem.errors import OutputError
from kmem.run.directory import RunDirectory
from kmem.whole.composing.binding import (
    Composed,
    ModelHandle,
    SegmentForward,
    forwards_of,
    read_composed,
)
from kmem.whole.composing.in_place import BoundForward, Standing

TABLE = "table.json"
#: Shapes that a call was not made for are told beside so many that it could have been made for.
_MOST_TOLD = 4

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ComposedTable:
    """Composed models by the label of their shapes; `missing` has those without one, and why."""

    directory: Path
    rows: tuple[tuple[str, Composed], ...]
    missing: tuple[tuple[str, str], ...]


def write_table(
    directory: RunDirectory, rows: Mapping[str, Path], missing: Mapping[str, str]
) -> None:
    """Write down where the composed models lie, by label.

    Args:
        rows: directories inside that of the table.
    """
    places = {label: str(place.relative_to(directory.root)) for label, place in rows.items()}
    data = {"rows": places, "missing": dict(missing)}
    directory.write_text(TABLE, json.dumps(data, indent=1) + "\n")


def read_table(directory: Path) -> ComposedTable | None:
    """The table in a directory; None without one.

    Raises OutputError: if it is damaged.
    """
    place = directory / TABLE
    if not place.is_file():
        return None
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        rows = [(label, read_composed(directory / where)) for label, where in data["rows"].items()]
        missing = tuple(data["missing"].items())
    except (OSError, ValueError, KeyError, AttributeError) as ex:
        raise OutputError(f"{place} is no table of composed models: {ex}; run it again") from ex
    gone = [label for label, composed in rows if composed is None]
    if gone:
        raise OutputError(f"{place}: the composed model at {gone[0]} is gone; run it again")
    return ComposedTable(directory, tuple((x, each) for x, each in rows if each), missing)


def bind_table(model: nn.Module, table: ComposedTable) -> ModelHandle:
    """Bind what was composed at several shapes to one model, as `bind` does at one.

    Raises ValueError: if the model is another one, or has kernels already.
    """
    found: dict[str, list[tuple[str, SegmentForward]]] = {}
    for label, composed in table.rows:
        for forward in forwards_of(model, composed):
            found.setdefault(forward.path, []).append((label, forward))
    forwards = [BucketedForward(rows, table.missing) for rows in found.values()]
    for each in forwards:
        each.install()
    return ModelHandle(forwards)


class BucketedForward(BoundForward):
    """Composed graphs of one module, each for the shapes of its own."""

    def __init__(
        self, rows: Sequence[tuple[str, SegmentForward]], missing: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(rows[0][1].path, rows[0][1].module)
        self._rows, self._missing = rows, missing
        self._by_shapes: dict[Shapes, list[SegmentForward]] = {}
        for _, row in rows:
            self._by_shapes.setdefault(row.shapes, []).append(row)

    def find(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Callable[[], Any] | str:
        shapes = tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))
        reason = ""
        for row in self._by_shapes.get(shapes, ()):
            found = row.find(leaves, spec)
            if not isinstance(found, str):
                row.served += 1
                return found
            reason = reason or found
        return reason or f"{_told(shapes)} is in no row; there are {self._told_rows()}"

    def standings(self) -> list[Standing]:
        rows = [row.standing(label) for label, row in self._rows]
        rows += [Standing(self.path, label, 0, 0, 0, reason) for label, reason in self._missing]
        if self.passed_on:
            rows.append(Standing(self.path, "other calls", 0, 0, self.passed_on, self.reason))
        return rows

    def _told_rows(self) -> str:
        told = list(map(_told, self._by_shapes))
        more = len(told) - _MOST_TOLD
        return ", ".join(told[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


def _told(shapes: Shapes) -> str:
    return " ".join("x".join(map(str, shape)) or "()" for shape in shapes) or "no tensor"
