"""Max and average pooling in 1 to 3 dimensions, as strips of whole rows or as whole windows.

Strips (kmem/codegen/convolutions/stencil.py) are the rule; whole windows at a time
(whole_windows.py) serve where windows are too wide for strips or rows too long. See SKILL.md.
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
from kmem.codegen.convolutions.windows import WindowAxis, make_axes
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

from .whole_windows import (
    MAX_WINDOW_COLUMNS,
    emit_windows,
    read_windows,
    window_cost_ms,
    window_space,
)

MAX_COLUMN_TAPS = 32
MAX_ROW_TAPS = 64
_OPERATORS = {
    f"aten.{adaptive}{kind}_pool{rank}d.default": (f"{kind}_pool", rank)
    for adaptive in ("", "adaptive_")
    for kind in ("max", "avg")
    for rank in (1, 2, 3)
}
_NAMES = ("kernel_size", "stride", "padding")
#: Parameters of torch's operators behind those of every pooling.
_OWN_NAMES = {
    "max_pool": ("dilation", "ceil_mode"),
    "avg_pool": ("ceil_mode", "count_include_pad", "divisor_override"),
}


class SeparablePooling(Recipe):
    operators = ("max_pool", "avg_pool")
    # those of strips, and of whole windows
    roles = {**STRIP_ROLES, "block": (Role("tile"),)}

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites: list[Site] = []
        taken: set[str] = set()
        for node in graph.nodes:
            if node.target not in _OPERATORS or not isinstance(node.args[0], Ref):
                continue
            made = graph.only_result(node)
            stencil = _read(graph, node, made) if made is not None else None
            if made is None or stencil is None:
                continue
            if _serve_strips(stencil):
                stencil = with_chain(graph, made, stencil, taken)
            takers = [user.name for user in graph.users(node.name) if made is not node]
            others = [name for name in (node.name, *takers) if name != made.name]
            nodes = (*others, made.name)
            operator = _OPERATORS[node.target][0]
            site = make_site(graph, operator, nodes, (node.args[0].name,), stencil)
            sites.append(site)
            taken.update(site.nodes)
        return sites

    def space(self, site: Site, device: Device) -> Space:
        return _space(site.detail)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        if _takes_windows(settings):
            return window_cost_ms(site, site.detail, read_windows(settings), device)
        return strip_cost_ms(site, site.detail, read_strips(settings), device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        if _takes_windows(settings):
            return emit_windows(site.detail, read_windows(settings))
        return emit_strips(site.detail, read_strips(settings))


def _takes_windows(settings: Settings) -> bool:
    """Whether a setting is one of whole windows.

    It was chosen where the strips do not serve; at another size, where it is used too, they may.
    """
    return "block" in settings


def _space(stencil: Stencil) -> Space:
    """The knobs of a site: those of strips where strips serve, else those of whole windows.

    Strips do not serve where a window is too large to unroll, or rows are too long to hold.
    """
    return strip_space(stencil) if _serve_strips(stencil) else window_space(stencil)


def _serve_strips(stencil: Stencil) -> bool:
    depth, height = stencil.axes[:2]
    columns, rows = stencil.axes[2].kernel, depth.kernel * height.kernel
    is_short = columns <= MAX_COLUMN_TAPS and rows <= MAX_ROW_TAPS
    return is_short and bool(strip_space(stencil).settings())


def _read(graph: OpGraph, node: Node, made: Node) -> Stencil | None:
    """The pooling a node does; None for what the kernels do not cover.

    They do not cover tensors without a batch axis, other dtypes or strides, and extreme sizes; nor
    adaptive windows of several sizes, and of whole planes, which are reductions.
    """
    kind, rank = _OPERATORS[node.target]
    source, result = graph.spec(node.args[0].name), made.spec
    if len(source.shape) != rank + 2 or source.dtype not in FLOATS or result.numel == 0:
        return None
    if not source.has_contiguous_items or not result.has_contiguous_items:
        return None
    if "adaptive" in node.target:
        sizes = list(zip(source.shape[2:], result.shape[2:], strict=True))
        is_whole = all(out == 1 for _, out in sizes)
        if is_whole or any(size % out for size, out in sizes):
            return None
        given = {"kernel_size": tuple(size // out for size, out in sizes)}
    else:
        names = (*_NAMES, *_OWN_NAMES[kind])
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
    covers_alike = all(_covers_alike(axis, count_padding) for axis in axes)
    return Stencil(
        combine="max" if kind == "max_pool" else "sum",
        axes=axes,
        dtype=source.dtype,
        output=result.shape,
        divisor=given.get("divisor_override") or (prod(kernel) if covers_alike else 0),
        count_padding=bool(count_padding),
        gaps=(image_gap(source), image_gap(result)),
    )


def _covers_alike(axis: WindowAxis, count_padding: bool) -> bool:
    """Whether every window of an axis counts all its elements.

    Source: at::native::avg_pool2d, `pool_size` and `divide_factor`.
    """
    end = (axis.out - 1) * axis.stride - axis.padding + axis.kernel
    return end <= axis.size + axis.padding * count_padding and (count_padding or axis.padding == 0)


RECIPE = SeparablePooling()
