"""Triton text for attention of a few queries: partial outputs of stretches of keys, then their sum.

`kmem_decode_part` keeps the rows of one head of keys (its queries, of every head that shares it)
while a stretch of keys and values streams by, and writes the output so far with its largest score
and its sum; `kmem_decode_merge` weighs the stretches. What was appended to a cache is read where it
lies: the last stretch goes on with it. A row whose scores are all -inf gives zeros, as torch's
operator does.

Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023.
"""

PART = (
    "kmem_decode_part",
    '''
@triton.jit
def kmem_decode_step(
    queries, top, total, acc, rest, k, v, start, stop,
    K_ROW: tl.constexpr, V_ROW: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    SCALE: tl.constexpr, WIDEN: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """Online softmax over one tile of keys. SCALE holds log2(e)."""
    columns = start + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_D)
    width = tl.arange(0, BLOCK_E)
    seen = columns < stop
    at_k = columns.to(tl.int64)[:, None] * K_ROW + depth[None, :]
    at_v = columns.to(tl.int64)[:, None] * V_ROW + width[None, :]
    keys = tl.load(k + at_k, mask=seen[:, None] & (depth < DEPTH)[None, :], other=0.0)
    values = tl.load(v + at_v, mask=seen[:, None] & (width < WIDTH)[None, :], other=0.0)
    if WIDEN:
        scores = tl.dot(
            queries.to(tl.float32), tl.trans(keys.to(tl.float32)), input_precision="ieee"
        )
    else:
        scores = tl.dot(queries, tl.trans(keys))
    # rounded here: no compiler contracts an fma with the subtraction of the largest
    scores = tl.fma(scores, SCALE, 0.0)
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp2(scores - shift[:, None])
    fix = tl.exp2(top - shift)
    total = total * fix + tl.sum(p, axis=1)
    acc = acc * fix[:, None]
    rest = rest * fix[:, None]
    # halves in two parts, so that p is as fine as fp32
    high = p.to(values.dtype)
    low = (p - high.to(tl.float32)).to(values.dtype)
    if WIDEN:
        wide = values.to(tl.float32)
        acc += tl.dot(high.to(tl.float32), wide, input_precision="ieee")
        if values.dtype != tl.float32:
            rest += tl.dot(low.to(tl.float32), wide, input_precision="ieee")
    else:
        acc = tl.dot(high, values, acc)
        rest = tl.dot(low, values, rest)
    return higher, total, acc, rest


@triton.jit
def kmem_decode_part(
    q, k, v, k_new, v_new, parts, tops, totals,
    ROWS: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr, HELD: tl.constexpr,
    ADDED: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    SCALE: tl.constexpr,
    Q_OUTER: tl.constexpr, Q_INNER: tl.constexpr, Q_ROW: tl.constexpr,
    K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr,
    K_NEW_OUTER: tl.constexpr, K_NEW_INNER: tl.constexpr, K_NEW_ROW: tl.constexpr,
    V_NEW_OUTER: tl.constexpr, V_NEW_INNER: tl.constexpr, V_NEW_ROW: tl.constexpr,
    SPLITS: tl.constexpr, CHUNK: tl.constexpr, WIDEN: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """One stretch of HELD keys of one head of keys; the last goes on with the ADDED ones."""
    pid = tl.program_id(0)
    split = pid % SPLITS
    head = pid // SPLITS
    outer = (head // INNER).to(tl.int64)
    inner = (head % INNER).to(tl.int64)
    rows = tl.arange(0, BLOCK_R)
    row = tl.minimum(rows, ROWS - 1)
    depth = tl.arange(0, BLOCK_D)
    width = tl.arange(0, BLOCK_E)
    at_q = (inner * GROUP + row // QUERIES) * Q_INNER + (row % QUERIES) * Q_ROW
    queries = tl.load(
        q + outer * Q_OUTER + at_q[:, None] + depth[None, :],
        mask=(depth < DEPTH)[None, :],
        other=0.0,
    )
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    rest = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    k += outer * K_OUTER + inner * K_INNER
    v += outer * V_OUTER + inner * V_INNER
    stop = tl.minimum(split * CHUNK + CHUNK, HELD)
    for start in range(split * CHUNK, stop, BLOCK_N):
        top, total, acc, rest = kmem_decode_step(
            queries, top, total, acc, rest, k, v, start, stop, K_ROW, V_ROW, DEPTH, WIDTH, SCALE,
            WIDEN, BLOCK_N, BLOCK_D, BLOCK_E,
        )
    if ADDED > 0:
        if split == SPLITS - 1:
            k_new += outer * K_NEW_OUTER + inner * K_NEW_INNER
            v_new += outer * V_NEW_OUTER + inner * V_NEW_INNER
            for start in range(0, ADDED, BLOCK_N):
                top, total, acc, rest = kmem_decode_step(
                    queries, top, total, acc, rest, k_new, v_new, start, ADDED, K_NEW_ROW,
                    V_NEW_ROW, DEPTH, WIDTH, SCALE, WIDEN, BLOCK_N, BLOCK_D, BLOCK_E,
                )
    # of an infinite value the rest, times 0 or less, would make NaN of what is infinite
    acc += tl.where(tl.abs(rest) < float("inf"), rest, 0.0)
    line = pid.to(tl.int64) * ROWS + rows
    inside = rows < ROWS
    tl.store(tops + line, top, mask=inside)
    tl.store(totals + line, total, mask=inside)
    at = line[:, None] * WIDTH + width[None, :]
    tl.store(parts + at, acc, mask=inside[:, None] & (width < WIDTH)[None, :])
''',
)

MERGE = (
    "kmem_decode_merge",
    '''
@triton.jit
def kmem_decode_merge(
    parts, tops, totals, out,
    ROWS: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    INNER: tl.constexpr, OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_ROW: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """One row of the output from its stretches, each with weight exp2(its top - the largest)."""
    pid = tl.program_id(0)
    head = pid // ROWS
    row = pid % ROWS
    split = tl.arange(0, BLOCK_S)
    width = tl.arange(0, BLOCK_E)
    there = split < SPLITS
    line = (head.to(tl.int64) * SPLITS + split) * ROWS + row
    top = tl.load(tops + line, mask=there, other=float("-inf"))
    largest = tl.max(top, axis=0)
    weight = tl.exp2(top - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weight * tl.load(totals + line, mask=there, other=0.0), axis=0)
    total = tl.where(total == 0.0, 1.0, total)
    inside = there[:, None] & (width < WIDTH)[None, :]
    part = tl.load(parts + line[:, None] * WIDTH + width[None, :], mask=inside, other=0.0)
    answer = tl.sum(tl.where(there[:, None], weight[:, None] * part, 0.0), axis=0) / total
    at = (head // INNER).to(tl.int64) * OUT_OUTER + row % QUERIES * OUT_ROW
    at += ((head % INNER).to(tl.int64) * GROUP + row // QUERIES) * OUT_INNER
    tl.store(out + at + width, answer.to(out.dtype.element_ty), mask=width < WIDTH)
''',
)
