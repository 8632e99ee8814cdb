"""Triton text that the matrix-product recipes share: tile order, store, split-K reduction, launch
arguments and times of a `Product`.

Every kernel takes all sizes and strides as `tl.constexpr`, so one text serves every workload. A
kernel that stores tiles is a template until epilogue.specialise fills it in. Owned elsewhere:
reading products (contraction.py), what follows them (epilogue.py), splitting operands into half
precision (split_matmul.py), the plain tile and matrix-vector kernels (their recipes).
"""

from dataclasses import dataclass

from kmem.codegen.contraction import Product
from kmem.codegen.epilogue import launch_operands
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Settings
from kmem.records import DTYPE_BYTES, Device

TILE_ORDER = (
    "kmem_tile_of",
    '''
@triton.jit
def kmem_tile_of(pid, TILES_M: tl.constexpr, TILES_N: tl.constexpr, GROUP: tl.constexpr):
    """Tile row and column of a program: GROUP tile rows are walked column by column, so that both operands' tiles stay in L2."""
    width: tl.constexpr = GROUP * TILES_N
    first = (pid // width) * GROUP
    rows = min(TILES_M - first, GROUP)
    return first + (pid % width) % rows, (pid % width) // rows
''',
)

STORE_TILE = (
    "kmem_store_tile",
    '''
@triton.jit
def kmem_store_tile(
    out, acc, batch, split, rows, columns, EPILOGUE_PARAMETERS M: tl.constexpr, N: tl.constexpr,
    BATCH: tl.constexpr, BATCH_INNER: tl.constexpr, SPLITS: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr, EVEN: tl.constexpr,
):
    """Write a tile of sums: into the result after the epilogue, or, for one of several splits of K, as it is into scratch."""
    if SPLITS > 1:
        place = out + (split.to(tl.int64) * BATCH + batch) * (M * N)
        offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    else:
        place = out + (batch // BATCH_INNER).to(tl.int64) * OUT_OUTER + (batch % BATCH_INNER).to(tl.int64) * OUT_INNER
        offsets = rows.to(tl.int64)[:, None] * OUT_M + columns.to(tl.int64)[None, :] * OUT_N
    EPILOGUE_STATEMENTS
    if EVEN:
        tl.store(place + offsets, acc.to(out.dtype.element_ty))
    else:
        tl.store(place + offsets, acc.to(out.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))
''',
)

TILE_IS_ZERO = (
    "kmem_tile_is_zero",
    '''
@triton.jit
def kmem_tile_is_zero(tile_m, tile_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr):
    """Whether a tile of outputs lies wholly outside the triangle."""
    outside = tile_m < 0
    if TRIANGLE == "upper":
        outside = tile_n * BLOCK_N + BLOCK_N - 1 - tile_m * BLOCK_M < DIAGONAL
    if TRIANGLE == "lower":
        outside = tile_n * BLOCK_N - (tile_m * BLOCK_M + BLOCK_M - 1) > DIAGONAL
    return outside
''',
)

#: Second stage of split-K: a fixed order of additions, so that two calls give the same bits.
REDUCE_SPLITS = (
    "kmem_reduce_splits",
    """
@triton.jit
def kmem_reduce_splits(
    parts, out, EPILOGUE_PARAMETERS M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr, SPLITS: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):
    columns_of_tiles: tl.constexpr = (N + BLOCK_C - 1) // BLOCK_C
    rows_of_tiles: tl.constexpr = (M + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    tile = pid % (rows_of_tiles * columns_of_tiles)
    batch = pid // (rows_of_tiles * columns_of_tiles)
    rows = (tile // columns_of_tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = (tile % columns_of_tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    place = parts + batch.to(tl.int64) * (M * N) + rows.to(tl.int64)[:, None] * N + columns[None, :]
    acc = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for split in range(SPLITS):
        acc += tl.load(place, mask=inside, other=0.0)
        place += BATCH * M * N
    kmem_store_tile(
        out, acc, batch, 0, rows, columns, EPILOGUE_ARGUMENTS M, N,
        BATCH, BATCH_INNER, 1, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, TRIANGLE, DIAGONAL, False,
    )
""",
)

