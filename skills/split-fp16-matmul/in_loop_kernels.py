"""Triton text for fp32 products that split their operands while reading them.

They serve outputs so small against K that the memory is the limit.

ahead_kernels.py writes the fp16 parts first and reads them back: four passes over the operands.
Here a program reads fp32 tiles and splits them on the way to the tensor cores, so the memory sends
both operands twice: once for the scales, once for the product (where neighbouring tiles find them
in L2). The scales are per line and step of K, whatever the rest of the line holds; every step is a
sum of its own, added to the fp32 total. BLOCK_K is therefore also the length of a tensor-core sum;
the cross terms are summed first, into the same registers.

The scales come from a pass of their own because largest magnitudes are reductions across warps:
found by each tile for itself in the loop, they and the search for lost entries were a third of its
instructions and 11 of its 13 barriers (SASS for sm_90, 64x128x32 and 128x128x64).

A step in which fp16 parts would lose an entry (scaled below 2**-14: see ahead_kernels.py; an
infinity; a line whose magnitudes lie outside 2**-46 .. 2**75) is noted by that pass and left out of
the total, and `kmem_mend_steps` adds it in exact fp32. A NaN stays in its line by itself. Kernels,
in order of launch: `kmem_step_scales` (for each operand), `kmem_split_in_loop`, `kmem_mend_steps`,
then `kmem_reduce_splits` of kmem/codegen/products/matmul.py.

Source of the split: Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores",
IJHPCA 36(4), 2022.
"""

STEP_SCALES = (
    "kmem_step_scales",
    '''
@triton.jit
def kmem_step_scales(
    x, exponents, left_out,
    LINES: tl.constexpr, K: tl.constexpr, BATCH_INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_LINE: tl.constexpr, X_K: tl.constexpr,
    PADDED_LINES: tl.constexpr, ALL_STEPS: tl.constexpr, TILE: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """exponents[batch, step, line] of the scales; left_out[batch, tile of lines, step] becomes 1
    where a line would lose an entry.

    s stays in [-60, 60]: a sum times one line's factor and then the other's meets no limit of fp32
    on the way.
    """
    blocks_l: tl.constexpr = PADDED_LINES // BLOCK_L
    blocks_s: tl.constexpr = (ALL_STEPS + BLOCK_S - 1) // BLOCK_S
    pid = tl.program_id(0)
    batch = pid // (blocks_l * blocks_s)
    lines = pid % blocks_l * BLOCK_L + tl.arange(0, BLOCK_L)
    steps = pid // blocks_l % blocks_s * BLOCK_S + tl.arange(0, BLOCK_S)
    places = steps[None, :, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, None, :]
    x += (
        (batch // BATCH_INNER).to(tl.int64) * X_OUTER
        + (batch % BATCH_INNER).to(tl.int64) * X_INNER
    )
    x += lines.to(tl.int64)[:, None, None] * X_LINE + places.to(tl.int64) * X_K
    sizes = tl.abs(tl.load(x, mask=(lines < LINES)[:, None, None] & (places < K), other=0.0))
    largest = tl.max(sizes, axis=2)
    exponent = tl.maximum(tl.minimum(141 - (kmem_magnitude_bits(largest) >> 23), 60), -60)
    scale = kmem_power_of_two(exponent)
    least = tl.min(tl.where(sizes == 0.0, float("inf"), sizes), axis=2)
    lost = (least * scale < 0.00006103515625) | (largest * scale >= 32768.0)
    known = (steps < ALL_STEPS)[None, :]
    tl.store(
        exponents
        + (batch.to(tl.int64) * ALL_STEPS + steps[None, :]) * PADDED_LINES
        + lines[:, None],
        exponent,
        mask=known,
    )
    tile = batch.to(tl.int64) * (PADDED_LINES // TILE) + (lines // TILE)[:, None]
    tl.store(
        left_out + tile * ALL_STEPS + steps[None, :],
        tl.full((BLOCK_L, BLOCK_S), 1, tl.int8),
        mask=known & lost,
    )
''',
)

