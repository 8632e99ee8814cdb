"""The tiled product as Triton text: one dot a step, with ports before both operands and after."""

TILE_MATMUL = (
    "kmem_tile_matmul",
    '''
@triton.jit
def kmem_tile_matmul(
    a, b, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    extra_a, BEFORE_A: tl.constexpr, STEPS_A: tl.constexpr,
    extra_b, BEFORE_B: tl.constexpr, STEPS_B: tl.constexpr,
    index, ROW_STEPS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr,
    K: tl.constexpr,
    A_OUTER: tl.constexpr, A_INNER: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr,
    IN_TURNS: tl.constexpr,
    EXACT: tl.constexpr, INTERPRETED: tl.constexpr, PROMOTE: tl.constexpr,
    COMPENSATED: tl.constexpr, SPLITS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """One tile of the output, or of one split's sums, per program.

    BEFORE_A, BEFORE_B: what makes the operands of what a and b point to. ROW_STEPS: of an index
    that holds the rows of a, None where these lie one after the other. PROMOTE: steps of K in one
    short sum, 0 for one long sum. COMPENSATED: the short sums' total keeps what it loses to
    rounding. IN_TURNS: b is two operands, whose columns come in turns; they have no batches.
    """
    tiles_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    k_steps: tl.constexpr = (K + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS)
    even: tl.constexpr = (M % BLOCK_M == 0) and (N % BLOCK_N == 0)
    even_k: tl.constexpr = K % (BLOCK_K * SPLITS) == 0
    pid = tl.program_id(0)
    tile_m, tile_n = kmem_tile_of(pid % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    split = (pid // (tiles_m * tiles_n)) % SPLITS
    batch = pid // (tiles_m * tiles_n * SPLITS)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.arange(0, BLOCK_K)
    outer = (batch // BATCH_INNER).to(tl.int64)
    inner = (batch % BATCH_INNER).to(tl.int64)
    first_k = split * k_steps * BLOCK_K
    a += first_k.to(tl.int64) * A_K
    if ROW_STEPS is not None:
        rows_of_a = tl.load(
            index + outer * ROW_STEPS[0] + inner * ROW_STEPS[1] + rows * ROW_STEPS[2],
            mask=rows < M,
            other=0,
        ).to(tl.int64)
    else:
        a += outer * A_OUTER + inner * A_INNER + tile_m.to(tl.int64) * (BLOCK_M * A_M)
        rows_of_a = tl.arange(0, BLOCK_M)
    at_a = rows_of_a[:, None] * A_M + steps[None, :] * A_K
    if IN_TURNS:
        begin = tile_n.to(tl.int64) * (BLOCK_N // 2 * B_N) + first_k.to(tl.int64) * B_K
        at_b = steps[:, None] * B_K + (tl.arange(0, BLOCK_N) // 2)[None, :] * B_N
        is_first = (tl.arange(0, BLOCK_N) % 2 == 0)[None, :]
        places_b = tl.where(is_first, b[0] + begin + at_b, b[1] + begin + at_b)
    else:
        b += (
            outer * B_OUTER
            + inner * B_INNER
            + tile_n.to(tl.int64) * (BLOCK_N * B_N)
            + first_k.to(tl.int64) * B_K
        )
        at_b = steps[:, None] * B_K + tl.arange(0, BLOCK_N)[None, :] * B_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    last = k_steps
    if TRIANGLE != "none":
        last = tl.where(
            kmem_tile_is_zero(tile_m, tile_n, BLOCK_M, BLOCK_N, TRIANGLE, DIAGONAL), 0, k_steps
        )
    for step in range(last):
        if even and even_k:
            values_a = tl.load(a + at_a)
            values_b = tl.load(places_b if IN_TURNS else b + at_b)
        else:
            left = K - first_k - step * BLOCK_K
            values_a = tl.load(
                a + at_a, mask=(rows < M)[:, None] & (steps < left)[None, :], other=0.0
            )
            values_b = tl.load(
                places_b if IN_TURNS else b + at_b,
                mask=(steps < left)[:, None] & (columns < N)[None, :],
                other=0.0,
            )
        if BEFORE_A is not None:
            at_k = first_k + step * BLOCK_K + steps
            values_a = BEFORE_A(
                values_a.to(tl.float32), batch, rows, at_k, extra_a, STEPS_A, M, K, BATCH_INNER
            )
            if not even_k:  # what is made of the zeros beyond K may be no zeros
                values_a = tl.where((at_k < K)[None, :], values_a, 0.0)
        if BEFORE_B is not None:
            at_k = first_k + step * BLOCK_K + steps
            values_b = BEFORE_B(
                values_b.to(tl.float32), batch, at_k, columns, extra_b, STEPS_B, K, N, BATCH_INNER
            )
            if not even_k:
                values_b = tl.where((at_k < K)[:, None], values_b, 0.0)
        if EXACT or INTERPRETED:
            # The interpreter multiplies the bit patterns of bf16 (triton issue 11584); widening is
            # exact.
            part = tl.dot(
                values_a.to(tl.float32), values_b.to(tl.float32), part, input_precision="ieee"
            )
        else:
            part = tl.dot(values_a, values_b, part)
        if PROMOTE > 0:
            # One flat loop: nested, it loses the pipeline.
            if (step + 1) % PROMOTE == 0:
                if COMPENSATED:
                    acc, lost = kmem_add_compensated(acc, lost, part)
                else:
                    acc += part
                part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        a += BLOCK_K * A_K
        if IN_TURNS:
            places_b += BLOCK_K * B_K
        else:
            b += BLOCK_K * B_K
    if PROMOTE > 0:
        part = acc + (part - lost)
    kmem_store_tile(
        out, part, batch, split, rows, columns,
        extra, AFTER, STEPS, PLACE, M, N,
        BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, even,
    )
''',
)
