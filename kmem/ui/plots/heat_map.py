"""A heat map: the best time at each pair of values of two knobs, whatever the others are."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.learning.landscape import Landscape, Point
from kmem.records import Knob
from kmem.ui.figures import describe_ms

#: How much slower than the best each shade reaches; what is slower yet has the last.
SHADES = (1.02, 1.1, 1.25, 1.6, 2.5)


@dataclass(frozen=True, slots=True)
class Axis:
    """A knob of a site, and its values in the recipe's order."""

    site: int
    recipe: str
    knob: str
    values: tuple[Knob, ...]

    @property
    def key(self) -> str:
        """The axis as a parameter of an address."""
        return f"{self.site}.{self.knob}"


@dataclass(frozen=True, slots=True)
class Square:
    """One field: `shade` is "h0" (as fast as the best) to "h5", "refused", or "none"."""

    shade: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The fields by rows: each value of the axis downwards with one for each value across."""

    across: Axis
    down: Axis
    rows: tuple[tuple[Knob, tuple[Square, ...]], ...]


def axes_of(landscape: Landscape) -> list[Axis]:
    """Every knob that has more than one recorded value, those with most values first."""
    axes = []
    for place, site in enumerate(landscape.header.sites):
        for knob, values in site.knobs:
            axis = Axis(place, site.recipe, knob, values)
            tried = {_value(point, axis, landscape) for point in landscape.settings.values()}
            used = tuple(value for value in values if value in tried)
            if len(used) > 1:
                axes.append(Axis(place, site.recipe, knob, used))
    return sorted(axes, key=lambda axis: -len(axis.values))


def draw_heat_map(landscape: Landscape, across: Axis, down: Axis) -> HeatMap:
    """The map of a landscape over two of its axes."""
    found: dict[tuple[Knob | None, Knob | None], list[Point]] = {}
    for point in landscape.settings.values():
        place = _value(point, across, landscape), _value(point, down, landscape)
        found.setdefault(place, []).append(point)
    times = [point.latency_ms for point in landscape.settings.values() if point.latency_ms]
    best_ms = min(times, default=0.0)
    return HeatMap(
        across,
        down,
        tuple(
            (low, tuple(_square(found.get((high, low), []), best_ms) for high in across.values))
            for low in down.values
        ),
    )


def _square(points: Sequence[Point], best_ms: float) -> Square:
    if not points:
        return Square("none", "", "not recorded")
    times = [point.latency_ms for point in points if point.latency_ms]
    settings = f"{len(points)} settings" if len(points) > 1 else "1 setting"
    if not times:
        return Square("refused", "×", f"{points[0].status.value.replace('_', ' ')}; {settings}")
    ratio = min(times) / best_ms
    shade = sum(ratio > limit for limit in SHADES)
    return Square(f"h{shade}", describe_ms(min(times)), f"{ratio:.2f}× the best; {settings}")


def _value(point: Point, axis: Axis, landscape: Landscape) -> Knob | None:
    site = landscape.header.sites[axis.site]
    for choice in point.choices:
        if choice.site == site.name and choice.recipe == site.recipe:
            return dict(choice.knobs).get(axis.knob)
    return None