SPLIT_IN_LOOP = (
    "kmem_split_in_loop",
    '''
@triton.jit
def kmem_split_in_loop(
    a, b, a_exponents, b_exponents, a_left_out, b_left_out, sums,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    K: tl.constexpr,
    A_OUTER: tl.constexpr, A_INNER: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr,
    STEPS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TERMS: tl.constexpr, COMPENSATED: tl.constexpr,
):
    """sums[split, batch, m, n] over those of at most STEPS steps of K that the parts hold.

    The tiles of one split are neighbours: they read the same K.
    """
    tiles_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    all_steps: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    even: tl.constexpr = (M % BLOCK_M == 0) and (N % BLOCK_N == 0) and (K % BLOCK_K == 0)
    pid = tl.program_id(0)
    tile_n = pid % tiles_n
    tile_m = (pid // tiles_n) % tiles_m
    split = (pid // (tiles_m * tiles_n)) % SPLITS
    batch = pid // (tiles_m * tiles_n * SPLITS)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    first_k = split * (STEPS * BLOCK_K)
    steps = tl.arange(0, BLOCK_K)
    a += (
        (batch // BATCH_INNER).to(tl.int64) * A_OUTER
        + (batch % BATCH_INNER).to(tl.int64) * A_INNER
    )
    b += (
        (batch // BATCH_INNER).to(tl.int64) * B_OUTER
        + (batch % BATCH_INNER).to(tl.int64) * B_INNER
    )
    a += tile_m.to(tl.int64) * (BLOCK_M * A_M) + first_k.to(tl.int64) * A_K
    b += tile_n.to(tl.int64) * (BLOCK_N * B_N) + first_k.to(tl.int64) * B_K
    at_a = tl.arange(0, BLOCK_M)[:, None] * A_M + steps[None, :] * A_K
    at_b = steps[:, None] * B_K + tl.arange(0, BLOCK_N)[None, :] * B_N
    first_step = batch.to(tl.int64) * all_steps + split * STEPS
    a_exponents += first_step * (tiles_m * BLOCK_M) + rows
    b_exponents += first_step * (tiles_n * BLOCK_N) + columns
    a_left_out += (batch.to(tl.int64) * tiles_m + tile_m) * all_steps + split * STEPS
    b_left_out += (batch.to(tl.int64) * tiles_n + tile_n) * all_steps + split * STEPS
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.minimum(STEPS, all_steps - split * STEPS)):
        if even:
            values_a = tl.load(a + at_a)
            values_b = tl.load(b + at_b)
        else:
            inside = first_k + step * BLOCK_K + steps < K
            values_a = tl.load(a + at_a, mask=(rows < M)[:, None] & inside[None, :], other=0.0)
            values_b = tl.load(b + at_b, mask=inside[:, None] & (columns < N)[None, :], other=0.0)
        exponent_a = tl.load(a_exponents + step * (tiles_m * BLOCK_M))
        exponent_b = tl.load(b_exponents + step * (tiles_n * BLOCK_N))
        left_out = tl.load(a_left_out + step) | tl.load(b_left_out + step)
        scaled_a = values_a * kmem_power_of_two(exponent_a)[:, None]
        scaled_b = values_b * kmem_power_of_two(exponent_b)[None, :]
        high_a = scaled_a.to(tl.float16)
        high_b = scaled_b.to(tl.float16)
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if TERMS == 3:
            part = tl.dot(
                high_a, ((scaled_b - high_b.to(tl.float32)) * 2048.0).to(tl.float16), part
            )
            part = tl.dot(
                ((scaled_a - high_a.to(tl.float32)) * 2048.0).to(tl.float16), high_b, part
            ) * 0.00048828125
        part = tl.dot(high_a, high_b, part)
        part = (
            part
            * kmem_power_of_two(-exponent_a)[:, None]
            * kmem_power_of_two(-exponent_b)[None, :]
        )
        if left_out == 0:
            if COMPENSATED:
                acc, lost = kmem_add_compensated(acc, lost, part)
            else:
                acc += part
        a += BLOCK_K * A_K
        b += BLOCK_K * B_K
    place = (
        sums
        + (split.to(tl.int64) * BATCH + batch) * (M * N)
        + rows.to(tl.int64)[:, None] * N
        + columns[None, :]
    )
    tl.store(place, acc, mask=(rows < M)[:, None] & (columns < N)[None, :])
''',
)

