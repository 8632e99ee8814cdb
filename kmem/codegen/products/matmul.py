"""Triton text that the recipes of matrix products share.

That is the order of tiles, the store of a tile, the sum over splits of K, and the launch arguments
of a `Product`. Every kernel takes all sizes and strides as `tl.constexpr`, so that one text serves
every workload. A kernel that stores tiles is handed what follows as a function, see
chains/ports.py. contraction.py reads products and chains/epilogue.py what follows them; tuning.py
has the knobs and times of tiled ones; the kernels that multiply belong to the skills.
"""

import re

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.ports import AFTER, BEFORE_A, BEFORE_B, Functions, port_arguments
from kmem.codegen.products.contraction import Product
from kmem.codegen.text.accumulate import ADD_COMPENSATED
from kmem.codegen.text.calls import write_call, write_launch, write_launch_function
from kmem.problem.sizes import ceil_div, next_power_of_two

#: Ports at which operands are made, a's first.
OPENINGS = (BEFORE_A, BEFORE_B)

TILE_ORDER = (
    "kmem_tile_of",
    '''
@triton.jit
def kmem_tile_of(pid, TILES_M: tl.constexpr, TILES_N: tl.constexpr, GROUP: tl.constexpr):
    """Tile row and column of a program: GROUP tile rows are walked column by column, so that both
    operands' tiles stay in L2.
    """
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
    out, acc, batch, split, rows, columns,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
    BATCH: tl.constexpr, BATCH_INNER: tl.constexpr, SPLITS: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Write a tile of sums: into the result after AFTER, or, for one of several splits of K, as it
    is into scratch.
    """
    if SPLITS > 1:
        place = out + (split.to(tl.int64) * BATCH + batch) * (M * N)
        offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    else:
        place = (
            out
            + (batch // BATCH_INNER).to(tl.int64) * OUT_OUTER
            + (batch % BATCH_INNER).to(tl.int64) * OUT_INNER
        )
        if AFTER is not None:
            acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
        if PLACE is not None:
            rows, columns = PLACE(rows, columns, N)
        offsets = rows.to(tl.int64)[:, None] * OUT_M + columns.to(tl.int64)[None, :] * OUT_N
    if EVEN:
        tl.store(place + offsets, acc.to(out.dtype.element_ty))
    else:
        tl.store(
            place + offsets,
            acc.to(out.dtype.element_ty),
            mask=(rows[:, None] < M) & (columns[None, :] < N),
        )
''',
)

TILE_IS_ZERO = (
    "kmem_tile_is_zero",
    '''
@triton.jit
def kmem_tile_is_zero(
    tile_m, tile_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr,
):
    """Whether a tile of outputs lies wholly outside the triangle."""
    outside = tile_m < 0
    if TRIANGLE == "upper":
        outside = tile_n * BLOCK_N + BLOCK_N - 1 - tile_m * BLOCK_M < DIAGONAL
    if TRIANGLE == "lower":
        outside = tile_n * BLOCK_N - (tile_m * BLOCK_M + BLOCK_M - 1) > DIAGONAL
    return outside
''',
)

#: Second stage of split-K: a fixed order of additions, so that two calls give the same bits. It
#: waits for memory, so sums of hundreds of splits are compensated.
REDUCE_SPLITS = (
    "kmem_reduce_splits",
    """
@triton.jit
def kmem_reduce_splits(
    parts, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
    BATCH: tl.constexpr, BATCH_INNER: tl.constexpr, SPLITS: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
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
    lost = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for split in range(SPLITS):
        acc, lost = kmem_add_compensated(acc, lost, tl.load(place, mask=inside, other=0.0))
        place += BATCH * M * N
    kmem_store_tile(
        out, acc, batch, 0, rows, columns,
        extra, AFTER, STEPS, PLACE, M, N,
        BATCH, BATCH_INNER, 1, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, False,
    )
""",
)

#: Elements of the tile that one program of the sum over splits adds, and its columns at most.
_SUMMED_ELEMENTS, _SUMMED_COLUMNS = 1024, 128


def output_arguments(product: Product) -> tuple[str, ...]:
    """Launch arguments that every kernel writing the result takes, in groups."""
    outer, inner = product.batch
    steps = f"OUT_OUTER={outer.out}, OUT_INNER={inner.out}, OUT_M={product.m.out}"
    steps += f", OUT_N={product.n.out}"
    if product.joined is not None and product.joined.shares:
        steps = product.joined.result_arguments
    return (
        f"M={product.m.size}, N={product.n.size}, BATCH={product.batches}, "
        f"BATCH_INNER={inner.size}",
        steps,
        *port_arguments(AFTER, product.epilogue, product.operand_steps),
    )


