"""Writes fp32 products as tensor-core products of scaled fp16 parts.

The operands are split ahead of the product (ahead.py, ahead_kernels.py) or, where they are long
against the output, while they are read (in_loop.py, in_loop_kernels.py). knobs.py has what both
share.
"""

from collections.abc import Sequence

from kmem.codegen.chains.ports import hand_in
from kmem.codegen.products.contraction import Product
from kmem.codegen.products.joined_sites import find_gates, join_sites
from kmem.codegen.products.matmul import (
    functions_of,
    kernels_around,
    shared_kernels,
    write_launcher,
)
from kmem.codegen.products.partial_rows import reduce_sites
from kmem.codegen.products.shared_sites import find_shares
from kmem.codegen.products.sites import find_products
from kmem.codegen.products.tuning import (
    SHARE_OF_BANDWIDTH,
    TILE_ROLES,
    TileLoop,
    joining_ms,
    product_cost_ms,
    split_choices,
    tile_sizes,
)
from kmem.codegen.rates import ceiling
from kmem.codegen.text.parts import SCALES
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div
from kmem.recipes import ACCURACY, Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device, Precision

from .ahead import is_split_at_once, write_ahead
from .in_loop import in_loop_cost_ms, in_loop_splits, is_legal_in_loop, write_in_loop
from .in_loop_kernels import IN_LOOP_KERNELS
from .knobs import SplitSettings, effort, live_tiles, part_bytes, read_knobs, rungs, terms_of

#: Size of every axis from which this is no matrix-vector product. Tiles have 16 at least, and where
#: there is less the rest is padding: it costs little, for such products wait for memory, and a
#: small workload must match wherever the full one does.
MIN_SIZE = 2
#: Sums of a thread: at least, and at most of 255 registers; addresses and scales take the rest.
MIN_THREAD_SUMS, MAX_THREAD_SUMS = 4, 192
#: At most where several results have odd sizes. Compiled for sm_90: with 192 152 bytes are spilled.
MAX_GAPPED_SUMS = 128
#: Share of the fp16 ceiling that three products per tile reach (promotion and the second
#: accumulator cost the rest), and one product. Source: H200, 2026-11-21: 4096^3 in 0.83 ms with the
#: pass and 0.73 without, 564 of 781 TFLOP/s; 0.32 and 0.22 ms with one product.
SHARE_OF_CEILING = {3: 0.72, 1: 0.85}
#: Times the expected time where K is so long against the output that everything is bound by memory.
#: Source: the same runs, 256 x 524288 x 256: 2.25 ms where bytes over bandwidth give 1.2.
LONG_LINES, VERY_LONG = 1.9, 64
#: Times the product's own time where its total is compensated, and where every step is promoted,
#: too. Not measured yet: from instructions beside those of the tensor cores.
EFFORT_COST = (1.0, 1.05, 1.2)
#: K over the larger side of the output from which splitting in the loop is worth a try: below, each
#: element is split by too many tiles.
LONG_ENOUGH = 16


