"""Sizes between those of a table: an entry's kernel with the numbers of another size.

A kernel reads sizes as constants of its file. Where a recipe writes the same code, with masks, at
every size of a range, the table holds that code's constants, and the shapes and calls of the
module, as texts whose numbers are formulas of the size. An entry for a further size is made at its
first call; from then on it is found by the one lookup that finds every entry. Its kernel compiles
at that call, as any.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kmem.deploy.shipped.table import Between, Entry, Part, read_calls, read_input


def find_between(entries: Sequence[Entry], inputs: Sequence[Any]) -> Entry | None:
    """The first of some entries that serves inputs of a size around its own, as an entry for that.

    None if there is none, or if a tracer is at work: to it a size is no number.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return None
    for entry in entries:
        for between in entry.between:
            size = _size_of(between, inputs)
            if size is not None:
                return entry_at(entry, between, size)
    return None


def _size_of(between: Between, inputs: Sequence[Any]) -> int | None:
    """The size that inputs have, by the extent that tells it; None outside of the range."""
    place = between.place
    if place.input >= len(inputs) or not isinstance(inputs[place.input], torch.Tensor):
        return None
    shape = inputs[place.input].shape
    if place.axis >= len(shape) or not isinstance(shape[place.axis], int):
        return None
    size, rest = divmod(shape[place.axis] - place.summand, place.factor)
    return size if rest == 0 and between.low <= size <= between.high else None


def entry_at(entry: Entry, between: Between, size: int) -> Entry:
    """An entry as it is at another size of its range."""
    shapes = json.loads(text_at(between.shapes, size))
    return replace(
        entry,
        name=f"{entry.name}_at_{between.size.lower()}{size}",
        graph="",  # nobody has traced the module at this size: its calls tell what it computes
        calls=read_calls(shapes["calls"]),
        inputs=tuple(map(read_input, shapes["inputs"])),
        outputs=tuple(map(read_input, shapes["outputs"])),
        kernel=between.kernel,
        kernel_sha256=between.kernel_sha256,
        constants=text_at(between.constants, size),
        between=(),
    )


def text_at(parts: Sequence[Part], size: int) -> str:
    """A text at a size: (a, b, c, d) stands for a * size + b over c, rounded up, d times."""
    return "".join(part if isinstance(part, str) else _number_at(*part, size) for part in parts)


def _number_at(a: int, b: int, c: int, d: int, size: int) -> str:
    return str(d * -(-(a * size + b) // c))
