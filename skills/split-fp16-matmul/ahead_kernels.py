"""Triton text for products whose operands are written as half-precision parts first.

An operand becomes a sum of scaled parts, x = 2**-s * (high + low / 2048).

`high` is x * 2**s rounded to fp16, `low` the rest times 2048, so both keep 11 bits and three
tensor-core products (high*high, high*low, low*high) give about 22. The scale s is an exact power of
two per line (row of A, column of B), such that the largest magnitude lands in [2**14, 2**15):
nothing overflows.

Small entries of a line lose bits: below 2**-14 (scaled) `high` is subnormal and an entry's error is
absolute, 2**-36. A line without such entries is *even*. Tiles of uneven or non-finite lines are
mended in exact fp32 unless the loss is provably harmless: if the entries of at least 2**8 in a row
and in a column number together more than K * (1 + 2**-14), they meet at K * 2**-14 places or more,
so the sum of magnitudes is at least K * 2, while the lost bits amount to at most K * 2**-36 * 2**15
from either side: a share of 2**-21 or less. So it is if those of at least 2**8 on one side and of
at least 1 on the other number more than K * (1 + 2**-6): gradients of few positions that matter and
many that hardly do. Kernels, in order of launch: for each operand `kmem_split_lines` or, where no
program holds a line, `kmem_largest` and `kmem_split_operand`; `kmem_parts_matmul`;
`kmem_mend_tiles`.

Source: Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores", IJHPCA 36(4), 2022
(the split and the factor 2048); measured accumulation behaviour: probes on an H200, torch 2.11,
Triton 3.6, 2026-11-20 (promotion to a second fp32 accumulator every 128 elements of K).
"""

LARGEST = (
    "kmem_largest",
    '''
@triton.jit
def kmem_largest(
    x, largest,
    LINES: tl.constexpr, K: tl.constexpr, INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_LINE: tl.constexpr, X_K: tl.constexpr,
    PADDED_LINES: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Bits of the largest magnitude of every line in one chunk of K: largest[batch, chunk,
    line].
    """
    blocks: tl.constexpr = PADDED_LINES // BLOCK_L
    pid = tl.program_id(0)
    block = pid % blocks
    chunk = (pid // blocks) % CHUNKS
    batch = pid // (blocks * CHUNKS)
    lines = block * BLOCK_L + tl.arange(0, BLOCK_L)
    steps = tl.arange(0, BLOCK_K)
    x += (batch // INNER).to(tl.int64) * X_OUTER + (batch % INNER).to(tl.int64) * X_INNER
    x += block.to(tl.int64) * (BLOCK_L * X_LINE) + chunk.to(tl.int64) * (CHUNK * X_K)
    inside = (lines < LINES)[:, None]
    most = tl.zeros((BLOCK_L, BLOCK_K), tl.int32)
    for start in range(0, CHUNK, BLOCK_K):
        values = tl.load(
            x + tl.arange(0, BLOCK_L)[:, None] * X_LINE + steps[None, :] * X_K,
            mask=inside & (chunk * CHUNK + start + steps < K)[None, :],
            other=0.0,
        )
        most = tl.maximum(most, kmem_magnitude_bits(values))
        x += BLOCK_K * X_K
    tl.store(largest + (batch * CHUNKS + chunk) * PADDED_LINES + lines, tl.max(most, axis=1))
''',
)

