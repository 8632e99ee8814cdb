"""Triton text for attention: softmax(scale * Q K^T) V without the score matrix (fused), or with it
once, in half precision (two stages).

fp32 goes through the tensor cores as sums of two fp16 parts of each row, scaled by a power of two
(x = 2**-s * (high + low)), three products each: `kmem_split_rows` writes the parts of Q, K and V. A
product of parts is one short chain, small terms first, added to an fp32 sum in registers every
step: inside a tensor core a long sum loses its low bits. The scales of V's rows are divided out of
the probabilities, relative to the largest of a tile. bf16 and fp16 are multiplied as they are.

Fused (`kmem_attention`): a block of queries keeps its output in registers while keys and values
stream by (online softmax), so heads must be narrow. Two stages, for wide heads:
`kmem_attention_scores` writes exp2(score - largest of the tile's row) in parts, with that largest
score and the sum; `kmem_attention_weights` turns these into one factor per row and tile, and
`kmem_attention_output` applies it to every tile's product, which has to leave the tensor core there
anyway.

A score is rounded before the largest is found and subtracted. Contracted to one fma, SCALE *
product - largest would take the rounded largest from its own unrounded product: at 1e10 up to 2**9
is left where 0 is meant, and exp2 of that is infinite, or 0.

Source: Dao, "FlashAttention-2", arXiv 2307.08691 (online softmax); Ootomo, Yokota, IJHPCA 36(4),
2022, and probes on an H200, 2026-11-20 (split products and promotion, as in split_matmul.py). A row
whose scores are all -inf gives zeros, as torch's does.
"""

SPLIT_ROWS = (
    "kmem_split_rows",
    '''
@triton.jit
def kmem_split_rows(
    x, high, low, exponents, ROWS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_ROW: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(outer, INNER, ROWS, WIDTH) to scaled parts (outer * INNER, ROWS, PADDED), zero above WIDTH, and the exponent of each row's scale.

    A value that is not finite goes into the low part alone: it then meets one product of three, and cannot cancel to NaN.
    """
    blocks: tl.constexpr = (ROWS + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    batch = pid // blocks
    rows = pid % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    place = tl.arange(0, BLOCK_W)
    x += (batch // INNER).to(tl.int64) * X_OUTER + (batch % INNER).to(tl.int64) * X_INNER
    inside = (rows < ROWS)[:, None] & (place < WIDTH)[None, :]
    values = tl.load(x + rows.to(tl.int64)[:, None] * X_ROW + place[None, :], mask=inside, other=0.0)
    bits = kmem_magnitude_bits(values)
    exponent = kmem_exponent(tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1))
    line = batch.to(tl.int64) * ROWS + rows
    tl.store(exponents + line, exponent, mask=rows < ROWS)
    scaled = values * kmem_power_of_two(exponent)[:, None]
    top = scaled.to(tl.float16)
    rest = scaled - top.to(tl.float32)
    finite = rest == rest
    target = line[:, None] * PADDED + place[None, :]
    written = (rows < ROWS)[:, None] & (place < PADDED)[None, :]
    tl.store(high + target, tl.where(finite, top, 0.0).to(tl.float16), mask=written)
    tl.store(low + target, tl.where(finite, rest, values).to(tl.float16), mask=written)
''',
)

TILE_HELPERS = (
    "kmem_scale_scores",
    '''
@triton.jit
def kmem_scale_scores(scores, rows, columns, SCALE: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr):
    """SCALE * scores; -inf beyond the last key and, if CAUSAL, above the diagonal."""
    scores = tl.fma(scores, SCALE, 0.0)  # rounded here: no compiler contracts an fma with the subtraction of the largest
    if not EVEN:
        scores = tl.where((columns < KEYS)[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    return scores


@triton.jit
def kmem_value_factors(exponents, columns, KEYS: tl.constexpr):
    """For a tile of rows of V: the least exponent of their scales, and 2**(least - exponent + 14) for each, so none exceeds 2**14."""
    exponent = tl.load(exponents + columns, mask=columns < KEYS, other=126)
    least = tl.min(exponent, axis=0)
    return least, kmem_power_of_two(tl.maximum(least - exponent + 14, -126))


@triton.jit
def kmem_split_tile(values):
    """fp16 parts of finite values of at most 2**14: what they are, rounded, and the rest."""
    top = values.to(tl.float16)
    return top, (values - top.to(tl.float32)).to(tl.float16)
''',
)

