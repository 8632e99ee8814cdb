"""Arithmetic on values that are known at every row and column, piece by piece of column - row.

Each piece is a line: by_row * row + by_column * column + plus. Rows and columns are places along
the last two axes; along others such a value does not change. A comparison of two lines cuts a piece
where they cross, if they differ by a multiple of column - row and a number; else nothing is known.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Line = tuple[int, int, float]  # by_row, by_column, plus
Shape = Sequence[int]
Compare = Callable[[float, float], bool]

AXES = (-2, -1)  # of rows and of columns, as the places in a line too


class Unknown(Exception):
    """A value is not constant, or has no such pieces."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines by column - row, each from its start to the next one's; the first starts at -inf."""

    lines: tuple[tuple[float, Line], ...]

    def at(self, difference: float) -> Line:
        return [line for start, line in self.lines if start <= difference][-1]

    def spans(self) -> Iterator[tuple[float, float, Line]]:
        """Each line with its first column - row, and the one behind its last."""
        ends = [*(start for start, _ in self.lines[1:]), math.inf]
        for (start, line), end in zip(self.lines, ends, strict=True):
            yield start, end, line

    def depends_on(self, axis: int) -> bool:
        return len(self.lines) > 1 or self.lines[0][1][axis + 2] != 0

    def flipped(self) -> "Pieces":
        """With rows for columns."""
        return Pieces(
            tuple(
                (1 - end, (line[1], line[0], line[2])) for _, end, line in reversed([*self.spans()])
            )
        )

    def moved(self, axis: int, start: int) -> "Pieces":
        """What lies from `start` on along an axis."""
        further = start if axis == -1 else -start
        return Pieces(
            tuple(
                (first - further, (line[0], line[1], line[2] + line[axis + 2] * start))
                for first, line in self.lines
            )
        )

    def widened(self, old: Shape, new: Shape) -> "Pieces":
        """Repeated along axes of one place."""
        found = self
        for axis in AXES:
            if found.depends_on(axis) and size(old, axis) == 1 < size(new, axis):
                if len(found.lines) > 1:
                    raise Unknown
                line = list(found.lines[0][1])
                line[axis + 2] = 0
                found = Pieces(((-math.inf, (line[0], line[1], line[2])),))
        return found

    def placed(self, old: Shape, new: Shape, places: Sequence[int | None]) -> "Pieces":
        """The same value where each of its axes, from the first, has another place.

        Args:
            places: of each axis the new one, counted from the first; None of one that is gone.
        """
        for turn in (False, True):
            if all(self._lies(axis, turn, old, new, places) for axis in AXES):
                return self.flipped() if turn else self
        raise Unknown

    def _lies(
        self, axis: int, turn: bool, old: Shape, new: Shape, places: Sequence[int | None]
    ) -> bool:
        """Whether an axis becomes the one that a line counts along; the other one in a turn."""
        if not self.depends_on(axis):
            return True
        target = -3 - axis if turn else axis
        if size(old, axis) == 1:
            return size(new, target) == 1
        return places[axis] == len(new) + target


def size(shape: Shape, axis: int) -> int:
    return shape[axis] if len(shape) >= -axis else 1


def flat(number: float) -> Pieces:
    return Pieces(((-math.inf, (0, 0, number)),))


def along(by_column: int, plus: int) -> Pieces:
    """plus, plus + by_column, ... along the last axis."""
    return Pieces(((-math.inf, (0, by_column, plus)),))


def add(left: Pieces, right: Pieces, factor: int = 1) -> Pieces:
    """left + factor * right."""
    return _combined((left, right), lambda x, y: _sum(x, y, factor))


def multiply(left: Pieces, right: Pieces) -> Pieces:
    return _combined((left, right), _product)


def compare(compared: Compare, left: Pieces, right: Pieces) -> Pieces:
    """True where two values compare so."""
    pieces: list[tuple[float, Line]] = []
    for start, end, (x, y) in _common(left, right):
        line = _sum(x, y, -1)
        if line[:2] == (0, 0):
            pieces.append((start, (0, 0, compared(x[2], y[2]))))
        else:
            signs = _signs(start, end, line)
            pieces += [(first, (0, 0, compared(sign, 0))) for first, sign in signs]
    return Pieces(tuple(pieces))


def absolute(value: Pieces) -> Pieces:
    pieces: list[tuple[float, Line]] = []
    for start, end, line in value.spans():
        if line[:2] == (0, 0):
            pieces.append((start, (0, 0, abs(line[2]))))
        else:
            signs = _signs(start, end, line)
            pieces += [
                (first, _sum((0, 0, 0), line, -1 if sign < 0 else 1)) for first, sign in signs
            ]
    return Pieces(tuple(pieces))


def logic(compute: Callable[..., bool], *values: Pieces) -> Pieces:
    """A function of truth values."""
    truths = [compare(operator.ne, value, flat(0)) for value in values]
    return _combined(truths, lambda *lines: (0, 0, compute(*(line[2] for line in lines))))


def choose(condition: Pieces, where: Pieces, elsewhere: Pieces) -> Pieces:
    truth = compare(operator.ne, condition, flat(0))
    return _combined((truth, where, elsewhere), lambda is_so, x, y: x if is_so[2] else y)


def triangle(value: Pieces, compared: Compare, diagonal: int) -> Pieces:
    """A value where column - row compares so with a diagonal, else 0."""
    difference = Pieces(((-math.inf, (-1, 1, 0)),))
    return choose(compare(compared, difference, flat(diagonal)), value, flat(0))


def _combined(values: Sequence[Pieces], compute: Callable[..., Line]) -> Pieces:
    return Pieces(tuple((start, compute(*lines)) for start, _, lines in _common(*values)))


def _common(*values: Pieces) -> Iterator[tuple[float, float, list[Line]]]:
    """Pieces in which each value is one line."""
    starts = sorted({start for value in values for start, _ in value.lines})
    for start, end in zip(starts, [*starts[1:], math.inf], strict=True):
        yield start, end, [value.at(start) for value in values]


def _sum(x: Line, y: Line, factor: int) -> Line:
    return x[0] + factor * y[0], x[1] + factor * y[1], x[2] + factor * y[2]


def _product(x: Line, y: Line) -> Line:
    if x[:2] != (0, 0):
        x, y = y, x
    if x[:2] == (0, 0) == y[:2]:
        return 0, 0, x[2] * y[2]
    if x[:2] != (0, 0) or x[2] != int(x[2]):
        raise Unknown
    return y[0] * int(x[2]), y[1] * int(x[2]), y[2] * x[2]


def _signs(start: float, end: float, line: Line) -> Iterator[tuple[float, int]]:
    """Where a line that changes begins to be negative, 0 or positive, and its sign there."""
    slope, plus = line[1:]
    if line[0] != -slope or not math.isfinite(plus) or plus != int(plus):
        raise Unknown
    offset = int(plus)
    root = -offset // slope
    cuts = [root + 1] if -offset % slope else [root, root + 1]
    starts = [start, *(cut for cut in cuts if start < cut < end)]
    for first in starts:
        within = first if math.isfinite(first) else min(cuts[0], end) - 1
        reached = slope * within + offset
        yield first, (reached > 0) - (reached < 0)
