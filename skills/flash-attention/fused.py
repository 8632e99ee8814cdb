"""Triton text for attention without the score matrix, for narrow heads.

A block of queries keeps its output in registers while keys and values stream by (online softmax).
bf16 and fp16 are multiplied as they are, fp32 as parts (split_rows.py). A row whose scores are all
-inf gives zeros, as torch's operator does, or NaN, as its softmax does (EMPTY_IS_ZERO). With relu
in place of softmax nothing is kept of rows but their output.

Of a band of keys (bands.py) blocks that no row sees are skipped, and those that every row sees are
taken without masks, as are whole blocks before a remainder of keys.

Source: Dao, "FlashAttention-2", arXiv 2307.08691 (online softmax).
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .attention import Attention, AttentionSettings, padded
from .flagging import flag_programs

FUSED = (
    "kmem_attention",
    '''
@triton.jit
def kmem_load_rows(
    x, columns, KEYS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows of keys or values, zero from WIDTH on and, if not WHOLE, behind the last of them."""
    within = (tl.arange(0, BLOCK) < WIDTH)[None, :]
    if not WHOLE:
        rows = tl.load(x, mask=(columns < KEYS)[:, None] & within, other=0.0)
    elif BLOCK == WIDTH:
        rows = tl.load(x)
    else:
        rows = tl.load(x, mask=within, other=0.0)
    return rows