LINE_STATES = (
    "kmem_line_states",
    '''
@triton.jit
def kmem_sizes_of(values, scaled):
    """Of each entry, packed: how large it is when scaled, 1 for 2**8 or more and 2**15 for 1 or
    more, and 2**30 if its line is uneven for it.
    """
    size = tl.abs(scaled)
    large = tl.where(size >= 256.0, 0x8001, tl.where(size >= 1.0, 0x8000, 0))
    is_uneven = (size < 0.00006103515625) & (kmem_magnitude_bits(values) > 0)
    return tl.where(is_uneven, 0x40000000, large)


@triton.jit
def kmem_store_states(states, lines, seen, most, length, PADDED_LINES: tl.constexpr):
    """states[2, line]: how many entries are at least 2**8 when scaled, plus 2**30 if the line is
    uneven, and how many are at least 1 (of a line of zeros: all).

    seen[line, lane]: sizes added up, of less than 2**15 entries in each lane: no memory holds
    lines so long that a program has more.
    """
    is_finite = most < 0x7F800000
    uneven = (tl.max(seen, axis=1) >= 0x40000000) | (is_finite == 0)
    large = tl.where(most > 0, tl.sum(seen & 0x7FFF, axis=1), length)
    some = tl.where(most > 0, tl.sum((seen >> 15) & 0x7FFF, axis=1), length)
    tl.store(states + lines, tl.where(is_finite, large, 0) + tl.where(uneven, 0x40000000, 0))
    tl.store(states + PADDED_LINES + lines, tl.where(is_finite, some, 0))
''',
)

SPLIT_LINES = (
    "kmem_split_lines",
    '''
@triton.jit
def kmem_split_lines(
    x, high, low, exponents, states,
    LINES: tl.constexpr, K: tl.constexpr, INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_LINE: tl.constexpr, X_K: tl.constexpr,
    PADDED_LINES: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    PADDED_K: tl.constexpr, P_LINE: tl.constexpr, P_K: tl.constexpr, TERMS: tl.constexpr,
):
    """Write the scaled parts of whole lines, zeros in the padding, the exponents of their scales
    and their states[batch, 2, line].
    """
    blocks: tl.constexpr = PADDED_LINES // BLOCK_L
    pid = tl.program_id(0)
    batch = pid // blocks
    lines = pid % blocks * BLOCK_L + tl.arange(0, BLOCK_L)
    steps = tl.arange(0, BLOCK_K)
    x += (batch // INNER).to(tl.int64) * X_OUTER + (batch % INNER).to(tl.int64) * X_INNER
    values = tl.load(
        x + lines.to(tl.int64)[:, None] * X_LINE + steps[None, :] * X_K,
        mask=(lines < LINES)[:, None] & (steps < K)[None, :],
        other=0.0,
    )
    most = tl.max(kmem_magnitude_bits(values), axis=1)
    exponent = kmem_exponent(most)
    tl.store(exponents + batch * PADDED_LINES + lines, exponent)
    scaled = values * kmem_power_of_two(exponent)[:, None]
    place = batch.to(tl.int64) * (PADDED_LINES * PADDED_K)
    place += lines.to(tl.int64)[:, None] * P_LINE + steps[None, :] * P_K
    kmem_store_halves(high, low, place, scaled, (steps < PADDED_K)[None, :], TERMS)
    kmem_store_states(
        states + batch * (2 * PADDED_LINES), lines, kmem_sizes_of(values, scaled), most, K,
        PADDED_LINES,
    )
''',
)

