"""What scores go through between the products: a factor, a bias, a mask, in this order.

The band of keys that queries see (bands.py) is taken between bias and mask.
"""

from dataclasses import dataclass
from math import isfinite

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
class Factor:
    """What all scores of a head are multiplied by, or divided by if it `divides`.

    `steps`: along outer and inner batch axis, in elements, 0 where it is the same for all.
    """

    steps: tuple[int, int]
    divides: bool


def write_bias(bias: Mask | None) -> str:
    """The constants of a kernel that say what is added to scores."""
    steps = (0, 0, 0) if bias is None else bias.steps
    return f"BIAS={('' if bias is None else bias.kind)!r}, {_write_steps('BIAS', steps)}"


def write_factor(factor: Factor | None) -> str:
    """The constants of a kernel that say what scores of a head are multiplied by."""
    kind = "" if factor is None else ("over" if factor.divides else "times")
    steps = (0, 0) if factor is None else factor.steps
    return f"FACTOR={kind!r}, {_write_steps('FACTOR', steps)}"


def _write_steps(name: str, steps: Steps) -> str:
    axes = zip(("OUTER", "INNER", "ROW"), steps, strict=False)
    return ", ".join(f"{name}_{axis}={step}" for axis, step in axes)
