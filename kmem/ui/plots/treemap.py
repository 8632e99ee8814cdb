"""A treemap: where the time of one forward goes, an area for each launch, part or piece.

Areas are as near to squares as a row-wise filling makes them. Source: Bruls, Huizing, van Wijk,
"Squarified Treemaps", 2000.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.problem.breakdown import Breakdown, TimePart
from kmem.records import Profile
from kmem.ui.figures import describe_ms
from kmem.ui.plots.frame import WIDTH
from kmem.whole.state import ModelState, PieceState, PieceStatus

HEIGHT = 240
#: More would be slivers: the shortest stand together.
_MOST = 24
_SHADES = 5
#: How much faster a part could be, at least, to have each shade but the last.
_GAINS = (10.0, 5.0, 2.5, 1.5)
#: Share of a model's time outside its pieces that has an area of its own.
_REST_SHOWN = 0.001
#: A letter of a label in pixels, about.
_LETTER_PX = 7.0
#: A name that is cut shorter says nothing.
_LEAST_LETTERS = 7


@dataclass(frozen=True, slots=True)
class Tile:
    """One area, in pixels, with what is written on it and what it says when it is asked."""

    x: float
    y: float
    width: float
    height: float
    name: str
    label: str
    time: str
    text: str
    shade: int  # 0 for the largest, or for what has most to gain
    place: str = ""  # where it is in the module


@dataclass(frozen=True, slots=True)
class Treemap:
    """The tiles, and the whole in a sentence."""

    tiles: tuple[Tile, ...]
    summary: str
    legend: tuple[str, ...] = ()  # what the shades say, from 0 on; empty where they only rank


@dataclass(frozen=True, slots=True)
class _Area:
    x: float
    y: float
    width: float
    height: float


def draw_treemap(profile: Profile) -> Treemap | None:
    """The launches of a profile by their time; None where fewer than two have one."""
    timed = [(launch.name, launch.duration_ms) for launch in profile.launches if launch.duration_ms]
    if len(timed) < 2:
        return None
    total = sum(ms for _, ms in timed)
    ranked = sorted(timed, key=lambda entry: -entry[1])
    if len(ranked) > _MOST:
        rest = ranked[_MOST - 1 :]
        ranked = [
            *ranked[: _MOST - 1],
            (f"{len(rest)} more launches", sum(ms for _, ms in rest)),
        ]
    areas = fill_area([ms for _, ms in ranked], WIDTH, HEIGHT)
    tiles = [
        _tile(name, ms, total, area, min(place, _SHADES - 1))
        for place, ((name, ms), area) in enumerate(zip(ranked, areas, strict=True))
    ]
    name, most = ranked[0]
    summary = f"{len(timed)} launches, {describe_ms(total)}; {name} takes {most / total:.0%}"
    return Treemap(tuple(tiles), summary)


def _tile(name: str, time_ms: float, total: float, area: _Area, shade: int) -> Tile:
    share = f"{describe_ms(time_ms)}, {time_ms / total:.0%}"
    letters = int((area.width - 14) / _LETTER_PX)
    named = letters >= min(len(name), _LEAST_LETTERS)
    fitting = share if len(share) <= letters else f"{time_ms / total:.0%}"
    label = name if len(name) <= letters else f"{name[: max(letters - 1, 0)]}…"
    return Tile(
        round(area.x, 1),
        round(area.y, 1),
        round(area.width, 1),
        round(area.height, 1),
        name,
        label if named and area.height >= 22 else "",
        fitting if named and len(fitting) <= letters and area.height >= 42 else "",
        f"{name}: {share}",
        shade,
    )


def draw_breakdown(whole: Breakdown) -> Treemap:
    """The parts of a module by the time that eager takes for them, shaded by what is to be won."""
    parts, rest = list(whole.parts), whole.rest
    if len(parts) > _MOST - 1:
        left = [*parts[_MOST - 1 :], *filter(None, [rest])]
        parts = parts[: _MOST - 1]
        rest = TimePart(
            "",
            f"{whole.nodes - sum(part.calls for part in parts)} more operators",
            1,
            sum(part.eager_ms for part in left),
            sum(part.least_ms for part in left),
        )
    shown = [*parts, *filter(None, [rest])]
    shown.sort(key=lambda part: -part.eager_ms)
    areas = fill_area([part.eager_ms for part in shown], WIDTH, HEIGHT)
    tiles = [_part_tile(part, whole, area) for part, area in zip(shown, areas, strict=True)]
    first = whole.parts[0]
    share = f"{first.eager_ms / whole.eager_ms:.0%}"
    summary = f"{_part_name(first)} takes {share}; shades say how much faster a part could be"
    legend = [f"{factor:g}×" for factor in _GAINS] + ["less"]
    return Treemap(tuple(tiles), summary, tuple(legend))


def _part_name(part: TimePart) -> str:
    name = f"{part.operator} ×{part.calls}" if part.calls > 1 else part.operator
    return f"{name} in {part.module}" if part.module else name


def _part_tile(part: TimePart, whole: Breakdown, area: _Area) -> Tile:
    name = f"{part.operator} ×{part.calls}" if part.calls > 1 else part.operator
    letters = int((area.width - 14) / _LETTER_PX)
    if len(name) > letters:
        name = part.operator
    tile = _tile(name, part.eager_ms, whole.eager_ms, area, _shade(part))
    place = part.module
    if len(place) > letters:  # its end says more than its beginning
        place = f"…{place[len(place) - letters + 1 :]}"
    attainable = f"attainable {describe_ms(part.least_ms)}"
    return replace(
        tile,
        text=f"{_part_name(part)}: {describe_ms(part.eager_ms)}, "
        f"{part.eager_ms / whole.eager_ms:.0%}; {attainable}",
        place=place if letters >= 6 and area.height >= 58 else "",
    )


def draw_pieces(state: ModelState) -> Treemap | None:
    """The pieces of a model by the time that eager takes for them; shades say how each stands."""
    shown = [_standing(piece) for piece in state.parts if piece.eager_ms > 0]
    rest = state.total_ms - sum(each.time_ms for each in shown)
    if rest > _REST_SHOWN * state.total_ms:
        shown.append(_Standing("in no piece", rest, len(PieceStatus), "left to the library"))
    if not shown:
        return None
    shown.sort(key=lambda each: -each.time_ms)
    areas = fill_area([each.time_ms for each in shown], WIDTH, HEIGHT)
    total = sum(each.time_ms for each in shown)
    tiles = []
    for each, area in zip(shown, areas, strict=True):
        tile = _tile(each.name, each.time_ms, total, area, each.shade)
        tiles.append(replace(tile, text=f"{tile.text}; {each.state}"))
    share = f"{shown[0].time_ms / total:.0%}"
    summary = f"{shown[0].name} takes {share}; shades say how each piece stands"
    legend = (*(status.value for status in PieceStatus), "in no piece")
    return Treemap(tuple(tiles), summary, legend)


@dataclass(frozen=True, slots=True)
class _Standing:
    name: str
    time_ms: float
    shade: int
    state: str


def _standing(piece: PieceState) -> _Standing:
    name = f"{piece.name} ×{piece.calls}" if piece.calls > 1 else piece.name
    shade = list(PieceStatus).index(piece.status)
    return _Standing(name, piece.eager_ms * piece.calls, shade, piece.status.value)


def _shade(part: TimePart) -> int:
    gain = part.eager_ms / part.least_ms if part.least_ms > 0 else _GAINS[0]
    return next((place for place, least in enumerate(_GAINS) if gain >= least), len(_GAINS))


def fill_area(sizes: Sequence[float], width: float, height: float) -> list[_Area]:
    """An area for each of the sizes, which are positive and fall; together they fill all of it."""
    scale = width * height / sum(sizes)
    left = [size * scale for size in sizes]
    rest = _Area(0.0, 0.0, width, height)
    placed: list[_Area] = []
    while left:
        side = min(rest.width, rest.height)
        row = left[:1]
        while len(row) < len(left) and _worst([*row, left[len(row)]], side) <= _worst(row, side):
            row.append(left[len(row)])
        areas, rest = _lay(row, rest)
        placed += areas
        left = left[len(row) :]
    return placed


def _worst(row: Sequence[float], side: float) -> float:
    """The longest proportion of the areas of a row along a side."""
    total = sum(row)
    return max(side * side * max(row) / (total * total), total * total / (side * side * min(row)))


def _lay(row: Sequence[float], rest: _Area) -> tuple[list[_Area], _Area]:
    """The areas of a row along the shorter side, and what is left beside it."""
    thick = sum(row) / min(rest.width, rest.height)
    areas: list[_Area] = []
    along = 0.0
    for size in row:
        length = size / thick
        if rest.width >= rest.height:
            areas.append(_Area(rest.x, rest.y + along, thick, length))
        else:
            areas.append(_Area(rest.x + along, rest.y, length, thick))
        along += length
    if rest.width >= rest.height:
        return areas, _Area(rest.x + thick, rest.y, max(rest.width - thick, 1e-9), rest.height)
    return areas, _Area(rest.x, rest.y + thick, rest.width, max(rest.height - thick, 1e-9))
