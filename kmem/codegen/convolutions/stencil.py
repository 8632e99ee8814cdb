"""Stencils: what pooling and depthwise convolution compute, and their emission as strips.

strip_writer.py writes the kernel, strip_tuning.py has the knobs and times, windows.py the geometry;
the recipes that call this own matching.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.chains.chain import Chain, grow_chain
from kmem.codegen.convolutions.strip_writer import SIZES, StripWriter, strip_pointers
from kmem.codegen.convolutions.windows import Tile, WindowAxis
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch_function
from kmem.codegen.text.definitions import Definition
from kmem.problem.graph import Node, OpGraph
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission, Operand, Settings, Site
from kmem.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Stencil:
    """What every output of a plane is made of: a window of the input.

    `combine` is "max", "sum", or "weighted": a weighted sum, which is depthwise convolution.

    `multiplier` output planes share one input plane. Behind the images of input and output lie
    `gaps` elements of others. `divisor` of a sum is 0 where windows are
    clipped by different amounts, so that each counts its own elements, those of the padding too if
    `count_padding`. `chain` is what follows element by element.
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
    chain: Chain = Chain()

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


def with_chain(
    graph: OpGraph, made: Node, stencil: Stencil, taken: Collection[str] = ()
) -> Stencil:
    """A stencil with what follows its result element by element and can be written with it.

    Args:
        made: the node whose value the stencil is.
        taken: nodes that may not join.
    """
    chain = grow_chain(graph, made, taken)
    # what a chain leaves is dense
    return replace(stencil, chain=chain, gaps=(stencil.gaps[0], 0)) if chain.nodes else stencil


def make_site(
    graph: OpGraph, operator: str, nodes: tuple[str, ...], given: tuple[str, ...], stencil: Stencil
) -> Site:
    """The site of a stencil and its chain.

    Args:
        nodes: those of the stencil itself, the first its operator, the last what makes its value.
        given: what it reads, in the order of its kernel's pointers.
    """
    chain = stencil.chain
    inputs = tuple(Operand(name, graph.spec(name)) for name in (*given, *chain.operands))
    output = Operand(chain.result or nodes[-1], graph.spec(chain.result or nodes[-1]))
    return Site(
        name=nodes[0],
        operator=operator,
        nodes=(*nodes, *chain.nodes),
        inputs=inputs,
        outputs=(output,),
        detail=stencil,
        bytes=sum(operand.spec.bytes for operand in inputs) + output.spec.bytes,
        flops=0.0 if stencil.is_separable else 2.0 * prod(stencil.output) * stencil.taps,
    )


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
    """The kernel and `launch(x[, w[, bias]])`, with the operands of the chain behind."""
    kernel = StripWriter(
        stencil.axes, knobs, stencil.combine, has_bias=stencil.has_bias, chain=stencil.chain
    ).write()
    kernels = (*stencil.chain.functions, kernel.kernel)
    return Emission(kernels, _write_launcher(kernel, stencil, knobs))


def _write_launcher(kernel: Definition, stencil: Stencil, knobs: StripSettings) -> str:
    """Sizes are written as numbers, for an emission belongs to one workload."""
    blocks = 1
    if knobs.shift == "load":
        blocks = ceil_div(stencil.axes[2].out, knobs.groups * knobs.lanes)
    pointers = strip_pointers(stencil.combine, stencil.chain, has_bias=stencil.has_bias)
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
