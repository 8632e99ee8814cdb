"""Writes scaled dot-product attention, fused (fused.py) or in two stages (two_stages.py).

It is torch's own operator, or written out as products around a softmax (written_out.py).

fp32 is split into parts first (split_rows.py), and written again where parts do not hold it
(mending.py). Which sites, knobs and times are here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.rates import ceiling
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_call, write_launch_function
from kmem.codegen.text.parts import SCALES
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Operand, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device, TensorSpec

from .attention import Attention, AttentionSettings
from .fused import FUSED, write_fused
from .mending import MEND, write_mending
from .split_rows import SPLIT_ROWS, TILE_HELPERS, write_splitting
from .two_stages import OUTPUT, SCORES, WEIGHTS, output_columns, write_two_stages
from .written_out import read_written_out

_TARGET = "aten.scaled_dot_product_attention.default"
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
MAX_WIDTH = 2048  # of a row that the splitting kernel holds in registers
MAX_FUSED_WIDTH = 256  # of a head whose output one block of queries keeps in registers
MAX_THREAD_SUMS = 192  # of 255 registers; addresses and statistics take the rest
#: Shared memory of a program for what its tiles do not need: statistics of rows on their way
#: between warps.
STATISTICS_BYTES = 4096
#: Share of the fp16 ceiling: three products a tile (source: split-fp16-matmul on an H200,
#: 2026-11-21), and one with the exponentials of a fused kernel between (source: FlashAttention-2 on
#: an H100, arXiv 2307.08691, figure 7: 350 of 640).
SHARE_OF_CEILING = {3: 0.68, 1: 0.55}
#: Of the rate above that three products keep where exponentials wait for every block of scores.
FUSED_SHARE = 0.75
#: Share that is left with two stages of loads, and with steps of 32. These and the next only rank
#: settings.
FEW_STAGES, SHORT_STEPS = 0.95, 0.95
#: Of the bandwidth of a copy, what passes reach; of the shorter of computing and moving, what the
#: longer does not hide.
SHARE_OF_BANDWIDTH, EXPOSED = 0.9, 0.1
_TILE_SIDES = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention in a graph: its nodes, the names of q, k, v and mask, and what is computed."""

    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    detail: Attention


