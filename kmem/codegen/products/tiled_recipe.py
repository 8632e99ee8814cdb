"""The recipe class of products with one dot per tile.

bf16 and fp16 are multiplied on the tensor cores, fp32 exactly on the FMA units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kmem.codegen.chains.approximate import approximate, chain_s
from kmem.codegen.chains.ports import hand_in
from kmem.codegen.products.contraction import Product
from kmem.codegen.products.matmul import (
    OPENINGS,
    functions_of,
    kernels_around,
    opening_arguments,
    operand_arguments,
    output_arguments,
    reducing_options,
    shared_kernels,
    triangle_arguments,
    write_launcher,
)
from kmem.codegen.products.sites import find_products
from kmem.codegen.products.tiled_kernel import TILE_MATMUL
from kmem.codegen.products.tuning import (
    TILE_ROLES,
    TileLoop,
    TileSettings,
    fit_tile,
    joining_ms,
    operand_width,
    product_cost_ms,
    resident_programs,
    split_choices,
    tile_count,
    tile_sizes,
)
from kmem.codegen.rates import ceiling, issues_per_s
from kmem.codegen.settings import read_settings
from kmem.codegen.text.accumulate import PROMOTE_ELEMENTS, steps_in_chain
from kmem.codegen.text.calls import write_launch
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div
from kmem.recipes import ACCURACY, Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device


@dataclass(frozen=True, slots=True)
class LadderSettings(TileSettings):
    """The knobs: those of a tiled product, and the rung of its precision ladder.

    Exact sums are promoted on rung 0; on rung 1 every step is a sum of its own, and their total is
    compensated. On the tensor cores of half precision one long sum errs far less than its result is
    rounded: it is promoted on rung 1, compensated on rung 2.
    """

    accuracy: int = 0


@dataclass(frozen=True, slots=True)
class _Unit:
    """What a kind of multiplier reaches.

    `share` is of the vendor's ceiling, `step_s` seconds per step of K, and `full_intensity` that of
    a large tile (see TileLoop).
    """

    name: str
    share: float
    step_s: float
    full_intensity: float


#: Source: H200, 2026-11-21: bf16 8192^3 in 1.42 ms at 128x256 (774 of 808 TFLOP/s); fp32 batched in
#: 6.30 ms with steps of 32, 6.76 with steps of 16 (43.6 of 51 TFLOP/s), 256 x 524288 x 256 in 1.56
#: ms at 128x128 and 1.60 at 64x128.
_TENSOR_CORES, _FMA_UNITS = _Unit("bf16", 0.97, 3e-8, 85.0), _Unit("fp32", 0.9, 2e-7, 42.0)
#: Warps of an SM below which its four schedulers, one warp each, wait out every FMA: half the rate,
#: measured at 1024^3.
_FEW_WARPS, _STARVED = 8, 2.0
#: What tall tiles take of the time of wide ones: 0.189 against 0.177 ms (bf16 4096^3, 256x128 and
#: 128x256).
_TALL = 1.05
#: What exact tiles take where b lies along K, as a linear layer's weight does. Source: H200,
#: KernelBench level 1: 17 against 1 (6.02 to 6.18 and 3.08 to 3.19 ms); level 2: linear layers (20
#: TFLOP/s; 2026-11-23).
_ALONG_K = 1.95
#: Sums of a thread: at least, and at most on tensor cores.
_MIN_SUMS, _MAX_SUMS = 2, 128
#: At most on FMA units, and beside an operand of the epilogue as large as the tile: 128x256 on
#: 8 warps spilled 424 bytes a thread.
_FEWER_SUMS = 64
#: Steps of K with which an exact tile may be as large where two results of a place are joined.
#: Compiled for sm_90: 128x128x32 on 8 warps spills 400 bytes, 128x128x16 and 64x128x32 nothing; in
#: bf16 128x256 nothing where sizes are even, 88 to 272 bytes where not, 48 with several results.
_SHORT_STEP = 16
#: At most, with the total of short sums and what it lost, where these are registers beside them:
#: exact or not. Compiled for sm_90: 128x128x32 exact and compensated (192 of a thread) spills 192
#: bytes, 128x128x64 in bf16 (192) 80; with 128 of a thread nothing does.
_MOST_LIVE = {True: 128, False: 160}
#: Instructions of a value of an operand that is computed: from memory, to fp32, and back to shared
#: memory. With the chain's own: in half precision on an H200 (2026-11-28), silu(gate) * up before a
#: product of 2048 x 14336, 2048 x 5504 and 4096 x 11008 took 2.2 to 2.6 ps a value and tile of
#: columns more than without it, exact as it was then; differences of whole runs' times.
_MOVED = 6.0
#: Operations of a compensated addition, and how much more an addition takes beside tensor cores
#: than a multiply-add does on the FMA units.
_COMPENSATED_ADDITIONS, _EXPOSED_ADDITIONS = 6, 4.0


class TiledProducts(Recipe):
    """Tiled product with fp32 accumulation.

    fp32 operands are multiplied exactly, whatever the contract allows. `find` says which products
    of a graph it takes, and what is written with them.
    """

    def __init__(self, find: Callable[[OpGraph, Contract], Sequence[Site]] = find_products) -> None:
        self.find = find

    operators = ("matmul", "batched_matmul", "linear", "triangular_matmul")
    roles = TILE_ROLES

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        found = [site for site in self.find(graph, contract) if _is_matrix(site.detail)]
        return [replace(site, detail=_with_quick_chains(_in_place(site))) for site in found]

    def space(self, site: Site, device: Device) -> Space:
        product: Product = site.detail
        exact = _is_exact(product)
        sizes = (16, 32, 64, 128) if exact else (16, 32, 64, 128, 256)
        rows, columns = tile_sizes(product.m.size, sizes), tile_sizes(product.n.size, sizes)
        steps = tile_sizes(product.k.size, (16, 32) if exact else (16, 32, 64))
        block_m, block_n = min(rows[-1], 128), min(columns[-1], 128)
        knobs = {
            "block_m": rows[-3:],
            "block_n": columns[-3:],
            "block_k": steps[-2:],
            "warps": (4, 8),
            "stages": (3, 4),
            "group": (8,),
            "splits": split_choices(product, block_m, block_n, steps[-1], device),
            ACCURACY: _rungs(product),
        }
        return Space(knobs, lambda settings: _is_legal(product, _knobs(product, settings), device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        product: Product = site.detail
        knobs, exact = _knobs(product, settings), _is_exact(product)
        unit = _FMA_UNITS if exact else _TENSOR_CORES
        rate = ceiling(device, unit.name) * unit.share
        width = operand_width(product)
        live = _live_tiles(product, knobs)
        loop = TileLoop(rate, 1, live, width, unit.step_s, unit.full_intensity)
        cost = product_cost_ms(product, knobs, device, loop) * _summing(product, knobs)
        if exact and resident_programs(knobs, loop, device) * knobs.warps < _FEW_WARPS:
            cost *= _STARVED
        cost *= _TALL if knobs.block_m > knobs.block_n else 1.0
        cost *= _ALONG_K if exact and product.k.b == 1 < product.n.b else 1.0
        return cost + _opening_ms(product, knobs, device) + joining_ms(site, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        product: Product = site.detail
        knobs = _knobs(product, settings)
        tiles_m, tiles_n = tile_count(product, knobs)
        launch = write_launch(
            TILE_MATMUL[0],
            tiles_m * tiles_n * knobs.splits * product.batches,
            f"a, {'b' if product.joined is None else product.joined.argument}, target",
            *output_arguments(product),
            *opening_arguments(product),
            triangle_arguments(product),
            *operand_arguments(product),
            f"IN_TURNS={product.joined is not None and product.joined.in_place}",
            f"EXACT={_is_exact(product)}, INTERPRETED=triton.knobs.runtime.interpret",
            f"PROMOTE={_promote_steps(product, knobs)}, "
            f"COMPENSATED={_is_compensated(product, knobs)}",
            f"SPLITS={knobs.splits}, GROUP={knobs.group}",
            f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, BLOCK_K={knobs.block_k}",
            f"num_warps={knobs.warps}, num_stages={knobs.stages}",
            reducing_options(product),
        )
        kernels = hand_in((*shared_kernels(product), TILE_MATMUL), functions_of(product))
        emission = Emission(
            tuple(dict.fromkeys((*kernels, *kernels_around(product)))),
            write_launcher(product, [launch], knobs.splits),
        )
        return emission if product.joined is None else product.joined.name_apart(emission)


def _in_place(site: Site) -> Product:
    """The product of a site, with operands where they lie if a copy would be made at every call."""
    product: Product = site.detail
    joined = product.joined
    if joined is None or not joined.can_stay or product.unpacks:
        return product
    if all(operand.kept for operand in site.inputs[1 : 1 + joined.operands]):
        return product
    step_k, step_n = joined.columns[0].k_step, joined.columns[0].n_step
    return replace(
        product,
        k=replace(product.k, b=step_k),
        n=replace(product.n, b=step_n),
        joined=replace(joined, in_place=True),
    )


def _with_quick_chains(product: Product) -> Product:
    """A product with the hardware's exponentials and quotients around it, if it is rounded to half
    precision, to 2**-11 or more: an exact silu of an operand takes 41 instructions a value (SASS
    for sm_90).
    """
    if _is_exact(product):
        return product
    before = tuple(replace(each, chain=approximate(each.chain)) for each in product.before)
    return replace(product, epilogue=approximate(product.epilogue), before=before)


def _knobs(product: Product, settings: Settings) -> LadderSettings:
    return fit_tile(product, read_settings(LadderSettings, settings))


def _is_matrix(product: Product) -> bool:
    """Whether a product is worth tiles: vectors are if that spares unpacking their matrix."""
    return min(product.m.size, product.n.size, product.k.size) > 1 or (
        product.unpacks and min(product.n.size, product.k.size) > 1
    )


def _is_exact(product: Product) -> bool:
    return product.dtype == "float32"


def _rungs(product: Product) -> tuple[int, ...]:
    if product.k.size <= PROMOTE_ELEMENTS:
        return (0,)
    return (0, 1) if _is_exact(product) else (0, 1, 2)


def _promote_steps(product: Product, knobs: LadderSettings) -> int:
    """Steps of K in one short sum; 0 for one long sum, where that is good enough.

    Exact sums take several: a sum of its own for each step keeps all operands in registers beside
    it (compiled for sm_90, 128x128x32 on 8 warps: 255 registers and 168 bytes spilled, against 224
    and none with a chain of four steps).
    """
    steps = ceil_div(ceil_div(product.k.size, knobs.splits), knobs.block_k)
    is_wanted = _is_exact(product) or knobs.accuracy > 0
    if not is_wanted or steps * knobs.block_k <= PROMOTE_ELEMENTS:
        return 0
    is_top = _is_exact(product) and _is_compensated(product, knobs)
    return 1 if is_top else steps_in_chain(knobs.block_k)


def _is_compensated(product: Product, knobs: LadderSettings) -> bool:
    """Whether the total of short sums keeps what it loses."""
    return knobs.accuracy >= (1 if _is_exact(product) else 2)


def _live_tiles(product: Product, knobs: LadderSettings) -> int:
    """fp32 tiles of the output in registers at once: the sum, its total, and what that lost."""
    is_promoted = _promote_steps(product, knobs) > 0
    return 1 + is_promoted + (is_promoted and _is_compensated(product, knobs))


def _summing(product: Product, knobs: LadderSettings) -> float:
    """Times the time of one long sum: additions to the total beside multiply-adds.

    Tensor cores multiply while the other units add, but not all the time; not measured yet.
    """
    steps = _promote_steps(product, knobs)
    if steps == 0:
        return 1.0
    added = _COMPENSATED_ADDITIONS if _is_compensated(product, knobs) else 1
    share = added / (steps * knobs.block_k)
    return 1.0 + (share if _is_exact(product) else _EXPOSED_ADDITIONS * share)


def _opening_ms(product: Product, knobs: LadderSettings, device: Device) -> float:
    """What is made of operands while they are read: by every tile of a row or a column anew.

    It waits for its loads, and the multiplication waits for it. Exact products and numbers that are
    unpacked: not measured yet.
    """
    repeats = tuple(reversed(tile_count(product, knobs)))
    if _is_exact(product) or product.unpacks:
        rates = device.peak_flops_per_s
        return 1e3 * sum(
            times * (opening.work.simple / rates["fp32"] + opening.work.special / rates["special"])
            for opening, times in zip(product.before, repeats, strict=False)
        )
    lines = (product.m.size, product.n.size)
    functions, seconds = functions_of(product), 0.0
    for port, opening, count, times in zip(OPENINGS, product.before, lines, repeats, strict=False):
        if opening.nodes:
            values = product.batches * count * product.k.size * times
            moved = values * _MOVED * (1 + len(opening.specs)) / device.warp_size
            seconds += chain_s(functions[port].statements, values, device)
            seconds += moved / issues_per_s(device)
    return 1e3 * seconds


def _is_even(product: Product, knobs: LadderSettings) -> bool:
    """Whether tiles and steps of K have no remainder."""
    sizes = ((product.m, knobs.block_m), (product.n, knobs.block_n), (product.k, knobs.block_k))
    return all(axis.size % block == 0 for axis, block in sizes)


def _shared_bytes(product: Product, knobs: LadderSettings) -> int:
    """At most, of a block: what is loaded ahead for both operands, or for what they are made of.

    Compiled for sm_90: 128x128x64 of int4 in int32, zeros and scales of 4 bytes, takes 229,888.
    """
    width = operand_width(product)
    shared = knobs.step_elements * width * knobs.stages
    if product.unpacks:
        loaded = product.before[1].tile_bytes * (knobs.stages - 1) + width
        shared = knobs.block_m * knobs.block_k * width * knobs.stages
        shared += knobs.block_n * knobs.block_k * loaded
    return shared


def _is_legal(product: Product, knobs: LadderSettings, device: Device) -> bool:
    exact = _is_exact(product)
    sums = knobs.elements / (knobs.warps * device.warp_size)
    most = _FEWER_SUMS if exact or product.full_operands else _MAX_SUMS
    if product.joined is not None and exact and knobs.block_k > _SHORT_STEP:
        most = _FEWER_SUMS // 2
    has_parts = product.joined is not None and bool(product.joined.shares)
    if has_parts or product.joined is not None and not _is_even(product, knobs):
        most = min(most, _FEWER_SUMS)
    if not _MIN_SUMS <= sums <= most:
        return False
    live = _live_tiles(product, knobs)
    if live > 1 and live * sums > _MOST_LIVE[exact]:
        return False
    if not exact and knobs.repeats_rows:
        return False
    if product.k.size <= knobs.block_k * (knobs.stages - 1) and knobs.stages > 3:
        return False
    return _shared_bytes(product, knobs) <= device.shared_bytes_per_block
