"""Stencils: what pooling and depthwise convolution compute, and their emission as strips.

strip_writer.py writes the kernel, strip_tuning.py has the knobs and times, windows.py the geometry;
the recipes that call this own matching.
"""

from dataclasses import dataclass
from math import prod

from kmem.codegen.convolutions.strip_writer import SIZES, StripWriter, strip_pointers
from kmem.codegen.convolutions.windows import Tile, WindowAxis
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch_function
from kmem.codegen.text.definitions import Definition
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission, Settings
from kmem.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Stencil:
    """What every output of a plane is made of: a window of the input.

    `combine` is "max", "sum", or "weighted": a weighted sum, which is depthwise convolution.

    `multiplier` output planes share one input plane. Behind the images of input and output lie
    `gaps` elements of others. `divisor` of a sum is 0 where windows are
    clipped by different amounts, so that each counts its own elements, those of the padding too if
    `count_padding`.
    """

    combine: str
    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    dtype: str
    output: tuple[int, ...]
    multiplier: int = 1
    divisor: int = 0
    count_padding: bool = False
    has_bias: bool = False
    gaps: tuple[int, int] = (0, 0)

    @property
    def planes(self) -> int:
        """Of the output."""
        return self.output[0] * self.output[1]

    @property
    def result(self) -> TensorSpec:
        """How the output lies."""
        sizes = [prod(self.output[place + 1 :]) for place in range(len(self.output))]
        return TensorSpec(self.output, self.dtype, (sizes[0] + self.gaps[1], *sizes[1:]))

    @property
    def is_separable(self) -> bool:
        """Whether a window is combined along one axis after the other."""
        return self.combine != "weighted"

    @property
    def taps(self) -> int:
        """Of the whole window."""
        return prod(axis.kernel for axis in self.axes)


@dataclass(frozen=True, slots=True)
class StripSettings(Tile):
    """The knobs of strips: the tile of a program, and its warps."""

    warps: int


def read_strips(settings: Settings) -> StripSettings:
    """The settings of strips as a record."""
    return read_settings(StripSettings, settings)


def strip_count(stencil: Stencil, tile: Tile) -> int:
    """Strips that cover the output."""
    depth, height = stencil.axes[:2]
    return stencil.planes * ceil_div(height.out, tile.rows) * ceil_div(depth.out, tile.depths)


def emit_strips(stencil: Stencil, knobs: StripSettings) -> Emission:
    """The kernel and `launch(x[, w[, bias]])`."""
    kernel = StripWriter(stencil.axes, knobs, stencil.combine, has_bias=stencil.has_bias).write()
    return Emission((kernel.kernel,), _write_launcher(kernel, stencil, knobs))


def _write_launcher(kernel: Definition, stencil: Stencil, knobs: StripSettings) -> str:
    """Sizes are written as numbers, for an emission belongs to one workload."""
    blocks = 1
    if knobs.shift == "load":
        blocks = ceil_div(stencil.axes[2].out, knobs.groups * knobs.lanes)
    pointers = strip_pointers(stencil.combine, has_bias=stencil.has_bias)
    channels = 1 if stencil.is_separable else stencil.output[1]
    sizes = [stencil.planes, channels, stencil.multiplier]
    sizes += [axis.size for axis in stencil.axes] + [axis.out for axis in stencil.axes]
    sizes += [knobs.groups, stencil.divisor, int(stencil.count_padding)]
    sizes += [stencil.output[1], *stencil.gaps]
    programs = ceil_div(strip_count(stencil, knobs), knobs.strips) * blocks
    options = {"num_warps": knobs.warps}
    launch = kernel.write_launch(str(programs), dict(zip(SIZES, sizes, strict=True)), options)
    statements = [
        write_allocation("y", stencil.result, "x"),
        launch,
        "return y",
    ]
    inputs = [pointer for pointer in pointers if pointer != "y"]
    return write_launch_function(inputs, statements)
