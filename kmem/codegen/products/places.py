"""Places along axes as Triton text, through operators that lay data out anew.

A place is mostly a digit of one of two axes: (k // 8) % 4. A view that splits an axis, or merges
what another one split, then costs no arithmetic beyond that of the digits that are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A place along a dimension of `size`: other text, or a digit of an axis of `total` steps."""

    size: int
    axes: frozenset[str]
    other: str = ""
    total: int = 0
    step: int = 1

    @property
    def text(self) -> str:
        """What a kernel computes."""
        if self.other:
            return self.other
        (axis,) = self.axes
        text = axis if self.step == 1 else f"{axis} // {self.step}"
        return text if self.step * self.size >= self.total else f"{text} % {self.size}"


#: Where there is one element.
ZERO = Place(1, frozenset(), "0")


def along(axis: str, size: int) -> Place:
    """Every step of an axis."""
    return Place(size, frozenset({axis}), total=size)


def computed(text: str, size: int, *sources: Place) -> Place:
    """A place that is text made of others."""
    return Place(size, frozenset().union(*(source.axes for source in sources)), text)


def reshape_places(
    places: Sequence[Place], shape: Sequence[int], source: Sequence[int]
) -> list[Place]:
    """Where an element of a shape lies in the source of a view, whose elements have one order."""
    made: list[Place] = []
    outer, inner = list(zip(shape, places, strict=True)), list(source)
    while inner or outer:
        group, sizes = [], []
        have, want = 1, 1
        while True:  # the shortest runs of both that hold as many elements
            if outer and (have < want or not group):
                size, place = outer.pop(0)
                group.append(place)
                have *= size
            elif inner and (want < have or not sizes):
                sizes.append(inner.pop(0))
                want *= sizes[-1]
            else:
                break
        made += _split(_merge(group), sizes)
    return made


def _merge(places: Sequence[Place]) -> Place:
    merged = ZERO
    for place in places:
        if place.size == 1:
            continue
        is_next = not merged.other and not place.other and merged.axes == place.axes
        if merged.size == 1:
            merged = place
        elif is_next and merged.step == place.step * place.size:
            merged = replace(place, size=merged.size * place.size)
        else:
            text = f"({merged.text}) * {place.size} + ({place.text})"
            merged = computed(text, merged.size * place.size, merged, place)
    return merged


def _split(place: Place, sizes: Sequence[int]) -> list[Place]:
    found, step = [], 1
    for size in reversed(sizes):
        if size == 1:
            found.append(ZERO)
        elif size == place.size:
            found.append(place)
        elif place.other:
            found.append(computed(f"({place.other}) // {step} % {size}", size, place))
        else:
            found.append(replace(place, size=size, step=place.step * step))
        step *= size
    return found[::-1]