@triton.jit
def kmem_attend(
    acc, total, top, queries, low_queries, q_exponent,
    k, v, k_low, v_low, k_exponents, v_exponents, scale, bias, mask, rows, row, first, last,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    K_ROW: tl.constexpr, V_ROW: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ADDS: tl.constexpr,
    BIAS: tl.constexpr, BIAS_ROW: tl.constexpr, RAMP: tl.constexpr, UNIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_ROW: tl.constexpr,
    SPLIT: tl.constexpr, ALL: tl.constexpr, WIDEN: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """The running sums after the blocks of keys from first to last. WHOLE: the band lets all rows
    see all of these keys, and there are that many.
    """
    place = tl.arange(0, BLOCK_N)
    # in 32 bits where these hold it: half the registers of a loop
    place_k = place if K_ROW * BLOCK_N < 1 << 30 else place.to(tl.int64)
    place_v = place if V_ROW * BLOCK_N < 1 << 30 else place.to(tl.int64)
    at_k = place_k[:, None] * K_ROW + tl.arange(0, BLOCK_D)[None, :]
    at_v = place_v[:, None] * V_ROW + tl.arange(0, BLOCK_E)[None, :]
    for start in range(first, last, BLOCK_N):
        columns = start + place
        next_k = tl.cast(start, tl.int64) * K_ROW
        next_v = tl.cast(start, tl.int64) * V_ROW
        keys = kmem_load_rows(k + next_k + at_k, columns, KEYS, DEPTH, WHOLE, BLOCK_D)
        values = kmem_load_rows(v + next_v + at_v, columns, KEYS, WIDTH, WHOLE, BLOCK_E)
        if SPLIT:
            low_keys = kmem_load_rows(k_low + next_k + at_k, columns, KEYS, DEPTH, WHOLE, BLOCK_D)
            low_values = kmem_load_rows(
                v_low + next_v + at_v, columns, KEYS, WIDTH, WHOLE, BLOCK_E
            )
            scores = tl.zeros((low_queries.shape[0], BLOCK_N), tl.float32)
            if ALL:
                scores = tl.dot(low_queries, tl.trans(low_keys))
            scores = tl.dot(low_queries, tl.trans(keys), scores)
            scores = tl.dot(queries, tl.trans(low_keys), scores)
            scores = tl.dot(queries, tl.trans(keys), scores)
            k_exponent = tl.load(k_exponents + columns, mask=columns < KEYS, other=0)
            scores = kmem_unscale(scores, q_exponent, k_exponent)
        elif WIDEN:
            scores = tl.dot(
                queries.to(tl.float32), tl.trans(keys.to(tl.float32)), input_precision="ieee"
            )
        else:
            scores = tl.dot(queries, tl.trans(keys))
        scores = kmem_scale_scores(
            scores, scale, bias, rows, row, columns,
            KEYS, LOW, HIGH, ADDS, BIAS, BIAS_ROW, RAMP, UNIT, WHOLE,
        )
        if MASK != "":
            scores = kmem_mask_scores(scores, mask, row, columns, MASK, FILL, MASK_ROW, UNIT, KEYS)
        if ACTIVATION == "softmax":
            higher = tl.maximum(top, tl.max(scores, axis=1))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            p = tl.exp2(scores - shift[:, None])
            fix = tl.exp2(top - shift)
            total = total * fix + tl.sum(p, axis=1)
            acc = acc * fix[:, None]
            top = higher
        else:
            p = kmem_rectify(scores)
        if SPLIT:
            least, factor = kmem_value_factors(v_exponents, columns, KEYS)
            if ACTIVATION == "softmax":
                p_high, p_low, p_exponent = kmem_split_finite(p * factor[None, :])
            else:
                p_high, p_low, p_exponent = kmem_split_scaled(p * factor[None, :])
            part = tl.dot(p_low, values)
            part = tl.dot(p_high, low_values, part)
            part = tl.dot(p_high, values, part)
            unscaled = -least - p_exponent  # in two steps of normal factors
            half = unscaled >> 1
            acc += (
                part * kmem_power_of_two(half)[:, None]
                * kmem_power_of_two(unscaled - half)[:, None]
            )
        elif WIDEN:
            acc += tl.dot(
                p.to(values.dtype).to(tl.float32), values.to(tl.float32), input_precision="ieee"
            )
        else:
            acc = tl.dot(p.to(values.dtype), values, acc)
    return acc, total, top


@triton.jit
def kmem_attention(
    q, k, v, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents, flags,
    factor, bias, mask, bounds, out,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, INNER: tl.constexpr, SHARED: tl.constexpr,
    Q_OUTER: tl.constexpr, Q_INNER: tl.constexpr, Q_ROW: tl.constexpr,
    K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_ROW: tl.constexpr,
    SCALE: tl.constexpr, UNIT: tl.constexpr, ACTIVATION: tl.constexpr,
    FACTOR: tl.constexpr, FACTOR_OUTER: tl.constexpr, FACTOR_INNER: tl.constexpr,
    BIAS: tl.constexpr, BIAS_OUTER: tl.constexpr, BIAS_INNER: tl.constexpr, BIAS_ROW: tl.constexpr,
    RAMP: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_OUTER: tl.constexpr, MASK_INNER: tl.constexpr,
    MASK_ROW: tl.constexpr, MASK_PERIOD: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ADDS: tl.constexpr,
    EMPTY_IS_ZERO: tl.constexpr, SPLIT: tl.constexpr, ALL: tl.constexpr, WIDEN: tl.constexpr,
    FLAGGED: tl.constexpr, FLAGS: tl.constexpr, BOUNDED: tl.constexpr, SIDE_BY_SIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """One block of queries of one head. SCALE holds UNIT; with SPLIT, q, k and v are the high
    parts, and if ALL, no product of parts is left out of a score. SHARED heads of q read one of k
    and v. If FLAGGED, flags says in FLAGS places of each head of k and v whether hidden values
    matter, for they are not finite. If BOUNDED, bounds says which keys the mask leaves alone
    (kmem_attention_bounds).
    """
    blocks: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    late: tl.constexpr = LOW > -(1 << 30)
    bounded: tl.constexpr = late or HIGH < 1 << 30
    pid = tl.program_id(0)
    turn = pid % (blocks * SIDE_BY_SIDE)
    batch = pid // (blocks * SIDE_BY_SIDE) * SIDE_BY_SIDE + turn % SIDE_BY_SIDE
    block = turn // SIDE_BY_SIDE
    if HIGH < 1 << 30:
        block = blocks - 1 - block  # the longest first
    start = block * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    pair = batch // SHARED  # the head of k and v
    depth = tl.arange(0, BLOCK_D)
    width = tl.arange(0, BLOCK_E)
    row = tl.minimum(rows, QUERIES - 1)
    at_q = outer * Q_OUTER + inner * Q_INNER + row.to(tl.int64)[:, None] * Q_ROW + depth[None, :]
    within = (depth < DEPTH)[None, :]
    queries = tl.load(q + at_q, mask=within, other=0.0)
    base_k = outer * K_OUTER + inner // SHARED * K_INNER
    base_v = outer * V_OUTER + inner // SHARED * V_INNER
    mask += outer % MASK_PERIOD * MASK_OUTER + inner * MASK_INNER
    bias = kmem_head_bias(bias + outer * BIAS_OUTER + inner * BIAS_INNER, UNIT, BIAS, RAMP)
    scale = kmem_head_scale(factor + outer * FACTOR_OUTER + inner * FACTOR_INNER, SCALE, FACTOR)
    low_queries = queries
    q_exponent = row
    if SPLIT:
        low_queries = tl.load(q_low + at_q, mask=within, other=0.0)
        q_exponent = tl.load(q_exponents + batch * QUERIES + row)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    first, last = kmem_seen_keys(start, QUERIES, KEYS, LOW, HIGH, BLOCK_M, BLOCK_N)
    whole, rest = kmem_whole_keys(start, QUERIES, KEYS, LOW, HIGH, BLOCK_M, BLOCK_N)
    if BOUNDED:
        first = tl.load(bounds + block * 4)
        whole = tl.load(bounds + block * 4 + 1)
        rest = tl.load(bounds + block * 4 + 2)
        last = tl.load(bounds + block * 4 + 3)
    if FLAGGED:
        flag = tl.max(tl.load(flags + pair * FLAGS + tl.arange(0, FLAGS)), axis=0)
        first = tl.where(flag != 0, 0, first)
        last = tl.where(flag != 0, KEYS, last)
    none = whole >= rest
    whole = tl.where(none, first, whole)
    rest = tl.where(none, first, rest)
    for piece in tl.static_range(3):  # of keys: seen in part, by every row, in part
        from_key = first if piece == 0 else (whole if piece == 1 else rest)
        to_key = whole if piece == 0 else (rest if piece == 1 else last)
        if piece == 1 or BOUNDED or (late if piece == 0 else (bounded or KEYS % BLOCK_N != 0)):
            acc, total, top = kmem_attend(
                acc, total, top, queries, low_queries, q_exponent,
                k + base_k, v + base_v, k_low + base_k, v_low + base_v,
                k_exponents + pair * KEYS, v_exponents + pair * KEYS, scale, bias, mask, rows, row,
                from_key, to_key,
                KEYS, DEPTH, WIDTH, K_ROW, V_ROW, LOW, HIGH, ADDS, BIAS, BIAS_ROW,
                RAMP, UNIT, ACTIVATION, "" if BOUNDED and piece == 1 else MASK, FILL, MASK_ROW,
                SPLIT, ALL, WIDEN, piece == 1, BLOCK_N, BLOCK_D, BLOCK_E,
            )
    if ACTIVATION == "softmax":
        if EMPTY_IS_ZERO:
            total = tl.where(total == 0.0, 1.0, total)
        acc = acc / total[:, None]
    at_out = (
        outer * OUT_OUTER
        + inner * OUT_INNER
        + rows.to(tl.int64)[:, None] * OUT_ROW
        + width[None, :]
    )
    tl.store(
        out + at_out,
        acc.to(out.dtype.element_ty),
        mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :],
    )
''',
)


#: Without parts the kernel reads only the first three.
_WHOLE = "q, k, v, q, k, v, out, out, out"
_PARTS = "q_high, k_high, v_high, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents"


def write_fused(detail: Attention, knobs: AttentionSettings) -> list[str]:
    """The launch that writes `out`."""
    strides = (
        ", ".join(
            f"{name}_{axis}={step}"
            for axis, step in zip(("OUTER", "INNER", "ROW"), steps, strict=True)
        )
        for name, steps in zip(("Q", "K", "V", "OUT"), _steps(detail), strict=True)
    )
    launch = write_launch(
        "kmem_attention",
        detail.heads * ceil_div(detail.queries, knobs.block_m),
        _PARTS if detail.is_split else _WHOLE,
        f"{'flags' if detail.flags_values else 'out'}, {detail.term_arguments}, "
        f"{'bounds' if detail.is_bounded else 'out'}, out",
        f"QUERIES={detail.queries}, KEYS={detail.keys}, DEPTH={detail.depth}, "
        f"WIDTH={detail.width}, INNER={detail.inner}, SHARED={detail.shared}",
        *strides,
        *detail.term_texts,
        f"ACTIVATION={detail.activation!r}, EMPTY_IS_ZERO={detail.empty_is_zero}, "
        f"SPLIT={detail.is_split}, ALL={knobs.accuracy > 0}, "
        f"WIDEN={'False' if detail.is_split else 'q.is_cpu'}",
        f"FLAGGED={detail.flags_values}, FLAGS={flag_programs(detail)}, "
        f"BOUNDED={detail.is_bounded}, "
        f"SIDE_BY_SIDE={detail.side_by_side}",
        f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, "
        f"BLOCK_D={max(16, next_power_of_two(detail.depth))}, "
        f"BLOCK_E={max(16, next_power_of_two(detail.width))}",
        knobs.run,
    )
    return [launch]


def _steps(detail: Attention) -> tuple[tuple[int, int, int], ...]:
    """Steps of q, k, v and out as the kernel reads them; parts are dense."""
    if not detail.is_split:
        return detail.steps
    lengths = (
        (detail.inner, detail.queries, padded(detail.depth)),
        (detail.inner // detail.shared, detail.keys, padded(detail.depth)),
        (detail.inner // detail.shared, detail.keys, padded(detail.width)),
    )
    dense = ((heads * rows * width, rows * width, width) for heads, rows, width in lengths)
    return (*dense, detail.steps[3])
