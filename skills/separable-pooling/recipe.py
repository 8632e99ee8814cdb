"""Max and average pooling in 1 to 3 dimensions: as strips of whole rows (kmem/codegen/stencil.py),
or, where windows are too wide for that or rows too long, whole windows at a time
(kmem/codegen/window_pool.py); see SKILL.md.
"""

from dataclasses import dataclass
from math import prod

from kmem.codegen.stencil import StripWriter, write_strip_launcher
from kmem.codegen.strip_tuning import strip_cost_ms, strip_space, tile_of
from kmem.codegen.window_pool import (
    MAX_WINDOW_COLUMNS,
    window_cost_ms,
    window_space,
    write_window_pool,
)
from kmem.codegen.windows import Axis, make_axes
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import Contract, Device

MAX_COLUMN_TAPS = 32
MAX_ROW_TAPS = 64
_DTYPES = ("float32", "bfloat16", "float16")
_OPERATORS = {
    f"aten.{kind}_pool{rank}d.default": (f"{kind}_pool", rank)
    for kind in ("max", "avg")
    for rank in (1, 2, 3)
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """What a site pools.

    `divisor` is 0 where windows are clipped by different amounts, so that each counts its own
    elements.
    """

    combine: str  # "max" or "sum"
    axes: tuple[Axis, Axis, Axis]
    dtype: str
    output: tuple[int, ...]
    divisor: int
    count_padding: bool

    @property
    def planes(self) -> int:
        return self.output[0] * self.output[1]


class SeparablePooling(Recipe):
    operators = ("max_pool", "avg_pool")

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites = []
        for node in graph.nodes:
            if node.target in _OPERATORS and isinstance(node.args[0], Ref):
                pooling = _read(graph, node)
                if pooling is not None:
                    source = Operand(node.args[0].name, graph.spec(node.args[0].name))
                    size = source.spec.bytes + node.spec.bytes
                    sites.append(
                        Site(
                            node.name,
                            _OPERATORS[node.target][0],
                            (node.name,),
                            (source,),
                            (Operand(node.name, node.spec),),
                            pooling,
                            size,
                        )
                    )
        return sites

    def space(self, site: Site, device: Device) -> Space:
        return _space(site.detail)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        pooling: Pooling = site.detail
        if "block" in settings:
            return window_cost_ms(site, pooling.axes, settings, prod(pooling.output), device)
        return strip_cost_ms(
            site, pooling.axes, settings, pooling.dtype, pooling.planes, device, separable=True
        )

    def emit(self, site: Site, settings: Settings) -> Emission:
        pooling: Pooling = site.detail
        # chosen where the strips do not serve, which at another size they may
        if "block" in settings:
            return Emission(
                *write_window_pool(
                    pooling.axes,
                    pooling.output,
                    pooling.combine,
                    pooling.divisor,
                    pooling.count_padding,
                    settings,
                )
            )
        tile = tile_of(settings)
        kernel = StripWriter(pooling.axes, tile, pooling.combine).write()
        launcher = write_strip_launcher(
            kernel[0],
            tile,
            pooling.axes,
            pooling.output,
            channels=1,
            multiplier=1,
            divisor=pooling.divisor,
            count_padding=pooling.count_padding,
            weighted=False,
            has_bias=False,
            warps=settings["warps"],
        )
        return Emission((kernel,), launcher)


def _space(pooling: Pooling) -> Space:
    """The strips' knobs; the whole windows' where a window is too large to unroll, or rows too long
    to hold.
    """
    depth, height, width = pooling.axes
    if width.kernel <= MAX_COLUMN_TAPS and depth.kernel * height.kernel <= MAX_ROW_TAPS:
        strips = strip_space(pooling.axes, pooling.dtype, pooling.planes)
        if strips.settings():
            return strips
    return window_space(pooling.axes)


def _read(graph: OpGraph, node: Node) -> Pooling | None:
    """The pooling a node does; None for what the kernels do not cover: no batch axis, other dtypes
    or strides, extreme sizes.
    """
    kind, rank = _OPERATORS[node.target]
    source, result = graph.spec(node.args[0].name), node.spec
    if (
        len(source.shape) != rank + 2
        or source.dtype not in _DTYPES
        or not source.is_contiguous
        or not result.is_contiguous
        or result.numel == 0
    ):
        return None
    names = (
        "kernel_size",
        "stride",
        "padding",
        *(
            ("dilation", "ceil_mode")
            if kind == "max_pool"
            else ("ceil_mode", "count_include_pad", "divisor_override")
        ),
    )
    given = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    kernel = per_axis(given["kernel_size"], rank)
    axes = make_axes(
        source.shape[2:],
        result.shape[2:],
        kernel,
        per_axis(given.get("stride"), rank, kernel),
        per_axis(given.get("padding"), rank, 0),
        per_axis(given.get("dilation"), rank, 1),
    )
    if axes[2].kernel > MAX_WINDOW_COLUMNS or max(prod(source.shape[2:]), result.numel) >= 2**31:
        return None  # offsets within a plane and outputs are counted in 32 bits
    count_padding = given.get("count_include_pad", True)
    divisor = given.get("divisor_override") or (
        prod(kernel) if all(_covers_alike(axis, count_padding) for axis in axes) else 0
    )
    return Pooling(
        "max" if kind == "max_pool" else "sum",
        axes,
        source.dtype,
        result.shape,
        divisor,
        bool(count_padding),
    )


def _covers_alike(axis: Axis, count_padding: bool) -> bool:
    """Whether every window of an axis counts all its elements.

    Source: at::native::avg_pool2d, `pool_size` and `divide_factor`.
    """
    end = (axis.out - 1) * axis.stride - axis.padding + axis.kernel
    return end <= axis.size + axis.padding * count_padding and (count_padding or axis.padding == 0)


RECIPE = SeparablePooling()
