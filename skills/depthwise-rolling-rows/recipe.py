"""Depthwise convolution in 1 to 3 dimensions: each input row once per strip, fp32 accumulators for
several output rows; see SKILL.md.
"""

from dataclasses import dataclass
from math import prod

from kmem.codegen.stencil import StripWriter, write_strip_launcher
from kmem.codegen.strip_tuning import strip_cost_ms, strip_space, tile_of
from kmem.codegen.windows import Axis, make_axes
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import Contract, Device

MAX_TAPS = 64  # weights a thread keeps in registers
_DTYPES = ("float32", "bfloat16", "float16")
_RANKS = {
    f"aten.conv{rank}d.{overload}": rank
    for rank in (1, 2, 3)
    for overload in ("default", "padding")
}
_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A convolution whose every output channel reads one input channel; `multiplier` output
    channels share one.
    """

    axes: tuple[Axis, Axis, Axis]
    dtype: str
    output: tuple[int, ...]
    multiplier: int
    has_bias: bool

    @property
    def planes(self) -> int:
        return self.output[0] * self.output[1]


class DepthwiseRollingRows(Recipe):
    operators = ("depthwise_conv",)

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites = []
        for node in graph.nodes:
            detail = _read(graph, node) if node.target in _RANKS else None
            if detail is not None:
                inputs = tuple(
                    Operand(arg.name, graph.spec(arg.name))
                    for arg in _arguments(node).values()
                    if isinstance(arg, Ref)
                )
                size = sum(operand.spec.bytes for operand in inputs) + node.spec.bytes
                flops = 2.0 * node.spec.numel * prod(axis.kernel for axis in detail.axes)
                sites.append(
                    Site(
                        node.name,
                        "depthwise_conv",
                        (node.name,),
                        inputs,
                        (Operand(node.name, node.spec),),
                        detail,
                        size,
                        flops,
                    )
                )
        return sites

    def space(self, site: Site, device: Device) -> Space:
        return strip_space(site.detail.axes, site.detail.dtype, site.detail.planes)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return strip_cost_ms(
            site,
            site.detail.axes,
            settings,
            site.detail.dtype,
            site.detail.planes,
            device,
            separable=False,
        )

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Depthwise = site.detail
        tile = tile_of(settings)
        kernel = StripWriter(detail.axes, tile, "weighted", has_bias=detail.has_bias).write()
        launcher = write_strip_launcher(
            kernel[0],
            tile,
            detail.axes,
            detail.output,
            channels=detail.output[1],
            multiplier=detail.multiplier,
            divisor=0,
            count_padding=False,
            weighted=True,
            has_bias=detail.has_bias,
            warps=settings["warps"],
        )
        return Emission((kernel,), launcher)


def _arguments(node: Node) -> dict[str, object]:
    return {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}


def _read(graph: OpGraph, node: Node) -> Depthwise | None:
    """The depthwise convolution a node does; None for other convolutions and for what the kernels
    do not cover.
    """
    rank, given = _RANKS[node.target], _arguments(node)
    tensors = [
        graph.spec(given[name].name)
        for name in ("input", "weight", "bias")
        if isinstance(given.get(name), Ref)
    ]
    source = tensors[0]
    weight = tensors[1]
    result = node.spec
    groups = given.get("groups", 1)
    if len(source.shape) != rank + 2 or groups != source.shape[1] or groups == 1:
        return None
    if (
        any(spec.dtype != source.dtype or not spec.is_contiguous for spec in (*tensors, result))
        or source.dtype not in _DTYPES
        or result.numel == 0
    ):
        return None
    kernel, dilation = weight.shape[2:], per_axis(given.get("dilation"), rank, 1)
    padding = given.get("padding", 0)
    if isinstance(padding, str):
        # torch pads "same" by dilation * (kernel - 1) in all, the odd one at the end; the end
        # follows from the output size
        padding = (
            tuple(step * (taps - 1) // 2 for step, taps in zip(dilation, kernel, strict=True))
            if padding == "same"
            else 0
        )
    axes = make_axes(
        source.shape[2:],
        result.shape[2:],
        kernel,
        per_axis(given.get("stride"), rank, 1),
        per_axis(padding, rank),
        dilation,
    )
    if (
        prod(kernel) > MAX_TAPS
        or prod(source.shape[2:]) >= 2**31
        or prod(result.shape[2:]) >= 2**31
    ):
        return None
    detail = Depthwise(
        axes, source.dtype, result.shape, result.shape[1] // groups, len(tensors) == 3
    )
    # a window too large to unroll, on rows too long to hold, has no setting
    return detail if strip_space(axes, detail.dtype, detail.planes).settings() else None


RECIPE = DepthwiseRollingRows()