SPLIT_OPERAND = (
    "kmem_split_operand",
    '''
@triton.jit
def kmem_split_operand(
    x, largest, high, low, exponents, states,
    LINES: tl.constexpr, K: tl.constexpr, INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_LINE: tl.constexpr, X_K: tl.constexpr,
    PADDED_LINES: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr,
    PADDED_K: tl.constexpr, P_LINE: tl.constexpr, P_K: tl.constexpr, TERMS: tl.constexpr,
):
    """Write the scaled parts of some lines in one chunk of K, zeros in the padding, their
    states[batch, chunk, 2, line], and (by the first chunk) the exponents of the scales.
    """
    blocks: tl.constexpr = PADDED_LINES // BLOCK_L
    pid = tl.program_id(0)
    block = pid % blocks
    chunk = (pid // blocks) % CHUNKS
    batch = pid // (blocks * CHUNKS)
    lines = block * BLOCK_L + tl.arange(0, BLOCK_L)
    most = tl.zeros((BLOCK_L,), tl.int32)
    for other in range(CHUNKS):
        most = tl.maximum(most, tl.load(largest + (batch * CHUNKS + other) * PADDED_LINES + lines))
    exponent = kmem_exponent(most)
    if chunk == 0:
        tl.store(exponents + batch * PADDED_LINES + lines, exponent)
    scale = kmem_power_of_two(exponent)[:, None]
    x += (batch // INNER).to(tl.int64) * X_OUTER + (batch % INNER).to(tl.int64) * X_INNER
    base = batch.to(tl.int64) * (PADDED_LINES * PADDED_K)
    seen = tl.zeros((BLOCK_L, BLOCK_K), tl.int32)
    for start in range(0, CHUNK, BLOCK_K):
        steps = chunk * CHUNK + start + tl.arange(0, BLOCK_K)
        values = tl.load(
            x + lines.to(tl.int64)[:, None] * X_LINE + steps.to(tl.int64)[None, :] * X_K,
            mask=(lines < LINES)[:, None] & (steps < K)[None, :],
            other=0.0,
        )
        scaled = values * scale
        sizes = kmem_sizes_of(values, scaled)
        seen = (seen + (sizes & 0x3FFFFFFF)) | (sizes & 0x40000000)
        place = base + lines.to(tl.int64)[:, None] * P_LINE + steps.to(tl.int64)[None, :] * P_K
        kmem_store_halves(high, low, place, scaled, (steps < PADDED_K)[None, :], TERMS)
    kmem_store_states(
        states + (batch * CHUNKS + chunk) * (2 * PADDED_LINES), lines, seen, most,
        tl.maximum(tl.minimum(K - chunk * CHUNK, CHUNK), 0), PADDED_LINES,
    )
''',
)

