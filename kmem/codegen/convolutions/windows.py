"""Windows over contiguous N, C, (D, H, W) tensors: axes, a program's tile, and where its taps lie.

An axis is one of a pooling, a convolution or, with its phases, a transposed convolution. Plain
integers, no text; strip_writer.py and the skill transposed-conv-phases write kernels from them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from kmem.problem.sizes import next_power_of_two

#: Columns that a thread may hold of one row before the split tree costs more than it saves.
MAX_LANES = 32
#: A program is never narrower, so that no value of it is a single element.
MIN_GROUPS = 16
#: Loads times window columns unrolled into one text; above that, compile time decides, not run
#: time.
MAX_ROW_TAPS = 512


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One axis of a window.

    `size` and `out` are elements of input and output; kernel, stride, padding and dilation are in
    elements too.
    """

    size: int = 1
    out: int = 1
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program does: `strips` side by side.

    Each is `depths` x `rows` output rows of `groups` groups of `lanes` output columns.
    """

    depths: int
    rows: int
    strips: int
    groups: int
    lanes: int
    shift: str  # "load" or "gather"


def make_axes(
    sizes: Sequence[int],
    outs: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
    """Depth, row and column axes; missing leading axes have one position."""
    found = [
        WindowAxis(*values)
        for values in zip(sizes, outs, kernel, stride, padding, dilation, strict=True)
    ]
    return tuple([WindowAxis()] * (3 - len(found)) + found)


def lanes_in(axis: WindowAxis, lanes: int) -> int:
    """Columns of one input group.

    That is the largest power of two that divides the input step of one output group.
    """
    step = axis.stride * lanes
    return min(step & -step, MAX_LANES)


def column_taps(axis: WindowAxis, lanes: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(output lane, tap) -> (distance in groups, input lane).

    column = stride * lane - padding + tap * dilation.
    """
    width = lanes_in(axis, lanes)
    return {
        (lane, tap): divmod(axis.stride * lane - axis.padding + tap * axis.dilation, width)
        for lane in range(lanes)
        for tap in range(axis.kernel)
    }


def row_starts(axis: WindowAxis, count: int) -> dict[int, list[tuple[int, int]]]:
    """Input position from the strip's start on -> the (output position, tap) pairs that read it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for out in range(count):
        for tap in range(axis.kernel):
            found.setdefault(out * axis.stride + tap * axis.dilation, []).append((out, tap))
    return dict(sorted(found.items()))


def gather_groups(axis: WindowAxis, lanes: int) -> int:
    """Groups a program must hold for `shift` "gather": a whole row of input and of output."""
    return next_power_of_two(
        max(-(-axis.size // lanes_in(axis, lanes)), -(-axis.out // lanes), MIN_GROUPS)
    )


def loads_per_strip(axes: Sequence[WindowAxis], tile: Tile) -> int:
    """Row loads of one strip, each of every group distance."""
    rows = len(row_starts(axes[0], tile.depths)) * len(row_starts(axes[1], tile.rows))
    distances = {distance for distance, _ in column_taps(axes[2], tile.lanes).values()}
    return rows * (len(distances) if tile.shift == "load" else 1)


def is_writable(axes: Sequence[WindowAxis], tile: Tile) -> bool:
    """Whether the unrolled text and the registers of a tile stay within reason.

    Correctness does not depend on it.
    """
    return loads_per_strip(axes, tile) * axes[2].kernel <= MAX_ROW_TAPS


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps of one phase of an axis.

    Tap first + t * step reads input m + shift - t * shift_step, for t < count.
    """

    count: int
    first: int = 0
    step: int = 1
    shift: int = 0
    shift_step: int = 0


def phase_taps(axis: WindowAxis) -> list[Taps]:
    """Taps by output phase, one entry for each of `stride` phases.

    Source: o = i * stride - padding + k * dilation, from the size formula in
    torch.nn.ConvTranspose2d's reference.
    """
    common = gcd(axis.stride, axis.dilation)
    found = []
    for phase in range(axis.stride):
        taps = [
            tap
            for tap in range(axis.kernel)
            if (phase + axis.padding - tap * axis.dilation) % axis.stride == 0
        ]
        if taps:
            shift = (phase + axis.padding - taps[0] * axis.dilation) // axis.stride
            found.append(
                Taps(len(taps), taps[0], axis.stride // common, shift, axis.dilation // common)
            )
        else:
            found.append(Taps(0))
    return found


def lattice_size(axis: WindowAxis) -> int:
    """Positions m of an axis that a phase with taps has; phases differ by at most one position."""
    first = min(phase for phase, taps in enumerate(phase_taps(axis)) if taps.count)
    return max(1, -(-(axis.out - first) // axis.stride))


def lattice(axes: Sequence[WindowAxis]) -> int:
    """Positions m of one phase with taps over all axes."""
    return prod(lattice_size(axis) for axis in axes)


def has_empty_rows(axes: Sequence[WindowAxis]) -> bool:
    """Whether whole output rows are structural zeros: a phase of depth or height has no taps."""
    return any(taps.count == 0 for axis in axes[:2] for taps in phase_taps(axis))


def taps_by_phase(axes: Sequence[WindowAxis]) -> Counter[int]:
    """Number of taps -> number of phases that have as many.

    A tap is one multiply-add per lattice position and pair of channels.
    """
    return Counter(
        prod(taps.count for taps in phases) for phases in product(*map(phase_taps, axes))
    )