class FlashAttention(Recipe):
    operators = ("attention",)
    roles = {
        "form": (Role("fusion", (("two_stages",), ("fused",))),),
        "block_m": (Role("tile"),),
        "block_n": (Role("depth"),),
        "block_k": (Role("depth"),),
        "warps": (Role("warps"),),
        "stages": (Role("stages"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = []
        for node in graph.nodes:
            found = _read(graph, node) if node.target == _TARGET else _read_products(graph, node)
            if found is not None:
                detail = found.detail
                inputs = tuple(Operand(name, graph.spec(name)) for name in found.reads)
                site = Site(
                    name=node.name,
                    operator="attention",
                    nodes=found.nodes,
                    inputs=inputs,
                    outputs=(Operand(node.name, node.spec),),
                    detail=detail,
                    bytes=sum(operand.spec.bytes for operand in inputs) + node.spec.bytes,
                    flops=detail.flops,
                )
                sites.append(site)
        return sites

    def space(self, site: Site, device: Device) -> Space:
        detail: Attention = site.detail
        is_narrow = max(detail.depth, detail.width) <= MAX_FUSED_WIDTH
        most_m = max(16, next_power_of_two(detail.queries))
        most_n = max(16, next_power_of_two(detail.keys))
        forms = (("fused",) if is_narrow else ()) + (("two_stages",) if detail.is_split else ())
        knobs = {
            "form": forms,
            "block_m": tuple(rows for rows in _TILE_SIDES if rows <= most_m),
            "block_n": tuple(rows for rows in _TILE_SIDES if rows <= most_n),
            "block_k": (32, 64),
            "warps": (4, 8),
            "stages": (2, 3),
        }
        return Space(knobs, lambda settings: _is_legal(detail, _knobs(settings), device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Attention = site.detail
        knobs = _knobs(settings)
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        split_ms = 2 * detail.operand_bytes / bandwidth * 1e3 if detail.is_split else 0.0
        memory_ms = (detail.operand_bytes + site.outputs[0].spec.bytes) / bandwidth * 1e3
        if not knobs.is_fused:
            scores = 4 * 2 * detail.heads * detail.queries * detail.keys
            memory_ms += scores / bandwidth * 1e3
        product_ms = _product_ms(detail, knobs, device)
        exposed_ms = EXPOSED * min(product_ms, memory_ms)
        launches = (1 if knobs.is_fused else 3) + (4 if detail.is_split else 0)
        return split_ms + max(product_ms, memory_ms) + exposed_ms + launches * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Attention = site.detail
        knobs = _knobs(settings)
        write = write_fused if knobs.is_fused else write_two_stages
        out = write_call(
            "out = torch.empty_strided",
            f"{detail.out.shape!r}, {detail.out.stride!r}",
            "dtype=q.dtype, device=q.device",
        )
        statements = [
            out,
            *(write_splitting(detail) if detail.is_split else ()),
            *write(detail, knobs),
            *((write_mending(detail),) if detail.is_split else ()),
            "return out",
        ]
        kernels = (
            SCALES,
            *((SPLIT_ROWS,) if detail.is_split else ()),
            TILE_HELPERS,
            *((FUSED,) if knobs.is_fused else (SCORES, WEIGHTS, OUTPUT)),
            *((MEND,) if detail.is_split else ()),
        )
        names = ["q", "k", "v", *(("hidden",) if detail.hidden is not None else ())]
        return Emission(kernels, write_launch_function(names, statements))


def _knobs(settings: Settings) -> AttentionSettings:
    return read_settings(AttentionSettings, settings)


def _product_ms(detail: Attention, knobs: AttentionSettings, device: Device) -> float:
    """Time of the products at the rate of their tiles, in a fused form with its last turn."""
    terms = 3 if detail.is_split else 1
    narrow = min(1.0, knobs.block_m / 128) ** 0.5 * min(1.0, knobs.block_n / 64) ** 0.5
    narrow *= 1.0 if knobs.stages > 2 else FEW_STAGES
    rate = ceiling(device, "fp16") * SHARE_OF_CEILING[terms] * narrow
    if knobs.is_fused:
        rate *= FUSED_SHARE if terms == 3 else 1.0
    else:
        intensity = knobs.block_m * knobs.block_n / (knobs.block_m + knobs.block_n)
        rate *= min(1.0, intensity / 64) * (1.0 if knobs.block_k == 64 else SHORT_STEPS)
    product_ms = terms * detail.flops / rate * 1e3
    if knobs.is_fused:
        programs = detail.heads * ceil_div(detail.queries, knobs.block_m)
        turns = programs / device.sm_count
        product_ms *= max(1.0, ceil_div(programs, device.sm_count) / turns)
    return product_ms


def _is_legal(detail: Attention, knobs: AttentionSettings, device: Device) -> bool:
    block_m, block_n = knobs.block_m, knobs.block_n
    parts = detail.parts
    threads = device.warp_size * knobs.warps
    spare = device.shared_bytes_per_block - STATISTICS_BYTES
    if knobs.warps > 4 and block_m < 16 * knobs.warps:
        return False  # warps beyond the rows of a block repeat its products
    if knobs.is_fused:
        depth, width = next_power_of_two(detail.depth), next_power_of_two(detail.width)
        # The output, its part under way (three products), and the scores.
        sums = block_m * (width * parts + block_n * parts) / threads
        shared = (block_m * depth + block_n * (depth + width) * knobs.stages) * 2 * parts
        # block_k is of the other form
        return knobs.block_k == 64 and sums <= MAX_THREAD_SUMS and shared <= spare
    columns = max(block_n, output_columns(detail))
    sums = 2 * block_m * columns / threads
    shared = (block_m + columns) * knobs.block_k * 2 * parts * knobs.stages
    return sums <= MAX_THREAD_SUMS and shared <= spare


def _read(graph: OpGraph, node: Node) -> _Found | None:
    """The attention a node does; None for what the kernels do not cover.

    They do not cover a mask, dropout, grouped heads, broadcasting, or rows that are not dense.
    """
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    is_plain = given.get("attn_mask") is None and given.get("dropout_p", 0.0) == 0.0
    if not is_plain or given.get("enable_gqa", False):
        return None
    if not all(isinstance(given[name], Ref) for name in _NAMES[:3]) or len(node.args) < 3:
        return None
    names = tuple(given[name].name for name in _NAMES[:3])
    scale = given.get("scale")
    scale = scale if scale is not None else graph.spec(names[0]).shape[-1] ** -0.5
    detail = _detail(graph, names, node.spec, scale)
    if detail is None:
        return None
    causal = bool(given.get("is_causal", False))
    return _Found((node.name,), names, replace(detail, causal=causal))


def _read_products(graph: OpGraph, node: Node) -> _Found | None:
    """The attention that ends in a product, written out before it.

    A row whose scores are all -inf is NaN there.
    """
    found = read_written_out(graph, node)
    if found is None:
        return None
    names = found.query, found.key, found.value
    detail = _detail(graph, names, node.spec, found.scale)
    if detail is None:
        return None
    detail = replace(detail, empty_is_zero=False)
    if found.hidden is None:
        return _Found(found.nodes, names, detail)
    steps = _mask_steps(graph.spec(found.hidden), detail)
    if steps is None:
        return None
    return _Found(found.nodes, (*names, found.hidden), replace(detail, hidden=steps))


def _mask_steps(spec: TensorSpec, detail: Attention) -> tuple[int, int, int] | None:
    """Of a mask along outer and inner axis and queries, 0 where it is the same for all."""
    wanted = (detail.outer, detail.inner, detail.queries, detail.keys)
    missing = 4 - len(spec.shape)
    shape, stride = (1,) * missing + spec.shape, (0,) * missing + spec.stride
    if spec.dtype != "bool" or shape[3] != detail.keys or stride[3] != 1:
        return None
    if any(size not in (1, full) for size, full in zip(shape, wanted, strict=True)):
        return None
    steps = [0 if size == 1 else step for size, step in zip(shape, stride, strict=True)]
    return steps[0], steps[1], steps[2]


def _detail(
    graph: OpGraph, names: Sequence[str], out: TensorSpec, scale: float
) -> Attention | None:
    specs = (*(graph.spec(name) for name in names), out)
    q = specs[0]
    k, v = specs[1:3]
    rank = len(q.shape)
    if not 2 <= rank <= 4 or q.dtype not in FLOATS:
        return None
    if any(len(spec.shape) != rank or spec.dtype != q.dtype for spec in specs):
        return None
    if any(spec.stride[-1] != 1 or spec.shape[:-2] != q.shape[:-2] for spec in specs):
        return None
    if out.numel == 0 or prod(k.shape) == 0:
        return None
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return None
    widest = max(q.shape[-1], v.shape[-1])
    if widest > (MAX_WIDTH if q.dtype == "float32" else MAX_FUSED_WIDTH):
        return None
    missing = 4 - rank
    batch = (1,) * missing + q.shape[:-2]
    return Attention(
        outer=batch[0],
        inner=batch[1],
        queries=q.shape[-2],
        keys=k.shape[-2],
        depth=q.shape[-1],
        width=v.shape[-1],
        scale=scale,
        causal=False,
        dtype=q.dtype,
        out=out,
        steps=tuple((0,) * missing + spec.stride[:-1] for spec in specs),
    )


RECIPE = FlashAttention()