PARTS_MATMUL = (
    "kmem_parts_matmul",
    '''
@triton.jit
def kmem_parts_matmul(
    a_high, a_low, a_exponents, b_high, b_low, b_exponents, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr,
    PADDED_M: tl.constexpr, PADDED_N: tl.constexpr, PADDED_K: tl.constexpr,
    PARTS_A_M: tl.constexpr, PARTS_A_K: tl.constexpr,
    PARTS_B_K: tl.constexpr, PARTS_B_N: tl.constexpr,
    MATRICES_A_OUTER: tl.constexpr, MATRICES_A_INNER: tl.constexpr,
    MATRICES_B_OUTER: tl.constexpr, MATRICES_B_INNER: tl.constexpr,
    TERMS: tl.constexpr, PROMOTE: tl.constexpr, COMPENSATED: tl.constexpr,
    SPLITS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Product of padded fp16 parts.

    MATRICES_A_OUTER and its kin step through whole operands of the batch (0: shared). PROMOTE:
    steps of K in one short sum, 0 for one long sum. COMPENSATED: the short sums' total keeps what
    it loses to rounding.
    """
    tiles_m: tl.constexpr = PADDED_M // BLOCK_M
    tiles_n: tl.constexpr = PADDED_N // BLOCK_N
    k_steps: tl.constexpr = PADDED_K // BLOCK_K // SPLITS
    pid = tl.program_id(0)
    tile_m, tile_n = kmem_tile_of(pid % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    split = (pid // (tiles_m * tiles_n)) % SPLITS
    batch = pid // (tiles_m * tiles_n * SPLITS)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    even: tl.constexpr = (M % BLOCK_M == 0) and (N % BLOCK_N == 0)
    last = k_steps
    if TRIANGLE != "none":
        last = tl.where(
            kmem_tile_is_zero(tile_m, tile_n, BLOCK_M, BLOCK_N, TRIANGLE, DIAGONAL), 0, k_steps
        )
    matrix_a = (batch // BATCH_INNER) * MATRICES_A_OUTER + (batch % BATCH_INNER) * MATRICES_A_INNER
    matrix_b = (batch // BATCH_INNER) * MATRICES_B_OUTER + (batch % BATCH_INNER) * MATRICES_B_INNER
    first_k = split * k_steps * BLOCK_K
    base_a = (
        matrix_a.to(tl.int64) * (PADDED_M * PADDED_K)
        + tile_m.to(tl.int64) * (BLOCK_M * PARTS_A_M)
        + first_k.to(tl.int64) * PARTS_A_K
    )
    base_b = (
        matrix_b.to(tl.int64) * (PADDED_N * PADDED_K)
        + tile_n.to(tl.int64) * (BLOCK_N * PARTS_B_N)
        + first_k.to(tl.int64) * PARTS_B_K
    )
    a_high += base_a
    a_low += base_a
    b_high += base_b
    b_low += base_b
    steps = tl.arange(0, BLOCK_K)
    at_a = tl.arange(0, BLOCK_M)[:, None] * PARTS_A_M + steps[None, :] * PARTS_A_K
    at_b = steps[:, None] * PARTS_B_K + tl.arange(0, BLOCK_N)[None, :] * PARTS_B_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    cross = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(last):
        high_a = tl.load(a_high + at_a)
        high_b = tl.load(b_high + at_b)
        part = tl.dot(high_a, high_b, part)
        if TERMS == 3:
            cross = tl.dot(high_a, tl.load(b_low + at_b), cross)
            cross = tl.dot(tl.load(a_low + at_a), high_b, cross)
        if PROMOTE > 0:
            # Inside a tensor core a long sum loses its low bits, so `part` stays short. One flat
            # loop: nested, it loses the pipeline.
            if (step + 1) % PROMOTE == 0:
                if COMPENSATED:
                    acc, lost = kmem_add_compensated(acc, lost, part)
                else:
                    acc += part
                part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        a_high += BLOCK_K * PARTS_A_K
        a_low += BLOCK_K * PARTS_A_K
        b_high += BLOCK_K * PARTS_B_K
        b_low += BLOCK_K * PARTS_B_K
    exponent_a = tl.load(a_exponents + matrix_a * PADDED_M + rows)
    exponent_b = tl.load(b_exponents + matrix_b * PADDED_N + columns)
    if TERMS == 3:
        part = acc + (part + cross * 0.00048828125 - lost)
    acc = kmem_unscale(part, exponent_a, exponent_b)
    kmem_store_tile(
        out, acc, batch, split, rows, columns,
        extra, AFTER, STEPS, PLACE, M, N,
        BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, even,
    )
''',
)

