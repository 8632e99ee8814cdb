"""Writes fp32 products as tensor-core products of scaled fp16 parts, split ahead of the product
(kernels in kmem/codegen/split_matmul.py) or, where the operands are long against the output, while
they are read (kmem/codegen/split_in_loop.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.contraction import Product, ProductAxis, find_products
from kmem.codegen.epilogue import specialise
from kmem.codegen.matmul import (
    SHARED_KERNELS,
    TileLoop,
    ceil_div,
    ceiling,
    operand_arguments,
    output_arguments,
    product_cost_ms,
    split_choices,
    tile_count,
    tile_sizes,
    write_launcher,
)
from kmem.codegen.split_in_loop import (
    IN_LOOP_KERNELS,
    in_loop_cost_ms,
    in_loop_splits,
    is_legal_in_loop,
    write_in_loop,
)
from kmem.codegen.split_matmul import SCALES, SPLIT_KERNELS
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device, Precision

#: Size of every axis from which this is no matrix-vector product. Tiles have 16 at least, and where
#: there is less the rest is padding: it costs little, for such products wait for memory, and a
#: small workload must match wherever the full one does.
MIN_SIZE = 2
#: Elements of K that one tensor-core accumulation may sum. Source: anchors probe, errors 2.3e-7
#: (normal) and 4.7e-7 (uniform) at 4096.
PROMOTE_ELEMENTS = 128
#: Programs of the pass over an operand that keep the memory busy, and chunks of a line at most: the
#: last kernel reads one state for each.
PASS_PROGRAMS, MAX_CHUNKS = 1024, 64
#: The mending kernel: tiles of a row that one program looks after, rows and columns of a tile at
#: most, steps of K. Larger tiles of exact products spill (496 bytes a thread, Triton 3.6).
MEND_WIDTH = 16
MEND_TILE = 64
MEND_BLOCK_K = 16
#: Share of the fp16 ceiling that three products per tile reach (promotion and the second
#: accumulator cost the rest), and one product. Source: H200, 2026-11-21: 4096^3 in 0.83 ms with the
#: pass and 0.73 without, 564 of 781 TFLOP/s; 0.32 and 0.22 ms with one product.
SHARE_OF_CEILING = {3: 0.72, 1: 0.85}
#: Times the expected time where K is long against the output and everything is bound by memory.
#: Source: the same runs, 256 x 524288 x 256: 2.25 ms where bytes over bandwidth give 1.2.
LONG_LINES = 1.9
#: K over the larger side of the output from which splitting in the loop is worth a try: below, each
#: element is split by too many tiles.
LONG_ENOUGH = 16


class SplitMatmul(Recipe):
    """fp32 matmul on fp16 tensor cores: three terms under `match`, one (as precise as TF32) under
    `tf32`.
    """

    operators = ("matmul", "batched_matmul", "linear", "triangular_matmul")

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [
            site
            for site in find_products(graph, contract)
            if site.detail.dtype == "float32" and _smallest(site.detail) >= MIN_SIZE
        ]

    def space(self, site: Site, device: Device) -> Space:
        product: Product = site.detail
        wide = (16, 32, 64, 128, 256) if _terms(product) == 1 else (16, 32, 64, 128)
        rows = tile_sizes(product.m.size, (16, 32, 64, 128))
        columns = tile_sizes(product.n.size, wide)
        steps = tile_sizes(product.k.size, (16, 32, 64))
        long = product.k.size >= LONG_ENOUGH * max(product.m.size, product.n.size)
        knobs = {
            "block_m": rows[-2:],
            "block_n": columns[-2:],
            "block_k": steps[-2:],
            "warps": (4, 8),
            "stages": (3, 4),
            "group": (8,),
            "splits": split_choices(product, rows[-1], min(columns[-1], 128), steps[-1], device),
        }
        if long:
            knobs["split"] = ("ahead", "in_loop")
        return Space(knobs, lambda settings: _is_legal(product, settings, device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        product: Product = site.detail
        terms = _terms(product)
        if _is_in_loop(settings):
            return in_loop_cost_ms(product, settings, device, terms)
        rate = ceiling(device, "fp16") * SHARE_OF_CEILING[terms]
        loop = TileLoop(rate, terms, _live_tiles(product, settings), 4 if terms == 3 else 2)
        operand_a, operand_b, _ = product.operand_bytes
        # Both operands are read twice (for the scale, for the parts) and written once, as one or
        # two halves; with mending, five launches.
        passes = 2.0 + (1.0 if terms == 3 else 0.5)
        pass_ms = (operand_a + operand_b) * passes / (
            0.85 * device.dram_bytes_per_s
        ) * 1e3 + 5 * device.launch_ms
        slower = LONG_LINES if product.k.size >= 64 * max(product.m.size, product.n.size) else 1.0
        return (product_cost_ms(product, settings, device, loop) + pass_ms) * slower

    def emit(self, site: Site, settings: Settings) -> Emission:
        product: Product = site.detail
        block_m, block_n, block_k, splits = (
            int(settings[name]) for name in ("block_m", "block_n", "block_k", "splits")
        )
        if _is_in_loop(settings):
            kernels = specialise((*SHARED_KERNELS, SCALES, *IN_LOOP_KERNELS), product.epilogue)
            return Emission(
                kernels,
                write_launcher(
                    product,
                    write_in_loop(product, settings, _terms(product)),
                    in_loop_splits(settings),
                ),
            )
        padded_k = ceil_div(product.k.size, block_k * splits) * block_k * splits
        terms, suffix = _terms(product), product.epilogue.suffix
        a = _split_operand(
            product, "a", ceil_div(product.m.size, block_m) * block_m, padded_k, terms
        )
        b = _split_operand(
            product, "b", ceil_div(product.n.size, block_n) * block_n, padded_k, terms
        )
        tiles_m, tiles_n = tile_count(product, settings)
        mend_m, mend_n = min(MEND_TILE, block_m), min(MEND_TILE, block_n)
        mended_n = b.padded_lines // mend_n
        padding = (
            f"PADDED_M={a.padded_lines}, PADDED_N={b.padded_lines}, PADDED_K={padded_k}, "
            f"{_matrix_steps(product)}"
        )
        width = min(MEND_WIDTH, next_power_of_two(mended_n))
        mending_programs = (
            a.padded_lines // mend_m * ceil_div(mended_n, width) * splits * product.batches
        )
        lines = [
            *a.lines,
            *b.lines,
            f"kmem_parts_matmul{suffix}[({tiles_m * tiles_n * splits * product.batches},)]("
            f"a_high, a_low, a_exponents, b_high, b_low, b_exponents, target, "
            f"{output_arguments(product)}, {padding}, "
            f"PARTS_A_M={a.line_step}, PARTS_A_K={a.k_step}, PARTS_B_K={b.k_step}, "
            f"PARTS_B_N={b.line_step}, TERMS={terms}, "
            f"PROMOTE={_promote(product, settings)}, SPLITS={splits}, BLOCK_M={block_m}, "
            f"BLOCK_N={block_n}, "
            f"GROUP={settings['group']}, BLOCK_K={block_k}, num_warps={settings['warps']}, "
            f"num_stages={settings['stages']})",
            f"kmem_mend_tiles{suffix}[({mending_programs},)](a, b, a_states, b_states, target, "
            f"{output_arguments(product)}, {operand_arguments(product)}, {padding}, "
            f"A_CHUNKS={a.chunks}, B_CHUNKS={b.chunks}, "
            f"WIDTH={width}, SPLITS={splits}, BLOCK_M={mend_m}, BLOCK_N={mend_n}, "
            f"BLOCK_K={MEND_BLOCK_K}, num_warps=4, num_stages=3)",
        ]
        kernels = specialise((*SHARED_KERNELS, *SPLIT_KERNELS), product.epilogue)
        return Emission(kernels, write_launcher(product, "\n".join(lines), splits))


def _smallest(product: Product) -> int:
    return min(product.m.size, product.n.size, product.k.size)


def _is_in_loop(settings: Settings) -> bool:
    """Whether operands are split while they are read; spaces without that choice have no such knob."""
    return settings.get("split") == "in_loop"


def _terms(product: Product) -> int:
    """Tensor-core products per multiplication: one scaled fp16 product has TF32's 11 bits, so it
    serves the tf32 contract.
    """
    return 1 if product.precision is Precision.TF32 else 3


def _promote(product: Product, settings: Settings) -> int:
    """Steps of K in one tensor-core sum; 0 where the whole sum is short enough, or as exact as its
    contract.
    """
    elements = ceil_div(product.k.size, int(settings["splits"]))
    return (
        max(1, PROMOTE_ELEMENTS // int(settings["block_k"]))
        if _terms(product) == 3 and elements > PROMOTE_ELEMENTS
        else 0
    )


def _live_tiles(product: Product, settings: Settings) -> int:
    """fp32 tiles of the output that are in registers at once: the sum, with promotion a second one,
    and the cross terms.
    """
    return 1 + (_terms(product) == 3) + (_promote(product, settings) > 0)


def _is_legal(product: Product, settings: Settings, device: Device) -> bool:
    if _is_in_loop(settings):
        return is_legal_in_loop(settings, device) and int(settings["splits"]) <= ceil_div(
            product.k.size, int(settings["block_k"])
        )
    block_m, block_n, block_k, warps, stages = (
        int(settings[name]) for name in ("block_m", "block_n", "block_k", "warps", "stages")
    )
    accumulators = _live_tiles(product, settings) * block_m * block_n / (warps * device.warp_size)
    # of 255 registers a thread; addresses and scales take the rest
    if not 4 <= accumulators <= 192:
        return False
    # warps beyond the rows of a tile repeat its products: 64x256 on 8 warps spilled, 4 times slower
    if warps > 4 and block_m < 16 * warps:
        return False
    if stages > 3 and product.k.size <= block_k * (stages - 1):
        return False
    width = 4 if _terms(product) == 3 else 2
    if (block_m + block_n) * block_k * width * stages > device.shared_bytes_per_block:
        return False
    return int(settings["splits"]) <= ceil_div(product.k.size, block_k)


def _matrix_steps(product: Product) -> str:
    """How many matrices of parts each operand steps over along the batch axes."""
    outer, inner = product.batch
    steps = []
    for name, first, second in (("A", outer.a, inner.a), ("B", outer.b, inner.b)):
        whole = 0 if first == 0 else (inner.size if second else 1)
        steps.append(f"MATRICES_{name}_OUTER={whole}, MATRICES_{name}_INNER={int(second != 0)}")
    return ", ".join(steps)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The launches that write one operand's parts, and how the parts lie: the padded number of
    lines, steps, chunks of K.
    """

    lines: tuple[str, ...]
    padded_lines: int
    line_step: int
    k_step: int
    chunks: int


