"""Which lanes of loads and stores masks leave in, from Triton's own IR.

The integers of a program are worked out as numbers: ranges, the numbers that a launch was given,
and the turns of loops, of which a few are looked at. What a mask is made of then says which lanes
it leaves in, for the first program.

Not covered: what was loaded, what a loop hands from turn to turn, and other programs: a mask that
hangs on these is left out.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

#: Turns of a loop that are looked at: all of a short one, else so many, the first and last among
#: them.
_TURNS = 8
_STATEMENT = re.compile(r"^\s*(%[\w$.]+) = ([\w.]+)(.*)$")
_OPERANDS = re.compile(r"%[\w$.]+")
_NUMBER = re.compile(r"^ (?:dense<)?(-?\d+|true|false)>? : ")
_RANGE = re.compile(r"end = (\d+) : i32, start = (\d+)")
_AXIS = re.compile(r"axis = (\d+)")
_SHAPE = re.compile(r"tensor<((?:\d+x)+)")
_FOR = re.compile(r"scf\.for (%[\w$.]+) = (%[\w$.]+) to (%[\w$.]+) step (%[\w$.]+)")
_PREDICATE = re.compile(r"^ (\w+),")
_ITERATED = re.compile(r"(%[\w$.]+) = %[\w$.]+")
_MASKED = re.compile(r"tt\.(load|store) (%[\w$.]+(?:, %[\w$.]+)+)")
_ARITHMETIC: Mapping[str, Callable[..., object]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
}
_COMPARED: Mapping[str, Callable[..., object]] = {
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
    "ult": operator.lt,
    "ule": operator.le,
    "ugt": operator.gt,
    "uge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_SAME = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")


def kept_shares(lines: Sequence[str], given: Mapping[str, int]) -> Mapping[int, float]:
    """For each line that loads or stores under a mask: the share of its lanes that are left in.

    Args:
        lines: of the IR, without locations.
        given: numbers that the launch was given, by their names in the IR.
    """
    sums: dict[int, list[float]] = {}
    for turn in range(_TURNS):
        for number, share in _one_turn(lines, given, turn / (_TURNS - 1)):
            sums.setdefault(number, []).append(share)
    return {number: sum(found) / len(found) for number, found in sums.items()}


def _one_turn(
    lines: Sequence[str], given: Mapping[str, int], place: float
) -> Iterator[tuple[int, float]]:
    """The shares in one turn of every loop, which lies at a place, 0 to 1, of all turns."""
    known: dict[str, np.ndarray | None] = {name: np.array(value) for name, value in given.items()}
    for number, text in enumerate(lines):
        if loop := _FOR.search(text):
            known[loop[1]] = _turn_of([known.get(name) for name in loop.groups()[1:]], place)
            for inner in _ITERATED.findall(text.partition("iter_args(")[2]):
                known[inner] = None
        if masked := _MASKED.search(text):
            operands = _OPERANDS.findall(masked[2])
            at = 1 if masked[1] == "load" else 2
            mask = known.get(operands[at]) if len(operands) > at else None
            if mask is not None:
                yield number, float(mask.mean())
        if statement := _STATEMENT.match(text):
            known[statement[1]] = _evaluate(statement[2], statement[3], known)


def _turn_of(bounds: Sequence[np.ndarray | None], place: float) -> np.ndarray | None:
    """The counter of a loop in the turn that lies at a place of all its turns."""
    if any(bound is None for bound in bounds) or bounds[2] == 0:
        return None
    turns = range(*(int(bound) for bound in bounds if bound is not None))
    return np.array(turns[min(len(turns) - 1, int(place * len(turns)))]) if turns else None


def _evaluate(
    operation: str, rest: str, known: Mapping[str, np.ndarray | None]
) -> np.ndarray | None:
    """What a statement makes; None where it is no integer, or nothing is known of it."""
    if operation == "arith.constant":
        match = _NUMBER.match(rest)
        return None if match is None else _filled(match[1], rest)
    if operation == "tt.make_range" and (match := _RANGE.search(rest)):
        return np.arange(int(match[2]), int(match[1]))
    if operation == "tt.get_program_id":
        return np.array(0)
    operands = [known.get(name) for name in _OPERANDS.findall(rest.partition(" : ")[0])]
    if not operands or any(operand is None for operand in operands):
        return None
    first = operands[0]
    assert first is not None
    if operation in _SAME:
        return first
    if operation in ("tt.splat", "tt.broadcast"):
        return np.broadcast_to(first, _shape(rest.rpartition("->")[2]))
    if operation == "tt.expand_dims" and (axis := _AXIS.search(rest)):
        return np.expand_dims(first, int(axis[1]))
    if len(operands) != 2:
        return None
    if operation == "arith.cmpi" and (named := _PREDICATE.match(rest)):
        return np.asarray(_COMPARED[named[1]](*operands))
    if operation in ("arith.divsi", "arith.remsi") and np.all(operands[1] != 0):
        quotient = np.trunc(first / operands[1]).astype(np.int64)
        return quotient if operation == "arith.divsi" else first - quotient * operands[1]
    if operation in _ARITHMETIC:
        return np.asarray(_ARITHMETIC[operation](*operands))
    return None


def _filled(word: str, rest: str) -> np.ndarray:
    number = word == "true" if word in ("true", "false") else int(word)
    return np.full(_shape(rest.rpartition(" : ")[2]), number)


def _shape(typed: str) -> tuple[int, ...]:
    match = _SHAPE.search(typed)
    return tuple(int(size) for size in match[1].split("x")[:-1]) if match else ()
