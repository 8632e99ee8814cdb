"""What is computed: one chunked scan as the kernels see it, and the knobs that it has."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.records import TensorSpec

#: By rung, of fp32: products in TF32, where eager's are; three of them; exact.
PRECISIONS = ("tf32", "tf32x3", "ieee")

#: Axes of a scan: two of batches, chunks, places in a chunk, elements of a state, columns of x.
AXES = ("outer", "inner", "chunk", "place", "state", "column")


@dataclass(frozen=True, slots=True)
class Scan:
    """y[t] = c[t] . h[t] and the last h of h[t] = exp(a[t]) h[t-1] + b[t] x[t], by chunks.

    h is a matrix, `state` by `column`. `steps`: by operand ("a", "b", "c", "x", "first", "y",
    "last") and axis, in elements; 0 where an operand lacks an axis. Of a scan without y there is no
    "c"; without "first" it begins at zero.

    `sums`: chunks are joined by exponentials of sums, masked above the diagonal, as `segsum` writes
    it, else by products of exponentials, one after another. `is_rounded`: by eager, to TF32.
    """

    sizes: Mapping[str, int]
    steps: Mapping[str, Mapping[str, int]]
    outputs: tuple[TensorSpec, ...]  # y, the last state, or both
    sums: bool
    is_rounded: bool

    @property
    def rows(self) -> int:
        """Scans that know nothing of one another."""
        return self.sizes["outer"] * self.sizes["inner"]

    @property
    def has_y(self) -> bool:
        return "y" in self.steps

    @property
    def chunks(self) -> int:
        return self.sizes["chunk"]

    @property
    def first_rung(self) -> int:
        """The cheapest precision that is within the contract."""
        return 0 if self.is_rounded else 1

    @property
    def flops(self) -> float:
        """Multiplications and additions of the products, the masked half of a chunk left out."""
        length, state = self.sizes["place"], self.sizes["state"]
        columns = self.sizes["column"]
        within = length * length * (state + columns) if self.has_y else 0
        through = (4 if self.has_y else 2) * length * state * columns
        return float(self.rows * self.chunks * (within + through))

    @property
    def state_elements(self) -> int:
        """Of the states of all chunks."""
        return self.rows * self.chunks * self.sizes["state"] * self.sizes["column"]


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """The knobs.

    `form`: "fused" is one program for `block_p` columns of a scan, which goes from chunk to chunk;
    "chunked" has programs for every chunk, and a pass from state to state between. `block_l`: of
    the places of a chunk in one tile, all of them in a fused form.
    """

    form: str
    block_l: int
    block_p: int
    warps: int
    stages: int
    accuracy: int = 0

    @property
    def is_fused(self) -> bool:
        return self.form == "fused"

    @property
    def run(self) -> str:
        """Launch arguments."""
        return f"num_warps={self.warps}, num_stages={self.stages}"


def padded(size: int) -> int:
    """A side of a tile that holds a whole axis."""
    return max(16, next_power_of_two(size))


def columns_of(scan: Scan, knobs: ScanSettings) -> int:
    """Programs that share the columns of a scan."""
    return ceil_div(scan.sizes["column"], knobs.block_p)


def precision_of(scan: Scan, knobs: ScanSettings) -> str:
    """How tiles are multiplied."""
    return PRECISIONS[scan.first_rung + knobs.accuracy]
