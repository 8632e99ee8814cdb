"""Convolutions as a vendor's library takes them, transposed ones too, with what is around them.

Plain records: finding.py reads them from a graph, tails.py what follows beyond element by element.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, prod

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.windows import WindowAxis
from kmem.problem.sizes import ceil_div, single_step
from kmem.records import TensorSpec

MAX_OFFSET = 2**31 - 1
#: Binades of a finite fp16 above 1. A staged image lies below 2**b, the magnitudes of a row of
#: weights add up to less than 2**a, and a + b is this: so no sum overflows, whatever the values.
RANGE = 16
#: Binades below 1 that the weights of a row shall reach down to on average: 6 above where fp16
#: loses bits. What is left of the range is the image's.
WEIGHT_BINADES = 8
MIN_IMAGE_BINADES = 8
#: Images whose largest magnitude lies within so many binades need no scale of their own, from 2**4
#: down: those of normal and of uniform numbers do.
LARGEST_AS_IT_IS, SLACK = 4, 5


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is summed over the positions of an image after a convolution.

    A norm takes mean and deviation of `channels` channels of an image, or (`over_images`) of all;
    else the result is `factor` times the sum of so many channels. `before` is done first, on each
    tile. `parameters` are graph values, of the `roles`: "weight", "bias", "running_mean" and
    "running_var"; the latter move by `momentum`.
    """

    before: Epilogue
    channels: int
    is_norm: bool
    factor: float = 1.0
    over_images: bool = False
    eps: float = 0.0
    momentum: float = 0.0
    roles: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """A layer norm over rows of an image, of `length` columns.

    `parameters` are roles ("weight", "bias") and graph values.
    """

    length: int
    eps: float
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class VendorConv:
    """One convolution and what is done element by element before and after it.

    `base` has sizes, window and epilogue; the axes of a transposed one hold the call's own numbers,
    and `output_padding` is its. Where windows are pooled the axes stay those of the convolution.
    Steps are in elements, along images, channels and positions: `source` of what is read, `result`
    of what is made. `prologue_steps` are as a `Convolution`'s `operand_steps`.
    """

    base: Convolution
    source: tuple[int, int, int]
    result: tuple[int, int, int]
    result_spec: TensorSpec
    output_padding: tuple[int, ...] = ()
    prologue: Epilogue = Epilogue()
    prologue_steps: tuple[tuple[int, int, int, int], ...] = ()
    statistics: Statistics | None = None
    lines: Lines | None = None
    before: "VendorConv | None" = None

    @cached_property
    def links(self) -> "tuple[VendorConv, ...]":
        """The convolutions of the chain that ends with this one."""
        return (*(self.before.links if self.before is not None else ()), self)

    @cached_property
    def is_norm(self) -> bool:
        return self.statistics is not None and self.statistics.is_norm

    @cached_property
    def is_summed(self) -> bool:
        """Whether nothing but sums over positions is returned."""
        return self.statistics is not None and not self.statistics.is_norm

    @cached_property
    def is_transposed(self) -> bool:
        return bool(self.output_padding)

    @cached_property
    def axes(self) -> tuple[WindowAxis, ...]:
        """The axes that the library is given; a row is an image one high."""
        rank = len(self.base.out.shape) - 2
        return self.base.axes[3 - max(rank, 2) :]

    @cached_property
    def weight_binades(self) -> int:
        """a, such that the magnitudes of a row of weights add up to less than 2**a."""
        terms = self.base.group_in * self.base.taps
        return min(max(0, ceil(log2(terms)) - WEIGHT_BINADES), RANGE - MIN_IMAGE_BINADES)

    @cached_property
    def image_binades(self) -> int:
        """b, such that a staged image lies below 2**b."""
        return RANGE - self.weight_binades

    @cached_property
    def guess(self) -> int:
        """The exponent by which images are scaled first."""
        return self.image_binades - LARGEST_AS_IT_IS

    @cached_property
    def flops(self) -> float:
        base = self.base
        places = base.inputs if self.is_transposed else base.positions
        return 2.0 * base.images * places * base.taps * base.channels_in * base.group_out


@dataclass(frozen=True, slots=True)
class Found:
    """A convolution of a graph: its nodes, and the values that it reads and makes."""

    detail: VendorConv
    anchor: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    result: str


def whole_windows(detail: VendorConv, window: tuple[int, ...]) -> tuple[int, ...]:
    """Positions along each axis that lie in whole windows of a convolution's result."""
    axes = zip(detail.base.axes, window, strict=True)
    return tuple(axis.out // size * size for axis, size in axes)


def spare_outputs(axis: WindowAxis) -> int | None:
    """Outputs that precede the wanted ones if both ends are padded as the second is.

    The library pads both alike; "same" with an even window does not. None where that is no way.
    """
    span = axis.dilation * (axis.kernel - 1) + 1
    if axis.out == (axis.size + 2 * axis.padding - span) // axis.stride + 1:
        return 0
    behind = axis.out - 1 + span - axis.size - axis.padding
    return behind - axis.padding if axis.stride == 1 and behind > axis.padding else None


def steps_of(spec: TensorSpec) -> tuple[int, int, int] | None:
    """Steps along images, channels and positions; None where positions are no single axis."""
    step = single_step(spec.stride[2:], spec.shape[2:])
    if step is None or step < 0:
        return None
    positions = prod(spec.shape[2:])
    reach = (spec.shape[1] - 1) * spec.stride[1] + (positions - 1) * step
    # half precision has up to 8 channels where there is one
    is_far = max(reach, 8 * ceil_div(spec.shape[1], 8) * positions) > MAX_OFFSET
    return None if is_far else (spec.stride[0], spec.stride[1], step)
