"""What the ledger knows a problem's graph by, and how far graphs of one structure are apart.

Numpy is loaded by `size_distance` alone: whoever only makes a key need not wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmem.records import Contract

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class GraphKey:
    """A problem's graph as memory is asked about it, with where and how its kernels are to run.

    `graph_hash` is over operators, shapes, dtypes and constants; `structure_hash` is over the same
    without sizes, and `sizes` are those (`problem.graph.graph_sizes`).
    """

    graph_hash: str
    structure_hash: str
    operators: tuple[str, ...]
    sizes: tuple[int, ...]
    arch: str
    contract: Contract

    @property
    def conditions(self) -> tuple[str, str, str]:
        """Architecture, precision and purity, as the columns of table `outcomes` hold them."""
        return self.arch, self.contract.precision.value, self.contract.purity.value


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """Sizes as little-endian int64, the form in which table `graphs` keeps them."""
    return b"".join(size.to_bytes(8, "little", signed=True) for size in sizes)


def unpack_sizes(packed: bytes) -> tuple[int, ...]:
    """The sizes that `pack_sizes` packed."""
    return tuple(
        int.from_bytes(packed[start : start + 8], "little", signed=True)
        for start in range(0, len(packed), 8)
    )


def size_distance(sizes: "np.ndarray", others: "np.ndarray") -> "np.ndarray":
    """How far graphs of one structure are apart: the mean absolute log2 ratio of their sizes.

    A graph whose sizes are all twice those of another is 1.0 away from it.

    Args:
        sizes: (n,) int64; a size of 0 counts as 1.
        others: (m, n) int64.

    Returns:
        (m,) float64; 0 where n is 0.
    """
    import numpy as np

    if sizes.shape[0] == 0:
        return np.zeros(len(others))
    return np.abs(np.log2(np.maximum(others, 1)) - np.log2(np.maximum(sizes, 1))).mean(axis=1)
