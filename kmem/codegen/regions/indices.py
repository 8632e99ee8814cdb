"""Where an element of a value lies: a place along each of its dimensions.

A result that is put together from parts is computed box by box. An element of a box is named by its
place along each axis of the box; an index says where that is along each dimension of a value, as an
offset and one step per axis. stepping.py makes of an index into a value that into what the value
was made of. What no such index can say needs smaller boxes, which `NeedsCut` says; what no box can,
is `NotAffine`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

#: Parts of one value that are told apart.
MOST_PARTS = 16


class NotAffine(Exception):
    """An index cannot be said by an offset and one step per axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a box has to be cut along an axis: into ranges from these `starts` on, or into runs.

    With `inner` the axis becomes two: runs of so many elements, and the places in a run.
    """

    axis: int
    starts: tuple[int, ...] = ()
    inner: int = 0


class NeedsCut(Exception):
    """A box is to be cut before an index can be said."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.cut = cut


@dataclass(frozen=True, slots=True)
class Place:
    """Where along one dimension: `offset` plus the place along each axis of a box times its step.

    Along axes of one element, steps are 0.
    """

    offset: int
    steps: tuple[int, ...]

    def last(self, sizes: Sequence[int]) -> int:
        """The largest place of a box of these sizes."""
        return self.offset + sum(
            step * (size - 1) for step, size in zip(self.steps, sizes, strict=True)
        )

    def moved(self, by: int, factor: int = 1) -> "Place":
        """by + factor times this place."""
        steps = tuple(factor * step for step in self.steps)
        return Place(by + factor * self.offset, steps)


#: One place per dimension of a value.
Index: TypeAlias = tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Elements of a value: how many along each axis, and where each of them is."""

    sizes: tuple[int, ...]
    index: Index

    def cut(self, cut: Cut) -> "list[Box]":
        """The boxes that this one falls into."""
        if cut.inner:
            return [self._cut_into_runs(cut.axis, cut.inner)]
        ends = (*cut.starts, self.sizes[cut.axis])
        return [
            self._range(cut.axis, start, end)
            for start, end in zip((0, *cut.starts), ends, strict=True)
        ]

    def without_single_axes(self) -> "Box":
        """The same elements, without axes of one element."""
        axes = [axis for axis, size in enumerate(self.sizes) if size > 1]

        def narrow(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[axis] for axis in axes)

        index = tuple(replace(place, steps=narrow(place.steps)) for place in self.index)
        return Box(narrow(self.sizes), index)

    def _range(self, axis: int, start: int, end: int) -> "Box":
        sizes = (*self.sizes[:axis], end - start, *self.sizes[axis + 1 :])
        moved = tuple(place.moved(place.steps[axis] * start) for place in self.index)
        if end - start == 1:
            moved = tuple(
                replace(place, steps=(*place.steps[:axis], 0, *place.steps[axis + 1 :]))
                for place in moved
            )
        return Box(sizes, moved)

    def _cut_into_runs(self, axis: int, inner: int) -> "Box":
        runs = self.sizes[axis] // inner
        sizes = (*self.sizes[:axis], runs, inner, *self.sizes[axis + 1 :])

        def parted(place: Place) -> Place:
            step = place.steps[axis]
            steps = step * inner if runs > 1 else 0, step
            return replace(place, steps=(*place.steps[:axis], *steps, *place.steps[axis + 1 :]))

        return Box(sizes, tuple(map(parted, self.index)))


def whole_box(shape: Sequence[int]) -> Box:
    """All elements of a value, with an axis for each of its dimensions."""
    places = [
        Place(0, tuple(int(size > 1 and axis == dim) for axis in range(len(shape))))
        for dim, size in enumerate(shape)
    ]
    return Box(tuple(shape), tuple(places))


def broadcast(index: Index, shape: Sequence[int], sizes: Sequence[int]) -> Index:
    """The index into an operand of a shape that broadcasts from the right."""
    nowhere = Place(0, (0,) * len(sizes))
    dims = index[len(index) - len(shape) :] if shape else ()
    return tuple(nowhere if size == 1 else place for place, size in zip(dims, shape, strict=True))


def reshaped(
    index: Index, made: Sequence[int], source: Sequence[int], sizes: Sequence[int]
) -> list[Place]:
    """Places along other dimensions of as many elements."""
    rest = Place(0, (0,) * len(sizes))
    for place, size in zip(index, made, strict=True):
        scaled = rest.moved(place.offset, size)
        rest = replace(scaled, steps=tuple(map(sum, zip(scaled.steps, place.steps, strict=True))))
    found = []
    for dim in range(len(source)):
        place, rest = digit(rest, prod(source[dim + 1 :]), sizes)
        found.append(place)
    return found


def digit(number: Place, base: int, sizes: Sequence[int]) -> tuple[Place, Place]:
    """number // base and number % base.

    Raises NeedsCut, NotAffine: if the box is too large for that, or no box is small enough.
    """
    above, below = [0] * len(sizes), [0] * len(sizes)
    for axis, (step, size) in enumerate(zip(number.steps, sizes, strict=True)):
        if step % base == 0:
            above[axis] = step // base
        elif step * (size - 1) < base:
            below[axis] = step
        elif base % step == 0 and size % (base // step) == 0:
            raise NeedsCut(Cut(axis, inner=base // step))
        else:
            raise NotAffine
    rest = Place(number.offset % base, tuple(below))
    if rest.last(sizes) >= base:
        raise NotAffine
    return Place(number.offset // base, tuple(above)), rest


def between(place: Place, starts: Sequence[int], sizes: Sequence[int]) -> Cut:
    """The cut of a box that parts lie on both sides of, along the axis of the largest step."""
    last = place.last(sizes)
    axis = max(range(len(sizes)), key=lambda each: place.steps[each])
    step = place.steps[axis]
    within = last - place.offset - step * (sizes[axis] - 1)  # how far the other axes reach
    found: list[int] = []
    for start in starts:
        if start > last:
            break
        count = -((place.offset - start) // step)  # the first whose elements lie behind
        if place.offset + step * (count - 1) + within >= start:
            raise NotAffine
        if count not in found:
            found.append(count)
    if len(found) >= MOST_PARTS:
        raise NotAffine
    return Cut(axis, tuple(found))