FUSED = (
    "kmem_attention",
    '''
@triton.jit
def kmem_attention(
    q, k, v, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents, out,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, SCALE: tl.constexpr,
    Q_OUTER: tl.constexpr, Q_INNER: tl.constexpr, Q_ROW: tl.constexpr, K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr, OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr,
    OUT_ROW: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """One block of queries of one head. SCALE holds log2(e); with SPLIT, q, k and v are the high parts."""
    blocks: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    even: tl.constexpr = KEYS % BLOCK_N == 0
    pid = tl.program_id(0)
    batch = pid // blocks
    block = pid % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    depth = tl.arange(0, BLOCK_D)
    width = tl.arange(0, BLOCK_E)
    row = tl.minimum(rows, QUERIES - 1)
    at_q = outer * Q_OUTER + inner * Q_INNER + row.to(tl.int64)[:, None] * Q_ROW + depth[None, :]
    within = (depth < DEPTH)[None, :]
    queries = tl.load(q + at_q, mask=within, other=0.0)
    base_k = outer * K_OUTER + inner * K_INNER
    base_v = outer * V_OUTER + inner * V_INNER
    if SPLIT:
        low_queries = tl.load(q_low + at_q, mask=within, other=0.0)
        q_exponent = tl.load(q_exponents + batch * QUERIES + row)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    last = KEYS
    if CAUSAL:
        last = tl.minimum(KEYS, (block + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        at_k = base_k + columns.to(tl.int64)[:, None] * K_ROW + depth[None, :]
        at_v = base_v + columns.to(tl.int64)[:, None] * V_ROW + width[None, :]
        if even and BLOCK_D == DEPTH:
            keys = tl.load(k + at_k)
        else:
            keys = tl.load(k + at_k, mask=(columns < KEYS)[:, None] & within, other=0.0)
        if even and BLOCK_E == WIDTH:
            values = tl.load(v + at_v)
        else:
            values = tl.load(v + at_v, mask=(columns < KEYS)[:, None] & (width < WIDTH)[None, :], other=0.0)
        if SPLIT:
            if even and BLOCK_D == DEPTH:
                low_keys = tl.load(k_low + at_k)
            else:
                low_keys = tl.load(k_low + at_k, mask=(columns < KEYS)[:, None] & within, other=0.0)
            if even and BLOCK_E == WIDTH:
                low_values = tl.load(v_low + at_v)
            else:
                low_values = tl.load(v_low + at_v, mask=(columns < KEYS)[:, None] & (width < WIDTH)[None, :], other=0.0)
            scores = tl.dot(low_queries, tl.trans(keys))
            scores = tl.dot(queries, tl.trans(low_keys), scores)
            scores = tl.dot(queries, tl.trans(keys), scores)
            k_exponent = tl.load(k_exponents + batch * KEYS + columns, mask=columns < KEYS, other=0)
            scores = kmem_unscale(scores, q_exponent, k_exponent)
        elif WIDEN:
            scores = tl.dot(queries.to(tl.float32), tl.trans(keys.to(tl.float32)), input_precision="ieee")
        else:
            scores = tl.dot(queries, tl.trans(keys))
        scores = kmem_scale_scores(scores, rows, columns, SCALE, KEYS, CAUSAL, even)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(scores - shift[:, None])
        fix = tl.exp2(top - shift)
        total = total * fix + tl.sum(p, axis=1)
        if SPLIT:
            least, factor = kmem_value_factors(v_exponents + batch * KEYS, columns, KEYS)
            p_high, p_low = kmem_split_tile(p * factor[None, :])
            part = tl.dot(p_low, values)
            part = tl.dot(p_high, low_values, part)
            part = tl.dot(p_high, values, part)
            acc = acc * fix[:, None] + part * kmem_power_of_two((-least) >> 1) * kmem_power_of_two(-least - ((-least) >> 1) - 14)
        elif WIDEN:
            acc = acc * fix[:, None] + tl.dot(p.to(values.dtype).to(tl.float32), values.to(tl.float32), input_precision="ieee")
        else:
            acc = tl.dot(p.to(values.dtype), values, acc * fix[:, None])
        top = higher
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    at_out = outer * OUT_OUTER + inner * OUT_INNER + rows.to(tl.int64)[:, None] * OUT_ROW + width[None, :]
    tl.store(out + at_out, acc.to(out.dtype.element_ty), mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :])
''',
)

