"""Knobs and a rough time of tiled products, shared by the recipes whose kernels multiply tiles."""

from dataclasses import dataclass, replace
from typing import TypeVar

from kmem.codegen.products.contraction import Product
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Role, Site
from kmem.records import DTYPE_BYTES, Device

#: From issuing a tile's loads to their arrival in shared memory; what a program costs beside its
#: steps and its store (start, first loads), and for a tile of 128x128 the layout changes of its
#: result. Source: fitted to the H200 runs of tools/gpu_matmul.py on 2026-11-21 (bf16 4096^3 at
#: 128x256x32, 3 and 4 stages: 0.24, 0.19 ms; 32768 x 32 and 64 x 32768: 4.9, 5.6 us a tile of
#: 128x128, 3.3, 3.9 of 64x128).
_LOAD_LATENCY_S = 0.97e-6
_PROGRAM_S, _RESULT_S = 1.0e-6, 1.2e-6
_RESULT_ELEMENTS = 2**14
#: Of the bandwidth of a copy, what loads and stores of tiles reach.
SHARE_OF_BANDWIDTH = 0.85
#: Registers that a thread may have, and those beside its sums.
_MOST_REGISTERS, _OTHER_REGISTERS = 255, 60
#: Programs of an SM above which a last, partly filled turn is lost in the average.
_MANY_PROGRAMS = 4


