"""What scores go through between the products: a factor, a bias, a mask, in this order.

A bias is read, or is a ramp: a slope for each head times what is known of each place (pieces.py).
The band of keys that queries see (bands.py) is taken between bias and mask.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from .bands import ENDLESS
from .pieces import Line, Pieces

Steps = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lying:
    """How a mask lies whose keys are not dense, and which a launch lays out beforehand.

    Sizes and steps along outer and inner batch axis, queries and keys, in elements.
    """

    sizes: Steps
    steps: Steps


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask that is read: its steps along outer and inner batch axis and queries, in elements, 0
    where it is the same for all; along keys it is dense.

    Scores become `fill` where one that "hides" is true, and one that "shows" is false. One that is
    "added" is added to them, and one that "admits" adds -inf where it is false, as torch's operator
    does: a score that is infinite becomes NaN. `period`: it begins anew after so many places of the
    outer axis, as one for each window of an image does; 0 if it does not. `lying`: of what it is
    laid out from.
    """

    steps: tuple[int, int, int]
    kind: str
    fill: float
    bytes: int
    is_kept: bool = False  # parameters alone decide it
    period: int = 0
    lying: Lying | None = None

    def argument(self, name: str) -> str:
        """What a kernel is given, of what the launcher is given by this name."""
        return name if self.lying is None else f"laid_{name}"

    def text(self, unit: float, outer: int) -> str:
        """The constants of a kernel that say what it does, and where it lies.

        Args:
            unit: what 1 is among the scores of the kernel.
            outer: places of the outer axis.
        """
        fill = f"{self.fill * unit!r}" if isfinite(self.fill) else "float('-inf')"
        steps = _write_steps("MASK", self.steps)
        return f"MASK={self.kind!r}, FILL={fill}, {steps}, MASK_PERIOD={self.period or outer}"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A bias of a slope for each head times a line, or one below a difference and one from it on.

    `steps`: of the slopes along outer and inner batch axis, 0 where one is for all. `lines`: as in
    pieces.py by row, by column and plus; `cut`: the least key - query of the second. `scale`: what
    the slopes are multiplied by.
    """

    steps: tuple[int, int]
    lines: tuple[Line, ...]
    cut: int = -ENDLESS
    scale: float = 1.0

    @property
    def kind(self) -> str:
        """As of a mask."""
        return "ramp"

    def argument(self, name: str) -> str:
        """What a kernel is given, of what the launcher is given by this name."""
        return name

    @property
    def constants(self) -> tuple[float, ...]:
        """All in one: the cut, both lines, the first twice if there is one, and the scale."""
        lines = map(float, self.lines[0] + self.lines[-1])
        return (self.cut, *lines, self.scale)


@dataclass(frozen=True, slots=True)
class Factor:
    """What all scores of a head are multiplied by, or divided by if it `divides`.

    `steps`: along outer and inner batch axis, in elements, 0 where it is the same for all.
    """

    steps: tuple[int, int]
    divides: bool


def read_lines(value: Pieces) -> tuple[tuple[Line, ...], int] | None:
    """One or two finite lines, and where the second begins; None of other values."""
    pieces = [value.lines[0]]
    pieces += [each for last, each in pairwise(value.lines) if each[1] != last[1]]
    lines = tuple(line for _, line in pieces)
    if len(lines) > 2 or not all(isfinite(plus) for _, _, plus in lines):
        return None
    return lines, -ENDLESS if len(lines) == 1 else int(pieces[1][0])


def write_bias(bias: Mask | Ramp | None) -> str:
    """The constants of a kernel that say what is added to scores."""
    kind = "" if bias is None else bias.kind
    steps = (0, 0, 0) if bias is None else (*bias.steps, 0)[:3]
    ramp = bias.constants if isinstance(bias, Ramp) else (0,)
    return f"BIAS={kind!r}, {_write_steps('BIAS', steps)}, RAMP={ramp!r}"


def write_factor(factor: Factor | None) -> str:
    """The constants of a kernel that say what scores of a head are multiplied by."""
    kind, steps = "", (0, 0)
    if factor is not None:
        kind, steps = "over" if factor.divides else "times", factor.steps
    return f"FACTOR={kind!r}, {_write_steps('FACTOR', steps)}"


def _write_steps(name: str, steps: Steps) -> str:
    axes = zip(("OUTER", "INNER", "ROW"), steps, strict=False)
    return ", ".join(f"{name}_{axis}={step}" for axis, step in axes)