SCORES = (
    "kmem_attention_scores",
    '''
@triton.jit
def kmem_attention_scores(
    q, q_low, k, k_low, q_exponents, k_exponents, v_exponents, p, p_low, tops, sums, leasts,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PADDED_KEYS: tl.constexpr, PADDED_D: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of queries by keys: parts of exp2(score - top), times the factors of V's rows, with the tile's top, sum and least exponent."""
    tiles_m: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = PADDED_KEYS // BLOCK_N
    pid = tl.program_id(0)
    tile_n = pid % tiles_n
    tile_m = pid // tiles_n % tiles_m
    batch = pid // (tiles_n * tiles_m)
    if CAUSAL:  # no row of these attends to the tile
        if tile_n * BLOCK_N >= tl.minimum((tile_m + 1) * BLOCK_M, QUERIES):
            return
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(rows, QUERIES - 1)
    column = tl.minimum(columns, KEYS - 1)
    steps = tl.arange(0, BLOCK_K)
    at_q = (batch.to(tl.int64) * QUERIES + row)[:, None] * PADDED_D + steps[None, :]
    at_k = (batch.to(tl.int64) * KEYS + column)[:, None] * PADDED_D + steps[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, PADDED_D, BLOCK_K):
        queries = tl.load(q + at_q + start)
        keys = tl.load(k + at_k + start)
        part = tl.dot(tl.load(q_low + at_q + start), tl.trans(keys))
        part = tl.dot(queries, tl.trans(tl.load(k_low + at_k + start)), part)
        part = tl.dot(queries, tl.trans(keys), part)
        acc += part
    acc = kmem_unscale(acc, tl.load(q_exponents + batch * QUERIES + row), tl.load(k_exponents + batch * KEYS + column))
    acc = kmem_scale_scores(acc, rows, columns, SCALE, KEYS, CAUSAL, KEYS == PADDED_KEYS)
    top = tl.max(acc, axis=1)
    weights = tl.exp2(acc - tl.where(top == float("-inf"), 0.0, top)[:, None])
    least, factor = kmem_value_factors(v_exponents + batch * KEYS, columns, KEYS)
    at_row = (batch * tiles_n + tile_n).to(tl.int64) * QUERIES + rows
    tl.store(tops + at_row, top, mask=rows < QUERIES)
    tl.store(sums + at_row, tl.sum(weights, axis=1), mask=rows < QUERIES)
    tl.store(leasts + batch * tiles_n + tile_n, least)  # every tile of queries writes the same
    high, low = kmem_split_tile(weights * factor[None, :])
    at_p = (batch.to(tl.int64) * QUERIES + rows)[:, None] * PADDED_KEYS + columns[None, :]
    inside = (rows < QUERIES)[:, None]
    tl.store(p + at_p, high, mask=inside)
    tl.store(p_low + at_p, low, mask=inside)
''',
)