MEND_STEPS = (
    "kmem_mend_steps",
    '''
@triton.jit
def kmem_mend_steps(
    a, b, a_left_out, b_left_out, sums,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    K: tl.constexpr,
    A_OUTER: tl.constexpr, A_INNER: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr,
    STEPS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PADDED_STEPS: tl.constexpr, PIECE_M: tl.constexpr, PIECE_N: tl.constexpr, PIECE_K: tl.constexpr,
):
    """Add to a piece of a tile, in exact fp32, the steps that were left out of it."""
    tiles_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    all_steps: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    pieces_n: tl.constexpr = BLOCK_N // PIECE_N
    pieces: tl.constexpr = BLOCK_M // PIECE_M * pieces_n
    piece = tl.program_id(0) % pieces
    pid = tl.program_id(0) // pieces
    tile_n = pid % tiles_n
    tile_m = (pid // tiles_n) % tiles_m
    split = (pid // (tiles_m * tiles_n)) % SPLITS
    batch = pid // (tiles_m * tiles_n * SPLITS)
    first_k = split * (STEPS * BLOCK_K)
    last = tl.minimum(STEPS, all_steps - split * STEPS)
    a_left_out += (batch.to(tl.int64) * tiles_m + tile_m) * all_steps + split * STEPS
    b_left_out += (batch.to(tl.int64) * tiles_n + tile_n) * all_steps + split * STEPS
    every = tl.arange(0, PADDED_STEPS)
    left_out = (
        tl.load(a_left_out + every, mask=every < last, other=0)
        | tl.load(b_left_out + every, mask=every < last, other=0)
    )
    if tl.max(left_out.to(tl.int32), 0) > 0:
        rows = tile_m * BLOCK_M + piece // pieces_n * PIECE_M + tl.arange(0, PIECE_M)
        columns = tile_n * BLOCK_N + piece % pieces_n * PIECE_N + tl.arange(0, PIECE_N)
        a += (
            (batch // BATCH_INNER).to(tl.int64) * A_OUTER
            + (batch % BATCH_INNER).to(tl.int64) * A_INNER
        )
        b += (
            (batch // BATCH_INNER).to(tl.int64) * B_OUTER
            + (batch % BATCH_INNER).to(tl.int64) * B_INNER
        )
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        place = (
            sums
            + (split.to(tl.int64) * BATCH + batch) * (M * N)
            + rows.to(tl.int64)[:, None] * N
            + columns[None, :]
        )
        acc = tl.zeros((PIECE_M, PIECE_N), tl.float32)
        for step in range(last):
            if tl.load(a_left_out + step) | tl.load(b_left_out + step):
                part = tl.zeros((PIECE_M, PIECE_N), tl.float32)
                for start in range(0, BLOCK_K, PIECE_K):
                    steps = first_k + step * BLOCK_K + start + tl.arange(0, PIECE_K)
                    at_a = rows.to(tl.int64)[:, None] * A_M + steps.to(tl.int64)[None, :] * A_K
                    at_b = steps.to(tl.int64)[:, None] * B_K + columns.to(tl.int64)[None, :] * B_N
                    values_a = tl.load(
                        a + at_a, mask=(rows < M)[:, None] & (steps < K)[None, :], other=0.0
                    )
                    values_b = tl.load(
                        b + at_b, mask=(steps < K)[:, None] & (columns < N)[None, :], other=0.0
                    )
                    part = tl.dot(values_a, values_b, part, input_precision="ieee")
                acc += part
        tl.store(place, tl.load(place, mask=inside, other=0.0) + acc, mask=inside)
''',
)

#: They need kmem.codegen.text.parts.SCALES and accumulate.ADD_COMPENSATED before them.
IN_LOOP_KERNELS = (STEP_SCALES, SPLIT_IN_LOOP, MEND_STEPS)