class SplitMatmul(Recipe):
    """fp32 matmul on fp16 tensor cores.

    It takes three terms under `match`, and one, as precise as TF32, under `tf32`. Where one value
    of each row is wanted, tiles leave parts of rows.
    """

    operators = ("matmul", "batched_matmul", "linear", "triangular_matmul")
    roles = {
        **TILE_ROLES,
        "split": (Role("fusion", (("ahead",), ("in_loop",))),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = find_products(graph, contract)
        reduced = {site.name: site for site in reduce_sites(graph, sites)}
        apart = [reduced.get(site.name, site) for site in sites]
        gates = find_gates(graph, contract)
        shares = find_shares(graph, contract, (*gates, *reduced.values()))
        return [
            site
            for site in join_sites(graph, apart, (*gates, *shares))
            if site.detail.dtype == "float32" and _smallest(site.detail) >= MIN_SIZE
        ]

    def space(self, site: Site, device: Device) -> Space:
        product: Product = site.detail
        one_term = product.precision is Precision.TF32
        wide = (16, 32, 64, 128, 256) if one_term else (16, 32, 64, 128)
        rows = tile_sizes(product.m.size, (16, 32, 64, 128))
        columns = tile_sizes(product.n.size, wide)
        steps = tile_sizes(product.k.size, (16, 32, 64))
        knobs = {
            "block_m": rows[-2:],
            "block_n": columns[-2:],
            "block_k": steps[-2:],
            "warps": (4, 8),
            "stages": (3, 4),
            "group": (8,),
            "splits": split_choices(product, rows[-1], min(columns[-1], 128), steps[-1], device),
        }
        if product.k.size >= LONG_ENOUGH * _longest_side(product):
            knobs["split"] = ("ahead", "in_loop")
        knobs[ACCURACY] = rungs(product)
        return Space(
            knobs, lambda settings: _is_legal(product, read_knobs(product, settings), device)
        )

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        product: Product = site.detail
        knobs = read_knobs(product, settings)
        terms = terms_of(product, knobs)
        if knobs.is_in_loop:
            loop_ms = in_loop_cost_ms(product, knobs, device, list(_split_bytes(site).values()))
            return loop_ms + joining_ms(site, device)
        rate = ceiling(device, "fp16") * SHARE_OF_CEILING[terms]
        loop = TileLoop(rate, terms, live_tiles(product, knobs), part_bytes(product, knobs))
        # An operand is read once or twice (for the scale, for the parts) by as many launches, and
        # written as one or two halves; mending is one more. What is made of weights is kept.
        halves = 1.0 if terms == 3 else 0.5
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        split = _split_bytes(site)
        reads = {name: 1 if is_split_at_once(product, knobs, name) else 2 for name in split}
        moved = sum(nbytes * (reads[name] + halves) for name, nbytes in split.items())
        launches = 1 + sum(reads.values())
        pass_ms = moved / bandwidth * 1e3 + launches * device.launch_ms
        is_long = product.k.size >= VERY_LONG * _longest_side(product)
        product_ms = product_cost_ms(product, knobs, device, loop)
        product_ms *= EFFORT_COST[effort(product, knobs)]
        cost_ms = (product_ms + pass_ms) * (LONG_LINES if is_long else 1.0)
        return cost_ms + joining_ms(site, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        product: Product = site.detail
        knobs = read_knobs(product, settings)
        if knobs.is_in_loop:
            kernels, launches = [SCALES, *IN_LOOP_KERNELS], write_in_loop(product, knobs)
            splits = in_loop_splits(knobs)
        else:
            kernels, launches = write_ahead(product, knobs)
            splits = knobs.splits
        texts = (*shared_kernels(product), *kernels)
        written = dict.fromkeys((*hand_in(texts, functions_of(product)), *kernels_around(product)))
        return Emission(tuple(written), write_launcher(product, launches, splits))


def _split_bytes(site: Site) -> dict[str, int]:
    """Bytes of each operand, "a" or "b", that is split at every call."""
    sizes = zip("ab", site.inputs[:2], site.detail.operand_bytes[:2], strict=True)
    return {name: nbytes for name, operand, nbytes in sizes if not operand.kept}


def _smallest(product: Product) -> int:
    return min(product.m.size, product.n.size, product.k.size)


def _longest_side(product: Product) -> int:
    """Of the output."""
    return max(product.m.size, product.n.size)


def _is_legal(product: Product, knobs: SplitSettings, device: Device) -> bool:
    if knobs.is_in_loop:
        return is_legal_in_loop(product, knobs, device)
    sums = live_tiles(product, knobs) * knobs.elements / (knobs.warps * device.warp_size)
    # Warps beyond the rows of a tile repeat its products: 64x256 on 8 warps spilled, 4 times
    # slower.
    joined = product.joined
    has_parts = joined is not None and joined.has_gaps
    most = MAX_GAPPED_SUMS if has_parts else MAX_THREAD_SUMS
    if not MIN_THREAD_SUMS <= sums <= most or knobs.repeats_rows:
        return False
    if knobs.stages > 3 and product.k.size <= knobs.block_k * (knobs.stages - 1):
        return False
    shared = knobs.step_elements * part_bytes(product, knobs) * knobs.stages
    fits = shared <= device.shared_bytes_per_block
    return fits and knobs.splits <= ceil_div(product.k.size, knobs.block_k)


RECIPE = SplitMatmul()
