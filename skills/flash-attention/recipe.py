"""Writes scaled dot-product attention, fused or in two stages; kernels in
kmem/codegen/attention.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import e as euler
from math import log2, prod

from kmem.codegen.attention import FUSED, OUTPUT, SCORES, SPLIT_ROWS, TILE_HELPERS, WEIGHTS
from kmem.codegen.matmul import ceil_div, ceiling
from kmem.codegen.split_matmul import SCALES
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device, TensorSpec

_TARGET = "aten.scaled_dot_product_attention.default"
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_DTYPES = ("float32", "bfloat16", "float16")
MAX_WIDTH = 2048  # of a row that the splitting kernel holds in registers
MAX_FUSED_WIDTH = 256  # of a head whose output one block of queries keeps in registers
MAX_THREAD_SUMS = 192  # of 255 registers; addresses and statistics take the rest
#: Share of the fp16 ceiling: three products a tile (source: split-fp16-matmul on an H200,
#: 2026-11-21), and one with the exponentials of a fused kernel between (source: FlashAttention-2 on
#: an H100, arXiv 2307.08691, figure 7: 350 of 640).
SHARE_OF_CEILING = {3: 0.68, 1: 0.55}
# of the rate above that three products keep where exponentials wait for every block of scores
FUSED_SHARE = 0.75
PASS_ELEMENTS = 4096  # of one program of the splitting kernel
WEIGHT_ROWS = 128


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(scale * q k^T) v for every head.

    `steps`: of q, k, v and out along outer and inner batch axis and rows, in elements.
    """

    outer: int
    inner: int
    queries: int
    keys: int
    depth: int
    width: int
    scale: float
    causal: bool
    dtype: str
    out: TensorSpec
    steps: tuple[tuple[int, int, int], ...]

    @property
    def heads(self) -> int:
        return self.outer * self.inner

    @property
    def flops(self) -> float:
        return (
            2.0
            * self.heads
            * self.queries
            * self.keys
            * (self.depth + self.width)
            * (0.5 if self.causal else 1.0)
        )

    @property
    def is_split(self) -> bool:
        return self.dtype == "float32"

    @property
    def parts_bytes(self) -> int:
        """Bytes of q, k and v: as much as their parts have."""
        rows = self.queries * self.depth + self.keys * (self.depth + self.width)
        return self.heads * rows * DTYPE_BYTES[self.dtype]


