"""The frame of a plot in SVG: scales, ticks, and points placed; templates draw it.

Colours are classes of the page's style sheet, so that a plot follows light and dark.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 860, 340
LEFT, RIGHT = 72, 162
TOP, BOTTOM = 14, 40
#: Labels beside a plot keep this distance in pixels, so that none lies over another.
_LABEL_PX = 15


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: where it is, in pixels, and what it says."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A time in a plot: a candidate's or a run's, and what it says when it is asked."""

    x: float
    y: float
    of: str  # the kernel's hash, or the run's id
    text: str
    leads: bool  # whether it was the best so far


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line: a baseline, the bound, the best; its label stands at `label_y`."""

    kind: str
    text: str
    y: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Values of an axis to pixels, straight or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, in pixels."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high = math.log10(low), math.log10(high)
            value = math.log10(max(value, 1e-12))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def log_scale(values: Sequence[float]) -> Scale:
    """The vertical axis of positive values, with a margin of a twentieth of its decades."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.05 * (high - low), 0.04)
    return Scale(10 ** (low - margin), 10 ** (high + margin), HEIGHT - BOTTOM, TOP, True)


def log_ticks(scale: Scale, describe: Callable[[float], str] = "{:.3g}".format) -> list[Tick]:
    """1, 2 and 5 of each decade in range; equal steps where that makes fewer than three."""
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for steps in ((1,), (1, 2, 5)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        values = [value for value in values if scale.low <= value <= scale.high]
        if len(values) >= 3:
            break
    else:
        values = _equal_steps(scale.low, scale.high)
    values = values[:: max(1, len(values) // 8)]
    return [Tick(scale.place(value), describe(value)) for value in values]


def _equal_steps(low: float, high: float) -> list[float]:
    """About five round values between two that are less than a decade apart."""
    least = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(least))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= least)
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def count_ticks(scale: Scale, last: int) -> list[Tick]:
    """Whole numbers from 1, at most about ten."""
    step = max(1, last // 8)
    size = 10 ** (len(str(step)) - 1)
    step = math.ceil(step / size) * size
    numbers = sorted({1, *range(step, last + 1, step)})
    return [Tick(scale.place(number), str(number)) for number in numbers]


def spread_labels(levels: Sequence[tuple[str, str, float]]) -> list[Level]:
    """Lines (kind, text, y) with their labels moved apart, downwards, where they would overlap."""
    spread: list[Level] = []
    for kind, text, y in sorted(levels, key=lambda level: level[2]):
        label_y = max(y, spread[-1].label_y + _LABEL_PX) if spread else y
        spread.append(Level(kind, text, y, label_y))
    lowest = HEIGHT - 4
    if spread and spread[-1].label_y > lowest:
        up = spread[-1].label_y - lowest
        spread = [Level(each.kind, each.text, each.y, each.label_y - up) for each in spread]
    return spread