def opening_arguments(product: Product) -> tuple[str, ...]:
    """Launch arguments of kernels that make both operands of something else, in groups."""
    steps = product.opening_steps or ((), ())
    chains = functions_of(product)
    groups = zip(OPENINGS, steps, strict=True)
    indexed = [
        f"index=row_index, ROW_STEPS={each.row_steps}" for each in product.before if each.rows
    ]
    return (
        *(
            group
            for port, own in groups
            for group in port_arguments(port, chains.get(port, Epilogue()), own)
        ),
        *(indexed or ("index=None, ROW_STEPS=None",)),
    )


def functions_of(product: Product) -> Functions:
    """What the kernels of a product are handed at their ports."""
    openings = zip(OPENINGS, product.before, strict=False)
    return {AFTER: product.epilogue, **{port: opening.chain for port, opening in openings}}


def reducing_options(product: Product) -> str:
    """Launch options of kernels that store tiles of which parts of rows are left."""
    return "" if product.finish is None else product.finish.options


def kernels_around(product: Product) -> tuple[tuple[str, str], ...]:
    """What is launched before a product of joined operands, and behind one that leaves parts."""
    joining = () if product.joined is None else product.joined.kernels
    finishing = () if product.finish is None else product.finish.kernels
    return (*joining, *finishing)


def shared_kernels(product: Product) -> tuple[tuple[str, str], ...]:
    """What all kernels of a product call, and the sum over splits of K."""
    storing = () if product.joined is None else product.joined.storing
    return (TILE_ORDER, TILE_IS_ZERO, *(storing or (STORE_TILE,)), ADD_COMPENSATED, REDUCE_SPLITS)


def triangle_arguments(product: Product) -> str:
    """Launch arguments of kernels that leave out tiles outside a triangle."""
    return f"TRIANGLE={product.triangle!r}, DIAGONAL={product.diagonal}"


def operand_arguments(product: Product) -> tuple[str, ...]:
    """Launch arguments for reading both operands where they lie, in groups."""
    outer, inner = product.batch
    return (
        f"K={product.k.size}, A_OUTER={outer.a}, A_INNER={inner.a}, A_M={product.m.a}, "
        f"A_K={product.k.a}",
        f"B_OUTER={outer.b}, B_INNER={inner.b}, B_K={product.k.b}, B_N={product.n.b}",
    )


def write_launcher(product: Product, launches: list[str], splits: int) -> str:
    """`launch(a, b, e0, ...)`: allocate the result, run `launches`, sum the splits of K if several.

    Where b is joined of several operands, the launcher takes these in its place.

    Args:
        launches: statements that write `target`.
    """
    joined = product.joined
    parameters = ["a", *(("b",) if joined is None else joined.parameters)]
    parameters += [f"e{index}" for index in range(len(product.operand_specs))]
    for port, opening in zip(OPENINGS, product.before, strict=False):
        count = len(opening.specs) + len(opening.pointers)
        parameters += [f"{port.pointer}{index}" for index in range(count)]
    parameters += ["row_index" for opening in product.before if opening.rows]
    shape, stride = product.out.shape, product.out.stride
    # an operand that is made while it is read may be made of another type
    dtype = f"torch.{product.dtype}" if product.before else "a.dtype"
    placed = f"dtype={dtype}, device=a.device"
    # places in rows are whole numbers
    own = "dtype=torch.int64, device=a.device" if product.out.dtype == "int64" else placed
    made, result = [write_call("out = torch.empty_strided", f"{shape!r}, {stride!r}", own)], "out"
    if joined is not None and joined.shares:
        made, result = joined.allocate(placed), joined.results
    returned = result
    if joined is not None:
        made += joined.write(product.k.size, f"torch.{product.dtype}")
    last = []
    if product.finish is not None:
        made.append(product.finish.write_allocation("a"))
        result, last = "parts", [product.finish.write_launch()]
    if splits == 1 and result.startswith("("):  # a tuple is passed as one
        launches = [re.sub(r"\btarget\b", result, launch) for launch in launches]
    elif splits == 1:
        made.append(f"target = {result}")
    else:
        scratch = (splits, product.batches, product.m.size, product.n.size)
        made.append(f"target = torch.empty({scratch!r}, dtype=torch.float32, device=a.device)")
        last = [_write_sum(product, splits, result), *last]
    return write_launch_function(parameters, [*made, *launches, *last, f"return {returned}"])


def _write_sum(product: Product, splits: int, result: str) -> str:
    """The launch that adds the splits of K into a result."""
    rows_in_all, columns_in_all = product.m.size, product.n.size
    fewest = 1 if product.finish is None else product.finish.window
    columns = min(_SUMMED_COLUMNS, max(fewest, next_power_of_two(columns_in_all)))
    if product.joined is not None and product.joined.shares:
        columns = min(columns, product.joined.grain)
    rows = min(next_power_of_two(rows_in_all), max(1, _SUMMED_ELEMENTS // columns))
    return write_launch(
        REDUCE_SPLITS[0],
        product.batches * ceil_div(rows_in_all, rows) * ceil_div(columns_in_all, columns),
        f"target, {result}",
        *output_arguments(product),
        f"SPLITS={splits}, BLOCK_R={rows}, BLOCK_C={columns}",
        reducing_options(product),
    )
