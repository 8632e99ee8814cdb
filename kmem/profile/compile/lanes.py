"""How far apart the elements lie that lanes load or store, from Triton's own IR.

Offsets are sums of ranges times numbers, and a range that no number multiplies runs along
neighbours. An argument that Triton knows to be divisible by 16 is taken for 16, the least that it
can be and no 1, for which a kernel is compiled anew. What is computed another way is not known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
_SECTOR_BYTES = 32
_DIVISIBLE = 16
_ARGUMENT = re.compile(r"(%[\w$.]+): i(?:32|64)\b[^,%]*?tt\.divisibility = 16")
_STATEMENT = re.compile(r"^\s*(%[\w$.]+) = ([\w.]+)(.*)$")
_CONSTANT = re.compile(r"^ (?:dense<)?(-?\d+)>? : (.*)$")
_OPERANDS = re.compile(r"%[\w$.]+")
_SHAPE = re.compile(r"tensor<((?:\d+x)*)[^x>]*>$")
_AXIS = re.compile(r"axis = (\d+)")
_ITERATED = re.compile(r"(%[\w$.]+) = (%[\w$.]+)")
_ACCESS = re.compile(r"\btt\.(?:load|store) (%[\w$.]+).*: tensor<((?:\d+x)+)!tt\.ptr<[a-z]+(\d+)")


@dataclass(frozen=True, slots=True)
class _Offset:
    """A value: how it grows along each dimension, None where that is not known; and what it is."""

    steps: tuple[int | None, ...]
    value: int | None = None  # of one that is the same everywhere


def sector_efficiencies(lines: Sequence[str]) -> Mapping[int, float]:
    """For each line that loads or stores: of the bytes of its sectors, the share that it is about.

    Lines are without locations. One whose lanes lie nobody knows how is left out.
    """
    known: dict[str, _Offset] = {}
    found = {}
    for number, text in enumerate(lines):
        for name in _ARGUMENT.findall(text) if "tt.func" in text else ():
            known[name] = _Offset((), _DIVISIBLE)
        if "scf.for" in text:
            for inner, outer in _ITERATED.findall(text.partition("iter_args(")[2]):
                known[inner] = known.get(outer, _Offset((None,)))
        if access := _ACCESS.search(text):
            offset = known.get(access[1])
            shape = [int(size) for size in access[2].split("x")[:-1]]
            if offset is not None and len(offset.steps) == len(shape):
                efficiency = _efficiency(offset.steps, shape, max(1, int(access[3]) // 8))
                if efficiency is not None:
                    found[number] = efficiency
        if statement := _STATEMENT.match(text):
            known[statement[1]] = _evaluate(statement[2], statement[3], known)
    return found


def _efficiency(steps: Sequence[int | None], shape: Sequence[int], item_bytes: int) -> float | None:
    """The share of the sectors' bytes that is asked for."""
    moving = [(step, size) for step, size in zip(steps, shape, strict=True) if size > 1]
    if any(step is None for step, _ in moving):
        return None
    apart = [(abs(step), size) for step, size in moving if step]
    if not apart:
        return None  # one element
    step, size = min(apart)
    if step > 1:
        return item_bytes / min(_SECTOR_BYTES, step * item_bytes)
    run = size * item_bytes
    return run / (-(-run // _SECTOR_BYTES) * _SECTOR_BYTES)


def _evaluate(operation: str, rest: str, known: Mapping[str, _Offset]) -> _Offset:
    """What a statement makes; its result has the rank that its type says."""
    typed = rest.rpartition("->")[2] if "->" in rest else rest.rpartition(":")[2]
    rank = _rank(typed.strip())
    unknown = _Offset((None,) * rank)
    given = [known.get(name, unknown) for name in _OPERANDS.findall(rest)]
    if operation == "arith.constant":
        match = _CONSTANT.match(rest)
        return _Offset((0,) * rank, int(match[1])) if match else unknown
    if operation == "tt.make_range":
        return _Offset((1,))
    if operation == "tt.splat":
        return _Offset((0,) * rank, given[0].value)
    if operation in ("arith.extsi", "arith.extui", "arith.trunci", "tt.broadcast"):
        return given[0]
    if operation == "tt.expand_dims" and (axis := _AXIS.search(rest)):
        steps = given[0].steps
        return _Offset((*steps[: int(axis[1])], 0, *steps[int(axis[1]) :]), given[0].value)
    if len(given) == 2 and operation in ("arith.addi", "tt.addptr"):
        return _Offset(_sum(given[0].steps, given[1].steps, rank))
    if len(given) == 2 and operation == "arith.muli":
        return _product(given[0], given[1], unknown)
    return _Offset((), None) if rank == 0 else unknown


def _rank(typed: str) -> int:
    match = _SHAPE.search(typed.replace("!tt.ptr<", "").replace(">>", ">"))
    return match[1].count("x") if match else 0


def _sum(
    first: tuple[int | None, ...], second: tuple[int | None, ...], rank: int
) -> tuple[int | None, ...]:
    if len(first) != rank or len(second) != rank:
        return (None,) * rank
    pairs = zip(first, second, strict=True)
    return tuple(None if a is None or b is None else a + b for a, b in pairs)


def _product(first: _Offset, second: _Offset, unknown: _Offset) -> _Offset:
    for one, other in ((first, second), (second, first)):
        number = other.value
        if number is not None and not any(other.steps):
            steps = tuple(None if step is None else step * number for step in one.steps)
            return _Offset(steps, None if one.value is None else one.value * number)
    return unknown