@dataclass(frozen=True, slots=True)
class TileSettings:
    """The knobs of a tiled product: the tile, its steps of K, splits of K, and how it is run."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    group: int
    splits: int

    @property
    def elements(self) -> int:
        """Of the tile of sums."""
        return self.block_m * self.block_n

    @property
    def intensity(self) -> float:
        """Multiplications for an element that is loaded."""
        return self.elements / (self.block_m + self.block_n)

    @property
    def step_elements(self) -> int:
        """Of both operands, loaded in one step."""
        return (self.block_m + self.block_n) * self.block_k

    @property
    def repeats_rows(self) -> bool:
        """Whether warps beyond the rows of the tile repeat its products."""
        return self.warps > 4 and self.block_m < 16 * self.warps


#: What these knobs are to a skill that moves them.
TILE_ROLES = {
    "block_m": (Role("tile"),),
    "block_n": (Role("tile"),),
    "block_k": (Role("depth"),),
    "warps": (Role("warps"),),
    "stages": (Role("stages"),),
    "group": (Role("grouping"),),
    "splits": (Role("split"),),
}
Tile = TypeVar("Tile", bound=TileSettings)


@dataclass(frozen=True, slots=True)
class TileLoop:
    """What the time of a tiled product depends on beside its settings.

    flops_per_s: reached by large tiles that never wait. products: tensor-core products per
    multiplication. live_tiles: fp32 tiles of the output in registers at once. shared_bytes: of
    operand tiles, per element of block_m + block_n and of K. step_s: overhead a step.
    full_intensity: m * n / (m + n) from which a tile is large.
    """

    flops_per_s: float
    products: int
    live_tiles: int
    shared_bytes: int
    step_s: float = 3e-8
    full_intensity: float = 64.0


def operand_width(product: Product) -> int:
    """Bytes of one element of an operand."""
    return DTYPE_BYTES[product.dtype]


def tile_count(product: Product, tile: TileSettings) -> tuple[int, int]:
    """Rows and columns of tiles that cover the output."""
    return ceil_div(product.m.size, tile.block_m), ceil_div(product.n.size, tile.block_n)


def fit_tile(product: Product, tile: Tile) -> Tile:
    """A tile no wider than one that belongs to one result alone, where there are several."""
    if product.joined is None or not product.joined.shares:
        return tile
    return replace(tile, block_n=min(tile.block_n, product.joined.grain))


def tile_sizes(size: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """Those tile sizes that are not wasteful for a length.

    None is above the length's next power of two, but for the smallest, which is always there.
    """
    return tuple(value for value in values if value <= max(values[0], next_power_of_two(size)))


def split_choices(
    product: Product, block_m: int, block_n: int, block_k: int, device: Device
) -> tuple[int, ...]:
    """Numbers of splits of K worth trying.

    That is 1, and as many as give every SM one or two programs where the output has too few tiles.
    """
    tiles = product.batches * ceil_div(product.m.size, block_m) * ceil_div(product.n.size, block_n)
    if tiles * 2 > device.sm_count:
        return (1,)
    most = product.k.size // (4 * block_k)
    wanted = {1, *(min(most, waves * device.sm_count // tiles) for waves in (1, 2))}
    return tuple(sorted(value for value in wanted if value >= 1))


def resident_programs(tile: TileSettings, loop: TileLoop, device: Device) -> int:
    """Programs that share an SM: by registers, shared memory, half of its warps; at least one."""
    threads = tile.warps * device.warp_size
    sums = loop.live_tiles * tile.elements // threads
    registers = min(_MOST_REGISTERS, sums + _OTHER_REGISTERS)
    fits = min(
        device.registers_per_sm // (registers * threads),
        device.shared_bytes_per_sm // (tile.step_elements * loop.shared_bytes * tile.stages),
        device.max_threads_per_sm // (2 * threads),
    )
    return max(1, fits)


def product_cost_ms(product: Product, tile: TileSettings, device: Device, loop: TileLoop) -> float:
    """Time of a tiled product.

    For each SM it is the larger of what its programs need of it together and what one needs alone
    over how many there are, not below the bytes over the bandwidth.
    """
    splits = tile.splits
    tiles_m, tiles_n = tile_count(product, tile)
    tiles = tiles_m * tiles_n * product.batches * splits
    has_zeros = product.triangle != "none" and min(tiles_m, tiles_n) > 1
    used = max(1, tiles // 2 if has_zeros else tiles)
    steps = ceil_div(ceil_div(product.k.size, tile.block_k), splits)
    bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
    resident = min(resident_programs(tile, loop, device), ceil_div(used, device.sm_count))
    rate = loop.flops_per_s / device.sm_count * min(1.0, tile.intensity / loop.full_intensity)
    work_s = steps * (2.0 * loop.products * tile.elements * tile.block_k / rate + loop.step_s)
    width = 4 if splits > 1 else operand_width(product)
    store_s = tile.elements * width / (bandwidth / device.sm_count)
    alone_s = max(work_s, steps * _LOAD_LATENCY_S / (tile.stages - 1)) + store_s + _PROGRAM_S
    alone_s += _RESULT_S * min(1.0, tile.elements / _RESULT_ELEMENTS)
    per_sm = ceil_div(used, device.sm_count)
    if used > _MANY_PROGRAMS * device.sm_count:
        per_sm = used / device.sm_count
    compute_ms = per_sm * max(work_s, store_s, alone_s / resident) * 1e3
    bytes_ms = (sum(product.operand_bytes) + partial_bytes(product, splits)) / bandwidth * 1e3
    return max(compute_ms, bytes_ms) + device.launch_ms * (
        1 + (splits > 1) + (product.finish is not None)
    )


def joining_ms(site: Site, device: Device) -> float:
    """What it takes to join operands; nothing where they are made once and kept."""
    product: Product = site.detail
    if product.joined is None or product.joined.in_place:
        return 0.0
    operands = site.inputs[1 : 1 + product.joined.operands]
    if all(operand.kept for operand in operands):
        return 0.0
    bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
    launches = len(product.joined.columns)
    return 2 * product.operand_bytes[1] / bandwidth * 1e3 + launches * device.launch_ms


def partial_bytes(product: Product, splits: int) -> int:
    """Bytes of the sums of all splits of K, written and read once; none for a single split."""
    if splits == 1:
        return 0
    return 8 * splits * product.batches * product.m.size * product.n.size
