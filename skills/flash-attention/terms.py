"""What scores go through between the products, as the kernels see it: masks that are read."""

from dataclasses import dataclass
from math import e as euler
from math import isfinite, log2

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
    does: a score that is infinite becomes NaN. `lying`: of what it is laid out from.
    """

    steps: tuple[int, int, int]
    kind: str
    fill: float
    bytes: int
    is_kept: bool = False  # parameters alone decide it
    lying: Lying | None = None

    def argument(self, name: str) -> str:
        """What a kernel is given, of what the launcher is given by this name."""
        return name if self.lying is None else f"laid_{name}"

    @property
    def text(self) -> str:
        """The constants of a kernel that say what it does, and where it lies."""
        fill = f"{self.fill * log2(euler)!r}" if isfinite(self.fill) else "float('-inf')"
        names = ("OUTER", "INNER", "ROW")
        steps = ", ".join(
            f"MASK_{name}={each}" for name, each in zip(names, self.steps, strict=True)
        )
        return f"MASK={self.kind!r}, FILL={fill}, {steps}"