MEND_TILES = (
    "kmem_mend_tiles",
    '''
@triton.jit
def kmem_fewest_and_uneven(states, lines, PADDED: tl.constexpr, CHUNKS: tl.constexpr):
    """The fewest entries of any of these lines that are at least 2**8, and at least 1 (2**30 beyond
    the padding), and whether one of the lines is uneven.
    """
    known = lines < PADDED
    large = tl.zeros(lines.shape, tl.int32)
    some = tl.zeros(lines.shape, tl.int32)
    uneven = tl.zeros(lines.shape, tl.int32)
    for chunk in range(CHUNKS):
        state = tl.load(states + chunk * (2 * PADDED) + lines, mask=known, other=0)
        some += tl.load(states + (2 * chunk + 1) * PADDED + lines, mask=known, other=0)
        large += state & 0x3FFFFFFF
        uneven |= state >> 30
    fewest = tl.min(tl.where(known, large, 0x3FFFFFFF))
    return fewest, tl.min(tl.where(known, some, 0x3FFFFFFF)), tl.max(uneven) > 0


@triton.jit
def kmem_meet_enough(large_a, some_a, large_b, some_b, K: tl.constexpr):
    """Whether so many entries meet that what is lost of small ones is nothing beside them."""
    mixed = tl.maximum(large_a + some_b, some_a + large_b)
    return (large_a + large_b > K + K // 16384) | (mixed > K + K // 64)


@triton.jit
def kmem_mend_tiles(
    a, b, a_states, b_states, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    K: tl.constexpr,
    A_OUTER: tl.constexpr, A_INNER: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr,
    PADDED_M: tl.constexpr, PADDED_N: tl.constexpr, PADDED_K: tl.constexpr,
    A_CHUNKS: tl.constexpr, B_CHUNKS: tl.constexpr,
    MATRICES_A_OUTER: tl.constexpr, MATRICES_A_INNER: tl.constexpr,
    MATRICES_B_OUTER: tl.constexpr, MATRICES_B_INNER: tl.constexpr,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAIN: tl.constexpr,
):
    """Compute anew, from the operands in exact fp32, the tiles that fp16 parts cannot hold; a
    program looks after WIDTH tiles of a row. Chains of CHAIN products go into a compensated total:
    one over all of K would err by several 2**-24.
    """
    tiles_m: tl.constexpr = PADDED_M // BLOCK_M
    tiles_n: tl.constexpr = PADDED_N // BLOCK_N
    groups: tl.constexpr = (tiles_n + WIDTH - 1) // WIDTH
    span: tl.constexpr = PADDED_K // SPLITS
    pid = tl.program_id(0)
    first_n = (pid % groups) * WIDTH
    tile_m = (pid // groups) % tiles_m
    split = (pid // (groups * tiles_m)) % SPLITS
    batch = pid // (groups * tiles_m * SPLITS)
    outer = batch // BATCH_INNER
    inner = batch % BATCH_INNER
    a_states += (
        (outer * MATRICES_A_OUTER + inner * MATRICES_A_INNER).to(tl.int64)
        * (A_CHUNKS * 2 * PADDED_M)
    )
    b_states += (
        (outer * MATRICES_B_OUTER + inner * MATRICES_B_INNER).to(tl.int64)
        * (B_CHUNKS * 2 * PADDED_N)
    )
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    large_a, some_a, row_uneven = kmem_fewest_and_uneven(a_states, rows, PADDED_M, A_CHUNKS)
    large_b, some_b, uneven = kmem_fewest_and_uneven(
        b_states, first_n * BLOCK_N + tl.arange(0, WIDTH * BLOCK_N), PADDED_N, B_CHUNKS
    )
    if (row_uneven | uneven) & (kmem_meet_enough(large_a, some_a, large_b, some_b, K) == 0):
        a += outer.to(tl.int64) * A_OUTER + inner.to(tl.int64) * A_INNER
        b += outer.to(tl.int64) * B_OUTER + inner.to(tl.int64) * B_INNER
        for tile_n in range(first_n, tl.minimum(first_n + WIDTH, tiles_n)):
            columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
            large_b, some_b, uneven = kmem_fewest_and_uneven(
                b_states, columns, PADDED_N, B_CHUNKS
            )
            if (row_uneven | uneven) & (kmem_meet_enough(large_a, some_a, large_b, some_b, K) == 0):
                acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for start in range(0, span, BLOCK_K):
                    steps = split * span + start + tl.arange(0, BLOCK_K)
                    at_a = rows.to(tl.int64)[:, None] * A_M + steps.to(tl.int64)[None, :] * A_K
                    at_b = steps.to(tl.int64)[:, None] * B_K + columns.to(tl.int64)[None, :] * B_N
                    values_a = tl.load(
                        a + at_a, mask=(rows < M)[:, None] & (steps < K)[None, :], other=0.0
                    )
                    values_b = tl.load(
                        b + at_b, mask=(steps < K)[:, None] & (columns < N)[None, :], other=0.0
                    )
                    part = tl.dot(values_a, values_b, part, input_precision="ieee")
                    if (start + BLOCK_K) % CHAIN == 0:
                        acc, lost = kmem_add_compensated(acc, lost, part)
                        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                acc += part - lost
                kmem_store_tile(
                    out, acc, batch, split, rows, columns,
                    extra, AFTER, STEPS, PLACE, M, N,
                    BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N,
                    False,
                )
''',
)
