"""What is computed: a transposed convolution as the kernels see it.

Its knobs and the sizes of what is staged are here too.
"""

from dataclasses import dataclass, field
from math import prod

from kmem.codegen.chains.chain import Chain
from kmem.codegen.convolutions.windows import WindowAxis, lattice_size, phase_taps
from kmem.codegen.settings import read_settings
from kmem.problem.sizes import ceil_div
from kmem.recipes import Settings
from kmem.records import DTYPE_BYTES

VECTOR_BYTES = 16  # widest asynchronous copy of one thread. Source: PTX ISA, cp.async


@dataclass(frozen=True, slots=True)
class PhaseSettings:
    """The knobs of a transposed convolution.

    A program makes `band` x `rows` x `columns` lattice positions by `block_co` output channels,
    `block_k` of the contraction per step. `rows` are multiplied at once; a band is lattice rows
    side by side along height that share what they read.

    `copy_bytes` 16 moves operands through L2 only, 8 through L1 too, where the taps of a tile meet
    again. Source: PTX ISA, cp.async (.cg caches in L2 and takes 16 bytes; .ca caches at all
    levels). `precision` is "tf32" or "exact".
    """

    precision: str
    band: int
    rows: int
    columns: int
    block_co: int
    block_k: int
    copy_bytes: int
    warps: int
    stages: int
    accuracy: int = 0  # above 0 with the precision "exact" alone, which then is the same kernel

    @property
    def positions(self) -> int:
        """That are multiplied at once."""
        return self.rows * self.columns

    def is_split(self, dtype: str) -> bool:
        """Whether fp32 goes through tensor cores as two parts; half precision is exact in one."""
        return dtype == "float32" and self.precision == "exact"

    def skew(self, dtype: str) -> int:
        """Elements before the first, so that vectors are aligned to half of a whole one."""
        return 0 if self.copy_bytes == VECTOR_BYTES else VECTOR_BYTES // DTYPE_BYTES[dtype] // 2


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution; `output_padding` shows only in the output's size."""

    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    dtype: str
    output: tuple[int, ...]
    channels_in: int
    groups: int
    has_bias: bool
    chain: Chain = field(default_factory=Chain)  # what follows
    stored: tuple[int, ...] = ()  # the shape of what is returned
    band: int = 1  # lattice rows of a program, which may be more than there are

    @property
    def pointers(self) -> tuple[str, ...]:
        """What kernels and the launcher are given beside the two operands and the output."""
        return (*(("bias",) if self.has_bias else ()), *self.chain.pointers)

    @property
    def written(self) -> int:
        """Elements that are stored."""
        return prod(self.stored)

    @property
    def group_in(self) -> int:
        """Input channels of one group."""
        return self.channels_in // self.groups

    @property
    def group_out(self) -> int:
        """Output channels of one group."""
        return self.output[1] // self.groups

    @property
    def planes(self) -> int:
        """Groups of all samples."""
        return self.output[0] * self.groups

    @property
    def taps(self) -> int:
        """Of the whole window."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def staged_axes(self) -> tuple[tuple[int, int], ...]:
        """(first input position, count) of each axis that is staged: along height a whole band."""
        bands = (1, self.band, 1)
        return tuple(staged_axis(*each) for each in zip(self.axes, bands, strict=True))

    @property
    def staged_size(self) -> int:
        """Elements of the staged input, in one part."""
        channels = staged_channels(self.group_in, self.dtype)
        return self.planes * prod(count for _, count in self.staged_axes) * channels

    def padded_outputs(self, block_co: int) -> int:
        """Output channels of one group in whole tiles."""
        return ceil_div(self.group_out, block_co) * block_co

    def packed_size(self, block_co: int) -> int:
        """Elements of the packed weights, in one part."""
        row = self.taps * staged_channels(self.group_in, self.dtype)
        return self.groups * self.padded_outputs(block_co) * row


def read_knobs(settings: Settings) -> PhaseSettings:
    """The settings of a site as a record."""
    return read_settings(PhaseSettings, settings)


def staged_axis(axis: WindowAxis, band: int = 1) -> tuple[int, int]:
    """(first input position, count) that the phases of an axis read, `band` positions at once.

    Positions outside the input are staged as zeros.
    """
    used = [taps for taps in phase_taps(axis) if taps.count]
    first = min(taps.shift - (taps.count - 1) * taps.shift_step for taps in used)
    return first, max(lattice_size(axis), band) - first + max(taps.shift for taps in used)


def staged_channels(channels: int, dtype: str) -> int:
    """Channels of one group padded to whole vectors."""
    vector = VECTOR_BYTES // DTYPE_BYTES[dtype]
    return ceil_div(channels, vector) * vector