class FlashAttention(Recipe):
    operators = ("attention",)

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = []
        for node in graph.nodes:
            detail = _read(graph, node) if node.target == _TARGET else None
            if detail is not None:
                inputs = tuple(Operand(arg.name, graph.spec(arg.name)) for arg in node.args[:3])
                size = sum(operand.spec.bytes for operand in inputs) + node.spec.bytes
                sites.append(
                    Site(
                        node.name,
                        "attention",
                        (node.name,),
                        inputs,
                        (Operand(node.name, node.spec),),
                        detail,
                        size,
                        detail.flops,
                    )
                )
        return sites

    def space(self, site: Site, device: Device) -> Space:
        detail: Attention = site.detail
        narrow = max(detail.depth, detail.width) <= MAX_FUSED_WIDTH
        forms = (("fused",) if narrow else ()) + (("two_stages",) if detail.is_split else ())
        knobs = {
            "form": forms,
            "block_m": tuple(
                rows
                for rows in (16, 32, 64, 128)
                if rows <= max(16, next_power_of_two(detail.queries))
            ),
            "block_n": tuple(
                rows
                for rows in (16, 32, 64, 128)
                if rows <= max(16, next_power_of_two(detail.keys))
            ),
            "block_k": (32, 64),
            "warps": (4, 8),
            "stages": (2, 3),
        }
        return Space(knobs, lambda settings: _is_legal(detail, settings, device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Attention = site.detail
        block_m, block_n = int(settings["block_m"]), int(settings["block_n"])
        terms = 3 if detail.is_split else 1
        fused = settings["form"] == "fused"
        narrow = (
            min(1.0, block_m / 128) ** 0.5
            * min(1.0, block_n / 64) ** 0.5
            * (1.0 if int(settings["stages"]) > 2 else 0.95)
        )
        rate = ceiling(device, "fp16") * SHARE_OF_CEILING[terms] * narrow
        if fused and terms == 3:
            rate *= FUSED_SHARE
        if not fused:
            rate *= min(1.0, block_m * block_n / (block_m + block_n) / 64) * (
                1.0 if int(settings["block_k"]) == 64 else 0.95
            )
        product_ms = terms * detail.flops / rate * 1e3
        waves = detail.heads * ceil_div(detail.queries, block_m) / device.sm_count
        product_ms *= (
            max(
                1.0,
                ceil_div(detail.heads * ceil_div(detail.queries, block_m), device.sm_count) / waves,
            )
            if fused
            else 1.0
        )
        bandwidth = 0.9 * device.dram_bytes_per_s
        split_ms = 2 * detail.parts_bytes / bandwidth * 1e3 if detail.is_split else 0.0
        scores_ms = (
            0.0 if fused else 4 * 2 * detail.heads * detail.queries * detail.keys / bandwidth * 1e3
        )
        memory_ms = (detail.parts_bytes + site.outputs[0].spec.bytes) / bandwidth * 1e3 + scores_ms
        launches = (1 if fused else 3) + (3 if detail.is_split else 0)
        return (
            split_ms
            + max(product_ms, memory_ms)
            + 0.1 * min(product_ms, memory_ms)
            + launches * device.launch_ms
        )

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Attention = site.detail
        lines = [
            (
                f"out = torch.empty_strided({detail.out.shape!r}, {detail.out.stride!r}, "
                f"dtype=q.dtype, device=q.device)"
            )
        ]
        if detail.is_split:
            lines += _split_lines(detail)
        lines += (
            _fused_lines(detail, settings)
            if settings["form"] == "fused"
            else _two_stage_lines(detail, settings)
        )
        kernels = (SCALES, *((SPLIT_ROWS,) if detail.is_split else ()), TILE_HELPERS)
        kernels += (FUSED,) if settings["form"] == "fused" else (SCORES, WEIGHTS, OUTPUT)
        return Emission(
            kernels,
            "def launch(q, k, v):\n" + "".join(f"    {line}\n" for line in (*lines, "return out")),
        )


def _padded(width: int) -> int:
    """Elements of a row of parts: whole steps of 64 where rows are long, else a power of two."""
    return ceil_div(width, 64) * 64 if width > 64 else max(16, next_power_of_two(width))


def _split_lines(detail: Attention) -> list[str]:
    lines = []
    for name, rows, width, steps in zip(
        "qkv",
        (detail.queries, detail.keys, detail.keys),
        (detail.depth, detail.depth, detail.width),
        detail.steps,
        strict=False,
    ):
        padded = _padded(width)
        block_w = next_power_of_two(padded)
        block_r = min(next_power_of_two(rows), max(1, PASS_ELEMENTS // block_w))
        outer, inner, row = steps
        lines += [
            (
                f"{name}_high = torch.empty({detail.heads * rows * padded}, dtype=torch.float16, "
                f"device=q.device)"
            ),
            f"{name}_low = torch.empty_like({name}_high)",
            (
                f"{name}_exponents = torch.empty({detail.heads * rows}, dtype=torch.int32, "
                f"device=q.device)"
            ),
            f"kmem_split_rows[({detail.heads * ceil_div(rows, block_r)},)]({name}, {name}_high, "
            f"{name}_low, {name}_exponents, ROWS={rows}, "
            f"WIDTH={width}, INNER={detail.inner}, X_OUTER={outer}, X_INNER={inner}, X_ROW={row}, "
            f"PADDED={padded}, BLOCK_R={block_r}, "
            f"BLOCK_W={block_w}, num_warps=4)",
        ]
    return lines


def _fused_lines(detail: Attention, settings: Settings) -> list[str]:
    steps = detail.steps
    if detail.is_split:
        lengths = (
            (detail.queries, detail.depth),
            (detail.keys, detail.depth),
            (detail.keys, detail.width),
        )
        dense = [
            (detail.inner * rows * _padded(width), rows * _padded(width), _padded(width))
            for rows, width in lengths
        ]
        steps = (*dense, detail.steps[3])
    strides = ", ".join(
        f"{name}_{axis}={step}"
        for name, own in zip(("Q", "K", "V", "OUT"), steps, strict=True)
        for axis, step in zip(("OUTER", "INNER", "ROW"), own, strict=True)
    )
    # without parts the kernel reads only the first three
    operands = "q, k, v, q, k, v, out, out, out"
    if detail.is_split:
        operands = (
            "q_high, k_high, v_high, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents"
        )
    grid = detail.heads * ceil_div(detail.queries, int(settings["block_m"]))
    return [
        f"kmem_attention[({grid},)]({operands}, out, QUERIES={detail.queries}, KEYS={detail.keys}, "
        f"DEPTH={detail.depth}, "
        f"WIDTH={detail.width}, INNER={detail.inner}, SCALE={detail.scale * log2(euler)!r}, "
        f"{strides}, CAUSAL={detail.causal}, "
        f"SPLIT={detail.is_split}, WIDEN={'False' if detail.is_split else 'q.is_cpu'}, "
        f"BLOCK_M={settings['block_m']}, "
        f"BLOCK_N={settings['block_n']}, BLOCK_D={max(16, next_power_of_two(detail.depth))}, "
        f"BLOCK_E={max(16, next_power_of_two(detail.width))}, num_warps={settings['warps']}, "
        f"num_stages={settings['stages']})"
    ]


def _two_stage_lines(detail: Attention, settings: Settings) -> list[str]:
    block_m, block_n, block_k = (int(settings[name]) for name in ("block_m", "block_n", "block_k"))
    padded_d, padded_e = _padded(detail.depth), _padded(detail.width)
    block_e = min(128, padded_e & -padded_e)
    tiles, tiles_m = ceil_div(detail.keys, block_n), ceil_div(detail.queries, block_m)
    padded_keys = tiles * block_n
    outer, inner, row = detail.steps[3]
    shared = (
        f"QUERIES={detail.queries}, KEYS={detail.keys}, PADDED_KEYS={padded_keys}, "
        f"CAUSAL={detail.causal}, BLOCK_M={block_m}"
    )
    launch = f"num_warps={settings['warps']}, num_stages={settings['stages']}"
    attended = min(tiles, ceil_div(detail.queries, block_n)) if detail.causal else tiles
    return [
        (
            f"p = torch.empty({detail.heads * detail.queries * padded_keys}, dtype=torch.float16, "
            f"device=q.device)"
        ),
        "p_low = torch.empty_like(p)",
        (
            f"tops = torch.empty({detail.heads * tiles * detail.queries}, dtype=torch.float32, "
            f"device=q.device)"
        ),
        "sums = torch.empty_like(tops)",
        f"leasts = torch.empty({detail.heads * tiles}, dtype=torch.int32, device=q.device)",
        f"kmem_attention_scores[({detail.heads * tiles_m * tiles},)](q_high, q_low, k_high, k_low, "
        f"q_exponents, k_exponents, v_exponents, "
        f"p, p_low, tops, sums, leasts, {shared}, PADDED_D={padded_d}, "
        f"SCALE={detail.scale * log2(euler)!r}, BLOCK_N={block_n}, "
        f"BLOCK_K={min(block_k, padded_d & -padded_d)}, {launch})",
        "weights = torch.empty_like(tops)",
        f"scales = torch.empty({detail.heads}, dtype=torch.int32, device=q.device)",
        f"kmem_attention_weights[({detail.heads * ceil_div(detail.queries, WEIGHT_ROWS)},)](tops, "
        f"sums, leasts, weights, scales, "
        f"QUERIES={detail.queries}, TILES={tiles}, ATTENDED={attended}, CAUSAL={detail.causal}, "
        f"BLOCK_N={block_n}, "
        f"BLOCK_R={WEIGHT_ROWS})",
        f"kmem_attention_output[({detail.heads * tiles_m * (padded_e // block_e)},)]("
        f"p, p_low, v_high, v_low, weights, scales, out, {shared}, WIDTH={detail.width}, "
        f"PADDED_E={padded_e}, "
        f"TILE={block_n}, INNER={detail.inner}, OUT_OUTER={outer}, OUT_INNER={inner}, "
        f"OUT_ROW={row}, "
        f"BLOCK_E={block_e}, BLOCK_K={min(block_k, block_n)}, {launch})",
    ]


def _is_legal(detail: Attention, settings: Settings, device: Device) -> bool:
    block_m, block_n, block_k, warps, stages = (
        int(settings[name]) for name in ("block_m", "block_n", "block_k", "warps", "stages")
    )
    parts = 2 if detail.is_split else 1
    # statistics of rows travel between warps beside the tiles
    spare = device.shared_bytes_per_block - 4096
    if warps > 4 and block_m < 16 * warps:  # warps beyond the rows of a block repeat its products
        return False
    if settings["form"] == "fused":
        depth, width = next_power_of_two(detail.depth), next_power_of_two(detail.width)
        # The output, its part under way (three products), and the scores.
        sums = block_m * (width * parts + block_n * parts) / (32 * warps)
        shared = (block_m * depth + block_n * (depth + width) * stages) * 2 * parts
        # block_k is of the other form
        return block_k == 64 and sums <= MAX_THREAD_SUMS and shared <= spare
    padded_e = _padded(detail.width)
    block_e = min(128, padded_e & -padded_e)
    sums = 2 * block_m * max(block_n, block_e) / (32 * warps)
    shared = (block_m + max(block_n, block_e)) * block_k * 2 * parts * stages
    return sums <= MAX_THREAD_SUMS and shared <= spare


def _read(graph: OpGraph, node: Node) -> Attention | None:
    """The attention a node does; None with a mask, dropout, grouped heads, broadcasting, or rows
    that are not dense.
    """
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    if (
        given.get("attn_mask") is not None
        or given.get("dropout_p", 0.0) != 0.0
        or given.get("enable_gqa", False)
    ):
        return None
    if not all(isinstance(given[name], Ref) for name in _NAMES[:3]) or len(node.args) < 3:
        return None
    q, k, v = (graph.spec(given[name].name) for name in _NAMES[:3])
    specs = (q, k, v, node.spec)
    rank = len(q.shape)
    if not 2 <= rank <= 4 or any(
        len(spec.shape) != rank or spec.dtype != q.dtype or spec.stride[-1] != 1 for spec in specs
    ):
        return None
    if (
        q.dtype not in _DTYPES
        or node.spec.numel == 0
        or prod(k.shape) == 0
        or any(spec.shape[:-2] != q.shape[:-2] for spec in specs)
    ):
        return None
    if (
        q.shape[-1] != k.shape[-1]
        or k.shape[-2] != v.shape[-2]
        or max(q.shape[-1], v.shape[-1]) > MAX_WIDTH
    ):
        return None
    if q.dtype != "float32" and max(q.shape[-1], v.shape[-1]) > MAX_FUSED_WIDTH:
        return None
    batch = (1,) * (4 - rank) + q.shape[:-2]
    steps = tuple((0,) * (4 - rank) + spec.stride[:-1] for spec in specs)
    scale = given.get("scale")
    return Attention(
        batch[0],
        batch[1],
        q.shape[-2],
        k.shape[-2],
        q.shape[-1],
        v.shape[-1],
        scale if scale is not None else q.shape[-1] ** -0.5,
        bool(given.get("is_causal", False)),
        q.dtype,
        node.spec,
        steps,
    )


RECIPE = FlashAttention()