def _split_operand(
    product: Product, name: str, padded_lines: int, padded_k: int, terms: int
) -> _Parts:
    """Parts keep the order of their source: K contiguous if it is there, else the lines."""
    axis: ProductAxis = product.m if name == "a" else product.n
    line_stride, k_stride = getattr(axis, name), getattr(product.k, name)
    strides = [getattr(batch, name) for batch in product.batch]
    sizes = [
        batch.size if stride else 1 for batch, stride in zip(product.batch, strides, strict=True)
    ]
    matrices = sizes[0] * sizes[1]
    along_k = k_stride == 1 or line_stride != 1
    block_k = min(128 if along_k else 32, padded_k & -padded_k)
    block_l = min(32 if along_k else 128, padded_lines & -padded_lines)
    blocks = padded_lines // block_l
    wanted = max(1, min(MAX_CHUNKS, ceil_div(PASS_PROGRAMS, matrices * blocks)))
    chunk = max(block_k, next_power_of_two(ceil_div(padded_k, wanted)))
    chunks = ceil_div(padded_k, chunk)
    shared = (
        f"LINES={axis.size}, K={product.k.size}, INNER={sizes[1]}, X_OUTER={strides[0]}, "
        f"X_INNER={strides[1]}, "
        f"X_LINE={line_stride}, X_K={k_stride}, PADDED_LINES={padded_lines}, CHUNK={chunk}, "
        f"CHUNKS={chunks}, "
        f"BLOCK_L={block_l}, BLOCK_K={block_k}"
    )
    line_step, k_step = (padded_k, 1) if along_k else (1, padded_lines)
    device = f"device={name}.device"
    lines = (
        (
            f"{name}_largest = torch.empty({(matrices, chunks, padded_lines)!r}, "
            f"dtype=torch.int32, {device})"
        ),
        f"{name}_states = torch.empty_like({name}_largest)",
        (
            f"{name}_exponents = torch.empty({(matrices, padded_lines)!r}, dtype=torch.int32, "
            f"{device})"
        ),
        (
            f"{name}_high = torch.empty({(matrices, padded_lines * padded_k)!r}, "
            f"dtype=torch.float16, {device})"
        ),
        f"{name}_low = torch.empty_like({name}_high)"
        if terms == 3
        else f"{name}_low = {name}_high  # not read",
        f"kmem_largest[({matrices * chunks * blocks},)]({name}, {name}_largest, {shared})",
        f"kmem_split_operand[({matrices * chunks * blocks},)]({name}, {name}_largest, {name}_high, "
        f"{name}_low, {name}_exponents, "
        f"{name}_states, {shared}, PADDED_K={padded_k}, P_LINE={line_step}, P_K={k_step}, "
        f"TERMS={terms})",
    )
    return _Parts(lines, padded_lines, line_step, k_step, chunks)


RECIPE = SplitMatmul()