SHARED_KERNELS = (TILE_ORDER, TILE_IS_ZERO, STORE_TILE, REDUCE_SPLITS)


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def output_arguments(product: Product) -> str:
    """Launch arguments that every kernel writing the result takes."""
    outer, inner = product.batch
    return (
        f"M={product.m.size}, N={product.n.size}, BATCH={product.batches}, "
        f"BATCH_INNER={inner.size}, "
        f"OUT_OUTER={outer.out}, OUT_INNER={inner.out}, OUT_M={product.m.out}, "
        f"OUT_N={product.n.out}, "
        f"TRIANGLE={product.triangle!r}, "
        f"DIAGONAL={product.diagonal}{launch_operands(product.operand_steps)}"
    )


def operand_arguments(product: Product) -> str:
    """Launch arguments for reading both operands where they lie."""
    outer, inner = product.batch
    return (
        f"K={product.k.size}, A_OUTER={outer.a}, A_INNER={inner.a}, A_M={product.m.a}, "
        f"A_K={product.k.a}, "
        f"B_OUTER={outer.b}, B_INNER={inner.b}, B_K={product.k.b}, B_N={product.n.b}"
    )


def write_launcher(product: Product, launches: str, splits: int) -> str:
    """`launch(a, b, e0, ...)`: allocate the result, run `launches` (lines that write `target`),
    then sum the splits of K if several.
    """
    lines = [
        (
            f"def "
            f"launch({', '.join(['a', 'b', *(f'e{index}' for index in range(len(product.operand_specs)))])}):"
        )
    ]
    lines.append(
        f"    out = torch.empty_strided({product.out.shape!r}, {product.out.stride!r}, "
        f"dtype=a.dtype, device=a.device)"
    )
    if splits > 1:
        shape = (splits, product.batches, product.m.size, product.n.size)
        lines.append(f"    target = torch.empty({shape!r}, dtype=torch.float32, device=a.device)")
    else:
        lines.append("    target = out")
    lines += [f"    {line}" for line in launches.strip().splitlines()]
    if splits > 1:
        columns = min(128, next_power_of_two(product.n.size))
        rows = min(next_power_of_two(product.m.size), max(1, 1024 // columns))
        grid = product.batches * ceil_div(product.m.size, rows) * ceil_div(product.n.size, columns)
        lines.append(
            f"    kmem_reduce_splits{product.epilogue.suffix}[({grid},)](target, out, "
            f"{output_arguments(product)}, "
            f"SPLITS={splits}, BLOCK_R={rows}, BLOCK_C={columns})"
        )
    lines.append("    return out")
    return "\n".join(lines) + "\n"


def tile_count(product: Product, settings: Settings) -> tuple[int, int]:
    """Rows and columns of output tiles at a setting with block_m and block_n."""
    return ceil_div(product.m.size, int(settings["block_m"])), ceil_div(
        product.n.size, int(settings["block_n"])
    )


def tile_sizes(size: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """Those tile sizes that are not wasteful for a length: none above its next power of two, at
    least the smallest.
    """
    return tuple(value for value in values if value <= max(values[0], next_power_of_two(size)))


def split_choices(
    product: Product, block_m: int, block_n: int, block_k: int, device: Device
) -> tuple[int, ...]:
    """Numbers of splits of K worth trying: 1, and enough to give every SM one or two programs where
    the output has too few tiles.
    """
    tiles = product.batches * ceil_div(product.m.size, block_m) * ceil_div(product.n.size, block_n)
    most = product.k.size // (4 * block_k)
    wanted = {1} | {
        min(most, waves * device.sm_count // tiles)
        for waves in (1, 2)
        if tiles * 2 <= device.sm_count
    }
    return tuple(sorted(value for value in wanted if value >= 1))


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


#: From issuing a tile's loads to their arrival in shared memory; what a program costs beside its
#: steps and its store (start, first loads), and for a tile of 128x128 the layout changes of its
#: result. Source: fitted to the H200 runs of tools/gpu_matmul.py on 2026-11-21 (bf16 4096^3 at
#: 128x256x32, 3 and 4 stages: 0.24, 0.19 ms; 32768 x 32 and 64 x 32768: 4.9, 5.6 us a tile of
#: 128x128, 3.3, 3.9 of 64x128).
_LOAD_LATENCY_S = 0.97e-6
_PROGRAM_S, _RESULT_S = 1.0e-6, 1.2e-6


def ceiling(device: Device, name: str) -> float:
    """What a tuned library product reaches on a device, in FLOP/s: its peak if measured, else 0.8
    of the data sheet's.

    Source of 0.8: H200 ceilings of 808 (bf16), 781 (fp16), 423 (TF32) and 51 (fp32) against 989,
    989, 494 and 67 TFLOP/s.
    """
    return device.peak_flops_per_s[name] * (1.0 if device.measured else 0.8)


def resident_programs(settings: Settings, loop: TileLoop, device: Device) -> int:
    """Programs that share an SM, by registers (the tiles of sums and about 60 more a thread) and
    shared memory; at least one.
    """
    block_m, block_n, block_k, warps, stages = (
        int(settings[name]) for name in ("block_m", "block_n", "block_k", "warps", "stages")
    )
    threads = warps * device.warp_size
    registers = min(255, loop.live_tiles * block_m * block_n // threads + 60)
    shared = (block_m + block_n) * block_k * loop.shared_bytes * stages
    return max(
        1,
        min(
            device.registers_per_sm // (registers * threads),
            device.shared_bytes_per_sm // shared,
            16 // warps * 2,
        ),
    )


def product_cost_ms(product: Product, settings: Settings, device: Device, loop: TileLoop) -> float:
    """Time of a tiled product: for each SM the larger of what its programs need of it together and
    what one needs alone over how many there are, not below the bytes over the bandwidth.

    Args:
        settings: with block_m, block_n, block_k, warps, stages and splits.
    """
    block_m, block_n, block_k, splits, stages = (
        int(settings[name]) for name in ("block_m", "block_n", "block_k", "splits", "stages")
    )
    tiles_m, tiles_n = tile_count(product, settings)
    tiles = tiles_m * tiles_n * product.batches * splits
    used = max(1, tiles // 2 if product.triangle != "none" and min(tiles_m, tiles_n) > 1 else tiles)
    steps = ceil_div(ceil_div(product.k.size, block_k), splits)
    resident = min(resident_programs(settings, loop, device), ceil_div(used, device.sm_count))
    rate = (
        loop.flops_per_s
        / device.sm_count
        * min(1.0, block_m * block_n / (block_m + block_n) / loop.full_intensity)
    )
    work_s = steps * (2.0 * loop.products * block_m * block_n * block_k / rate + loop.step_s)
    width = 4 if splits > 1 else operand_width(product)
    store_s = block_m * block_n * width / (0.85 * device.dram_bytes_per_s / device.sm_count)
    alone_s = max(work_s, steps * _LOAD_LATENCY_S / (stages - 1)) + store_s + _PROGRAM_S
    alone_s += _RESULT_S * min(1.0, block_m * block_n / 2**14)
    per_sm = (
        used / device.sm_count if used > 4 * device.sm_count else ceil_div(used, device.sm_count)
    )
    compute_ms = per_sm * max(work_s, store_s, alone_s / resident) * 1e3
    partial_bytes = (
        8 * splits * product.batches * product.m.size * product.n.size if splits > 1 else 0
    )
    operand_a, operand_b, result = product.operand_bytes
    bytes_ms = (
        (operand_a + operand_b + result + partial_bytes) / (0.85 * device.dram_bytes_per_s) * 1e3
    )
    return max(compute_ms, bytes_ms) + device.launch_ms * (1 + (splits > 1))


def operand_width(product: Product) -> int:
    """Bytes of one element of an operand."""
    return DTYPE_BYTES[product.dtype]
