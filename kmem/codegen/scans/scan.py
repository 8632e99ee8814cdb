"""What a scan recipe writes: a running sum, product or extreme, what stands around it folded in.

Owned here: the records that describe one scan (`Scan` and its loads and store), whatever flips,
shifts, paddings and masks stood around it in the graph. Found by matching.py; written by
launches.py; tuned by space.py.
"""

from dataclasses import dataclass

from kmem.codegen.regions.region import Map
from kmem.recipes import Operand


@dataclass(frozen=True, slots=True)
class ScanLoad:
    """`name` = an element of input `operand`.

    The element lies, in elements, at base + the sum of kept index times stride + position times
    step. It exists for positions low..high; elsewhere nothing is read. Strides and step are
    negative where the graph flips, 0 where it broadcasts.
    """

    name: str
    operand: int
    strides: tuple[int, ...]
    step: int
    base: int
    low: int
    high: int
    dtype: str


@dataclass(frozen=True, slots=True)
class ScanStore:
    """Where the result of a position goes, as for a load."""

    strides: tuple[int, ...]
    step: int
    base: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan over `length` positions for each index of the kept axes.

    `kept` are the sizes of those axes, the densest last. `before` makes the scanned value `source`
    from inputs; `after` makes `result` from `scanned` (the name SCANNED) and inputs. With `reverse`
    a position takes in itself and all later ones. `kind` is "sum", "prod", "max" or
    "min".
    """

    kind: str
    reverse: bool
    length: int
    kept: tuple[int, ...]
    before: tuple[ScanLoad | Map, ...]
    source: str
    after: tuple[ScanLoad | Map, ...]
    result: str
    store: ScanStore
    inputs: tuple[Operand, ...]
    output: Operand
    folds_layout: bool

    @property
    def rows(self) -> int:
        total = 1
        for size in self.kept:
            total *= size
        return total

    @property
    def loads(self) -> tuple[ScanLoad, ...]:
        return tuple(item for item in (*self.before, *self.after) if isinstance(item, ScanLoad))

    @property
    def is_dense(self) -> bool:
        """Whether positions are neighbours in memory; else places along the densest axis are."""
        return not self.kept or abs(self.store.step) == 1

    @property
    def bytes(self) -> int:
        """Every input read once, the output written once."""
        return sum(operand.spec.bytes for operand in self.inputs) + self.output.spec.bytes

    @property
    def is_wide(self) -> bool:
        """Whether an offset can exceed 32 bits."""
        sizes = (*self.kept, self.length)
        return any(
            sum(
                size * abs(stride)
                for size, stride in zip(sizes, (*item.strides, item.step), strict=True)
            )
            + abs(item.base)
            >= 2**31
            for item in (*self.loads, self.store)
        )


#: The kernel variable that holds the scanned value.
SCANNED = "scanned"