WEIGHTS = (
    "kmem_attention_weights",
    '''
@triton.jit
def kmem_attention_weights(
    tops, sums, leasts, weights, scales, QUERIES: tl.constexpr, TILES: tl.constexpr, ATTENDED: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):
    """weights[batch, tile, row] = exp2(top of tile - top of row) / sum of row * 2**(scales[batch] - least exponent of the tile).

    ATTENDED: tiles from the first that some row attends to. Of the others nothing is known, and nothing is asked.
    """
    blocks: tl.constexpr = (QUERIES + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    batch = pid // blocks
    rows = pid % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    base = batch.to(tl.int64) * (TILES * QUERIES) + rows
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    smallest = tl.load(leasts + batch * TILES)
    for tile in range(ATTENDED):
        live = rows < QUERIES
        if CAUSAL:
            live &= tile * BLOCK_N <= rows
        smallest = tl.minimum(smallest, tl.load(leasts + batch * TILES + tile))
        top = tl.maximum(top, tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf")))
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BLOCK_R,), tl.float32)
    for tile in range(ATTENDED):
        live = rows < QUERIES
        if CAUSAL:
            live &= tile * BLOCK_N <= rows
        found = tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf"))
        total += tl.exp2(found - shift) * tl.load(sums + base + tile * QUERIES, mask=live, other=0.0)
    for tile in range(ATTENDED):
        live = rows < QUERIES
        if CAUSAL:
            live &= tile * BLOCK_N <= rows
        found = tl.exp2(tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf")) - shift)
        unit = kmem_power_of_two(tl.maximum(smallest - tl.load(leasts + batch * TILES + tile), -126))
        tl.store(weights + base + tile * QUERIES, unit * found / tl.where(total == 0.0, 1.0, total), mask=rows < QUERIES)
    tl.store(scales + batch, smallest)  # every program of the batch writes the same
''',
)

OUTPUT = (
    "kmem_attention_output",
    '''
@triton.jit
def kmem_attention_output(
    p, p_low, v, v_low, weights, scales, out, QUERIES: tl.constexpr, KEYS: tl.constexpr, PADDED_KEYS: tl.constexpr, WIDTH: tl.constexpr,
    PADDED_E: tl.constexpr, TILE: tl.constexpr, INNER: tl.constexpr, OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr,
    OUT_ROW: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of queries by output columns: for every step of keys its product times the weight of the rows in the step's tile."""
    tiles_m: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    tiles_e: tl.constexpr = PADDED_E // BLOCK_E
    pid = tl.program_id(0)
    tile_m = pid % tiles_m
    tile_e = pid // tiles_m % tiles_e
    batch = pid // (tiles_m * tiles_e)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tile_e * BLOCK_E + tl.arange(0, BLOCK_E)
    row = tl.minimum(rows, QUERIES - 1)
    steps = tl.arange(0, BLOCK_K)
    at_p = (batch.to(tl.int64) * QUERIES + row)[:, None] * PADDED_KEYS + steps[None, :]
    base_v = batch.to(tl.int64) * KEYS
    weights += batch.to(tl.int64) * (PADDED_KEYS // TILE * QUERIES) + row
    last = PADDED_KEYS
    if CAUSAL:
        last = tl.minimum(PADDED_KEYS, (tl.minimum(tile_m * BLOCK_M + BLOCK_M, QUERIES) + TILE - 1) // TILE * TILE)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    for start in range(0, last, BLOCK_K):
        key = start + steps
        at_v = (base_v + key)[:, None] * PADDED_E + width[None, :]
        high = tl.load(p + at_p + start)
        if KEYS == PADDED_KEYS:
            values = tl.load(v + at_v)
            low_values = tl.load(v_low + at_v)
        else:
            values = tl.load(v + at_v, mask=(key < KEYS)[:, None], other=0.0)
            low_values = tl.load(v_low + at_v, mask=(key < KEYS)[:, None], other=0.0)
        part = tl.dot(tl.load(p_low + at_p + start), values)
        part = tl.dot(high, low_values, part)
        part = tl.dot(high, values, part)
        weight = tl.load(weights + start // TILE * QUERIES)
        acc += part * weight[:, None]
    scale = -tl.load(scales + batch)  # in two steps of normal factors
    acc = acc * kmem_power_of_two(scale >> 1) * kmem_power_of_two(scale - (scale >> 1) - 14)
    at_out = (batch // INNER).to(tl.int64) * OUT_OUTER + (batch % INNER).to(tl.int64) * OUT_INNER
    at_out += rows.to(tl.int64)[:, None] * OUT_ROW + width[None, :]
    tl.store(out + at_out, acc.to(out.dtype.element_ty), mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :])
''',
)
