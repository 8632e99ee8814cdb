"""Writes depthwise convolution in 1 to 3 dimensions, as strips of whole rows.

Each input row is read once per strip, and several output rows have fp32 accumulators; see SKILL.md.
"""

from math import prod

from kmem.codegen.convolutions.convolution import image_gap
from kmem.codegen.convolutions.stencil import (
    Stencil,
    emit_strips,
    make_site,
    read_strips,
    with_chain,
)
from kmem.codegen.convolutions.strip_tuning import STRIP_ROLES, strip_cost_ms, strip_space
from kmem.codegen.convolutions.windows import make_axes
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis, same_padding
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device

MAX_TAPS = 64  # weights a thread keeps in registers
_RANKS = {
    f"aten.conv{rank}d.{overload}": rank
    for rank in (1, 2, 3)
    for overload in ("default", "padding")
}
_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class DepthwiseRollingRows(Recipe):
    operators = ("depthwise_conv",)
    roles = STRIP_ROLES

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites: list[Site] = []
        taken: set[str] = set()
        for node in graph.nodes:
            stencil = _read(graph, node) if node.target in _RANKS else None
            if stencil is not None:
                stencil = with_chain(graph, node, stencil, taken)
                given = [arg.name for arg in _arguments(node).values() if isinstance(arg, Ref)]
                site = make_site(graph, "depthwise_conv", (node.name,), tuple(given), stencil)
                sites.append(site)
                taken.update(site.nodes)
        return sites

    def space(self, site: Site, device: Device) -> Space:
        return strip_space(site.detail)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return strip_cost_ms(site, site.detail, read_strips(settings), device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_strips(site.detail, read_strips(settings))


def _arguments(node: Node) -> dict[str, object]:
    return {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}


def _read(graph: OpGraph, node: Node) -> Stencil | None:
    """The depthwise convolution a node does: every output channel reads one input channel.

    None for other convolutions and for what the kernels do not cover.
    """
    rank, given = _RANKS[node.target], _arguments(node)
    tensors = [
        graph.spec(given[name].name)
        for name in ("input", "weight", "bias")
        if isinstance(given.get(name), Ref)
    ]
    source, weight = tensors[:2]
    result = node.spec
    groups = given.get("groups", 1)
    if len(source.shape) != rank + 2 or groups != source.shape[1] or groups == 1:
        return None
    if source.dtype not in FLOATS or result.numel == 0:
        return None
    if any(spec.dtype != source.dtype for spec in (*tensors, result)):
        return None
    are_dense = all(spec.is_contiguous for spec in tensors[1:])
    if not (are_dense and source.has_contiguous_items and result.has_contiguous_items):
        return None
    kernel, dilation = weight.shape[2:], per_axis(given.get("dilation"), rank, 1)
    padding = given.get("padding", 0)
    if isinstance(padding, str):
        # what "same" pads behind follows from the output size; "valid" pads nothing
        padding = same_padding(kernel, dilation) if padding == "same" else 0
    axes = make_axes(
        source.shape[2:],
        result.shape[2:],
        kernel,
        per_axis(given.get("stride"), rank, 1),
        per_axis(padding, rank),
        dilation,
    )
    largest = max(prod(source.shape[2:]), prod(result.shape[2:]))
    if prod(kernel) > MAX_TAPS or largest >= 2**31:
        return None
    stencil = Stencil(
        combine="weighted",
        axes=axes,
        dtype=source.dtype,
        output=result.shape,
        multiplier=result.shape[1] // groups,
        has_bias=len(tensors) == 3,
        gaps=(image_gap(source), image_gap(result)),
    )
    # a window too large to unroll, on rows too long to hold, has no setting
    return stencil if strip_space(stencil).settings() else None


RECIPE = DepthwiseRollingRows()
